//! Listeners (LDS): the root of what a channel is told.

use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::ServerConfig;
use crate::resource::{Parsed, Parser, Rejected, RouteConfig};
use crate::{Path, Problems};

/// An API listener with its HTTP connection manager.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The name.
    pub name: String,
    /// Where the routes are.
    pub routes: RouteSource,
    /// The longest a stream may take where its route does not say (RT-1).
    pub max_stream_duration: Option<Duration>,
}

/// Where the routes of a listener are.
#[derive(Clone, Debug)]
pub enum RouteSource {
    /// In the listener.
    Inline(Arc<RouteConfig>),
    /// In the route configuration of this name.
    Rds(String),
}

pub(super) fn parse(_: &[u8], _: &Parser, _: &ServerConfig) -> Result<Parsed, Rejected> {
    Err(Rejected { name: None, problems: Problems::one(&Path::root(), "placeholder") })
}
