//! Endpoints of clusters (EDS): a `ClusterLoadAssignment` becomes an [`EndpointSet`](evenkeel_core::cluster::EndpointSet).

use crate::bootstrap::ServerConfig;
use crate::resource::{Parsed, Parser, Rejected};
use crate::{Path, Problems};

pub(super) fn parse(_: &[u8], _: &Parser, _: &ServerConfig) -> Result<Parsed, Rejected> {
    Err(Rejected { name: None, problems: Problems::one(&Path::root(), "placeholder") })
}
