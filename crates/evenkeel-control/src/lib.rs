//! An xDS control plane to embed: a mesh in YAML or code, served to any xDS client.
//!
//! A [`Mesh`] says what a person means, [`ResourceSet`] are what clients are sent, a [`SnapshotCache`] holds them and knows who has
//! accepted what, and a [`ControlPlane`] is a plane on a port. Clients may be gRPC of any language, or Envoy for clusters
//! and endpoints. This crate knows nothing of evenkeel's own client.
//!
//! For tests of clients: change something, then wait for what they make of it ([`SnapshotCache::wait_acked`], [`SnapshotCache::wait_nacked`],
//! [`SnapshotCache::wait_until`]), or take on the ways of difficult control planes ([`FaultModes`]).

#![forbid(unsafe_code)]

mod follow;
mod limits;
mod lrs;
mod mesh;
mod records;
mod resources;
mod server;
mod service;
mod snapshot;
mod snapshot_cache;
mod stream;
mod text;

pub use follow::{MeshWatchGuard, POLL_INTERVAL};
pub use limits::ClientLimits;
pub use lrs::{DropReport, LoadCounts, LocalityLoadReport};
pub use mesh::{
    Cluster, ClusterPolicy, Endpoint, EndpointHealth, FailurePercentage, HeaderMatch, Locality, Mesh,
    MeshError, MeshErrors, OutlierDetection, RetryOn, Route, RouteHash, RouteRetry, Service, SuccessRate,
    TrafficFraction,
};
pub use records::{ClientEvent, ClientEventKind, ClientRecord, Nack, SubscribedNames, TypeRecord};
pub use resources::{NamedResource, ResourceSet};
pub use server::{ControlPlane, ControlPlaneBuilder};
pub use service::DiscoveryService;
pub use snapshot::ProtocolVariant;
pub use snapshot_cache::{FaultModes, SnapshotCache};
