//! An xDS control plane to embed: a mesh in YAML or code, served to any xDS client.

#![forbid(unsafe_code)]

mod mesh;
mod resources;

pub use mesh::{
    Cluster, Endpoint, FailurePercentage, Hash, HeaderMatch, Health, Locality, Mesh, MeshError, MeshErrors,
    OutlierDetection, Policy, Retry, RetryOn, Route, Service, Share, SuccessRate,
};
pub use resources::{Resource, Resources};
