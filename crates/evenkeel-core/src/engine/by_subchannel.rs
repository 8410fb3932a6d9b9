//! Values by subchannel, for pickers: what a policy wants to know of calls to each endpoint.
//!
//! Clones of a table share what did not change, and a pick finds its value by index. An endpoint's subchannels are remembered with it ([`KnownSubchannels`]), so that they are looked up by address only when they
//! come.

use std::sync::Arc;

use crate::collections::inline_vec::InlineVec;
use crate::{Cx, Endpoint, Endpoints, SubchannelId, SubchannelMap};

/// Values by subchannel. Clones share.
#[derive(Debug)]
pub(crate) struct BySubchannel<V> {
    values: SubchannelMap<Arc<V>>,
    /// Endpoints may have addresses in common: what is known of one may stand in the table for another.
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

    /// Brings the table up to date with the subchannels that endpoints have. Answers whether it changed.
    ///
    /// Endpoints that are [distinct](Endpoints::distinct) and whose subchannels are still there are not looked up. Of others
    /// that have an address in common the first counts.
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
            return rows.fold(false, |changed, row| row.refresh(self, cx) | changed);
        }
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

    /// Removes what is known of an endpoint that is gone, or whose value is another.
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

/// An endpoint, its value, and what is known of its subchannels.
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

/// The subchannels of one endpoint, as they were last looked up.
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

    /// Whether every address has a subchannel that is still there.
    fn is_complete(&self, endpoint: &Endpoint, cx: &Cx<'_>) -> bool {
        let is_there = |id: &SubchannelId| {
            cx.peek(*id).is_some_and(|subchannel| {
                !cx.has_per_cluster_transport() || cx.has_same_transport(subchannel)
            })
        };
        self.0.iter().all(is_there) && self.0.len() == endpoint.addresses().len()
    }
}
