//! An xDS control plane to embed: a mesh in YAML or code, served to any xDS client.
//!
//! A [`Mesh`] says what a person means, [`Resources`] are what clients are sent, a [`Plane`] holds them and knows who has
//! accepted what, and a [`ControlPlane`] is a plane on a port. Clients may be gRPC of any language, or Envoy for clusters
//! and endpoints. This crate knows nothing of evenkeel's own client.
//!
//! For tests of clients: change something, then wait for what they make of it ([`Plane::acked`], [`Plane::nacked`],
//! [`Plane::wait_until`]), or take on the ways of difficult control planes ([`Quirks`]).

#![forbid(unsafe_code)]

mod follow;
mod limits;
mod lrs;
mod mesh;
mod plane;
mod records;
mod resources;
mod server;
mod service;
mod stream;
mod text;
mod world;

pub use follow::{Followed, POLL_INTERVAL};
pub use limits::ClientLimits;
pub use lrs::{DropReport, LoadCounts, LoadReport};
pub use mesh::{
    Cluster, Endpoint, FailurePercentage, Hash, HeaderMatch, Health, Locality, Mesh, MeshError, MeshErrors,
    OutlierDetection, Policy, Retry, RetryOn, Route, Service, Share, SuccessRate,
};
pub use plane::{Plane, Quirks};
pub use records::{ClientRecord, Event, Nack, Subscribed, TypeRecord, What};
pub use resources::{Resource, Resources};
pub use server::{Builder, ControlPlane};
pub use service::DiscoveryService;
pub use world::Variant;
