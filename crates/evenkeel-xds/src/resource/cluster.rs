//! Clusters (CDS).

use std::sync::Arc;

use evenkeel_core::cluster as core;

use crate::bootstrap::ServerConfig;
use crate::resource::{Parsed, Parser, Rejected};
use crate::{Path, Problems};

/// A cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The name.
    pub name: Arc<str>,
    /// What it is made of.
    pub kind: ClusterKind,
    /// How its connections are secured; `None` where the control plane says nothing about it.
    pub security: Option<Arc<Security>>,
}

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub enum ClusterKind {
    /// Endpoints of its own: `core::Cluster::Leaf`, made once, so that its identity says whether anything changed.
    Leaf(Arc<core::Cluster>),
    /// Other clusters, highest priority first, as the control plane wrote them.
    Aggregate(Vec<Arc<str>>),
}

/// How connections to a cluster are secured (A29).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {}

pub(super) fn parse(_: &[u8], _: &Parser, _: &ServerConfig) -> Result<Parsed, Rejected> {
    Err(Rejected { name: None, problems: Problems::one(&Path::root(), "placeholder") })
}
