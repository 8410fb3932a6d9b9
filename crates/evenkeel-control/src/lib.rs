//! An xDS control plane to embed: a mesh in YAML or code, served to any xDS client.
//!
//! A [`Mesh`] describes services and clusters; [`ResourceSet`] holds the xDS resources made of it. A [`SnapshotCache`]
//! serves them and records each client's ACKs and NACKs. A [`ControlPlane`] is a cache with a server on a port. Clients
//! may be gRPC of any language, or Envoy for clusters and endpoints. This crate does not depend on evenkeel's own
//! client.
//!
//! For tests of clients: change a resource, then wait for the reaction ([`SnapshotCache::wait_acked`],
//! [`SnapshotCache::wait_nacked`], [`SnapshotCache::wait_until`]). [`FaultModes`] imitate control planes that are
//! difficult for clients, and [`SnapshotCache::record_requests`] keeps every request.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod follow;
mod host_resolver;
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
#[cfg(feature = "tls")]
mod tls;

pub use follow::{MeshFileChange, MeshWatchGuard, POLL_INTERVAL};
pub use limits::ClientLimits;
pub use lrs::{DropStats, LoadCounts, LocalityLoadStats};
pub use mesh::{
    Cluster, ClusterPolicy, Endpoint, EndpointHealth, FailurePercentage, HeaderMatch, Locality, Mesh,
    MeshError, MeshErrors, OutlierDetection, RetryOn, Route, RouteHash, RouteRetry, Service, SuccessRate,
    TrafficFraction,
};
pub use records::{
    ClientEvent, ClientEventKind, ClientRecord, ClientRequest, Nack, SubscribedNames, TypeRecord,
};
pub use resources::{NamedResource, ResourceSet};
pub use server::{ControlPlane, ControlPlaneBuilder};
pub use service::DiscoveryService;
pub use snapshot::ProtocolVariant;
pub use snapshot_cache::{FaultModes, SnapshotCache};
#[cfg(feature = "tls")]
pub use tls::{ServerTls, ServerTlsError};
