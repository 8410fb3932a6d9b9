//! HTTP filters and their overrides (A39).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::routing::FaultConfig;

/// A filter that is supported, with its settings.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum XdsHttpFilter {
    /// The end of every chain; it stands for routing itself.
    Router,
    /// Puts in delays and failures (A33).
    Fault(Arc<FaultConfig>),
}

impl XdsHttpFilter {
    /// Whether it ends a chain.
    pub fn is_terminal(&self) -> bool {
        matches!(self, XdsHttpFilter::Router)
    }
}

/// A filter in a chain.
#[derive(Clone, Debug)]
pub struct FilterInstance {
    /// The name that overrides call it by.
    pub name: Arc<str>,
    /// The filter.
    pub filter: XdsHttpFilter,
    /// Whether it is off where no override turns it on.
    pub disabled: bool,
}

/// What a virtual host, a route or a weighted cluster says about a filter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FilterOverride {
    /// Run it with these settings instead of the listener's.
    Use(XdsHttpFilter),
    /// Do not run it.
    Off,
}

/// Overrides by the name of the filter instance. A name that the listener does not have does nothing: routes and
/// listeners change at different times.
pub type FilterOverrides = BTreeMap<String, FilterOverride>;

/// The filters to run for calls with these overrides, the most specific first in `levels`. The terminal one is left out;
/// routing is what it does.
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
