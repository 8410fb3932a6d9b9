//! Route configurations (RDS).

use std::sync::Arc;

use crate::bootstrap::ServerConfig;
use crate::resource::{Parsed, Parser, Rejected};
use crate::{Path, Problems};

/// Virtual hosts with their routes.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    /// The name; empty for one that is part of a listener.
    pub name: String,
    /// The virtual hosts.
    pub virtual_hosts: Vec<Arc<VirtualHost>>,
}

/// The routes for some domains.
#[derive(Clone, Debug)]
pub struct VirtualHost {
    /// The name.
    pub name: String,
    /// The domains, as the control plane wrote them.
    pub domains: Vec<String>,
    /// The clusters that its routes may choose, each once, in order of appearance.
    pub clusters: Vec<Arc<str>>,
}

impl RouteConfig {
    /// The virtual host for an authority (VAL-R7), if there is one.
    pub fn virtual_host(&self, _authority: &str) -> Option<&Arc<VirtualHost>> {
        self.virtual_hosts.first()
    }
}

pub(super) fn parse(_: &[u8], _: &Parser, _: &ServerConfig) -> Result<Parsed, Rejected> {
    Err(Rejected { name: None, problems: Problems::one(&Path::root(), "placeholder") })
}
