//! Values by subchannel, for pickers: counters or trackers of each endpoint.
//!
//! Clones of a table share the parts that did not change, and a pick finds its value by index. Each endpoint stores its
//! subchannels ([`KnownSubchannels`]), so that a run looks up only new ones by address.

use std::sync::Arc;

use crate::collections::inline_vec::InlineVec;
use crate::{Cx, Endpoint, Endpoints, SubchannelId, SubchannelMap};

/// Map of values by subchannel. Clones share their data.
#[derive(Debug)]
pub(crate) struct BySubchannel<V> {
    values: SubchannelMap<Arc<V>>,
    /// True if endpoints may share addresses, so that an entry may belong to several endpoints.
    overlap: bool,
}

impl<V> Default for BySubchannel<V> {
    fn default() -> BySubchannel<V> {
        BySubchannel { values: SubchannelMap::default(), overlap: false }
    }
}

impl<V> Clone for BySubchannel<V> {
    fn clone(&self) -> BySubchannel<V> {
        BySubchannel { values: self.values.clone(), overlap: self.overlap }
    }
}

impl<V> BySubchannel<V> {
    pub(crate) fn get(&self, id: SubchannelId) -> Option<&Arc<V>> {
        self.values.get(id)
    }

    /// Brings the table up to date with the subchannels of the endpoints. Returns true if it changed.
    ///
    /// Skips the lookup for [distinct](Endpoints::distinct) endpoints whose subchannels still exist. If endpoints share an address,
    /// the first one owns the entry.
    pub(crate) fn refresh<'r>(
        &mut self,
        rows: impl Iterator<Item = SubchannelRow<'r, V>>,
        endpoints: &Endpoints,
        cx: &Cx<'_>,
    ) -> bool
    where
        V: 'r,
    {
        let overlap = endpoints.as_distinct_list().is_none();
        if !overlap && !self.overlap {
            // `|` and not `||`: every row must be refreshed.
            return rows.fold(false, |changed, row| row.refresh(self, cx) | changed);
        }
        // An entry may belong to any endpoint with the address, so the owners are determined again.
        let old = std::mem::replace(self, BySubchannel { values: SubchannelMap::default(), overlap });
        for SubchannelRow { endpoint, value, known } in rows {
            *known = KnownSubchannels::look_up(endpoint, cx);
            for id in known.0.iter() {
                if self.get(*id).is_none() {
                    self.insert(*id, value);
                }
            }
        }
        let mut entries = self.entries();
        let same = old.entries().all(|(id, value)| {
            entries.next().is_some_and(|(also, other)| id == also && Arc::ptr_eq(value, other))
        });
        !(same && entries.next().is_none())
    }

    /// Removes the entries of an endpoint that was removed or whose value changed.
    pub(crate) fn remove(&mut self, known: &mut KnownSubchannels) {
        for id in std::mem::take(known).0.iter() {
            self.values.remove(*id);
        }
    }

    fn insert(&mut self, id: SubchannelId, value: &Arc<V>) {
        self.values.insert(id, value.clone());
    }

    fn entries(&self) -> impl Iterator<Item = (SubchannelId, &Arc<V>)> {
        self.values.iter()
    }
}

/// Endpoint with its value and its known subchannels.
pub(crate) struct SubchannelRow<'r, V> {
    pub(crate) endpoint: &'r Endpoint,
    pub(crate) value: &'r Arc<V>,
    pub(crate) known: &'r mut KnownSubchannels,
}

impl<V> SubchannelRow<'_, V> {
    fn refresh(self, table: &mut BySubchannel<V>, cx: &Cx<'_>) -> bool {
        let SubchannelRow { endpoint, value, known } = self;
        if known.is_complete(endpoint, cx) {
            return false;
        }
        let now = KnownSubchannels::look_up(endpoint, cx);
        if now.0.iter().eq(known.0.iter()) {
            return false;
        }
        table.remove(known);
        for id in now.0.iter() {
            table.insert(*id, value);
        }
        *known = now;
        true
    }
}

/// Subchannels of one endpoint as of the last lookup.
#[derive(Debug, Default)]
pub(crate) struct KnownSubchannels(InlineVec<SubchannelId>);

impl KnownSubchannels {
    fn look_up(endpoint: &Endpoint, cx: &Cx<'_>) -> KnownSubchannels {
        let mut known = InlineVec::default();
        for subchannel in endpoint.addresses().iter().filter_map(|address| cx.find(address)) {
            known.push(subchannel.id());
        }
        KnownSubchannels(known)
    }

    /// Returns true if every address has a subchannel that still exists.
    fn is_complete(&self, endpoint: &Endpoint, cx: &Cx<'_>) -> bool {
        let is_there = |id: &SubchannelId| {
            cx.peek(*id).is_some_and(|subchannel| {
                !cx.has_per_cluster_transport() || cx.has_same_transport(subchannel)
            })
        };
        // An address without a subchannel may get one at any time, so that endpoint is looked up again.
        self.0.iter().all(is_there) && self.0.len() == endpoint.addresses().len()
    }
}
