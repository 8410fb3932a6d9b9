//! HTTP filters and their overrides (A39).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::routing::FaultConfig;

/// Supported filter with its settings.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum XdsHttpFilter {
    /// Terminal filter of every chain. It represents routing itself.
    Router,
    /// Injects delays and aborts (A33).
    Fault(Arc<FaultConfig>),
}

impl XdsHttpFilter {
    /// Returns true if the filter must be the last one of a chain.
    pub fn is_terminal(&self) -> bool {
        matches!(self, XdsHttpFilter::Router)
    }
}

/// Filter at its place in a chain.
#[derive(Clone, Debug)]
pub struct FilterInstance {
    /// Instance name, which overrides refer to.
    pub name: Arc<str>,
    /// Type and settings of the filter.
    pub filter: XdsHttpFilter,
    /// True if the filter runs only where an override enables it.
    pub disabled: bool,
}

/// Override of a filter by a virtual host, a route or a weighted cluster.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FilterOverride {
    /// Run the filter with these settings instead of the listener's.
    Use(XdsHttpFilter),
    /// Do not run the filter.
    Off,
}

/// Overrides by filter instance name. Names that the listener does not contain are ignored, because routes
/// and listeners change at different times.
pub type FilterOverrides = BTreeMap<String, FilterOverride>;

/// Returns the filters to run for calls with these overrides, of which the most specific is first in
/// `levels`. The terminal filter is omitted, because routing implements it.
pub(crate) fn resolve(chain: &[FilterInstance], levels: &[&FilterOverrides]) -> Arc<[FilterInstance]> {
    let run = chain.iter().filter(|instance| !instance.filter.is_terminal()).filter_map(|instance| {
        let found = levels.iter().find_map(|level| level.get(&*instance.name));
        let filter = match found {
            Some(FilterOverride::Off) => return None,
            Some(FilterOverride::Use(filter)) => filter,
            None if instance.disabled => return None,
            None => &instance.filter,
        };
        Some(FilterInstance { name: instance.name.clone(), filter: filter.clone(), disabled: false })
    });
    run.collect()
}
