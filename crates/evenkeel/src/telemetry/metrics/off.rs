//! No-op meters for builds without the feature `otel`.
//!
//! The types have the signatures of the `otel` module, are zero-sized and compile to nothing.

#![expect(clippy::unused_self, reason = "the signatures are those of the feature `otel`")]

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{BackendLabels, Code, LbLabels, Measurement};
use evenkeel_orca::IgnoredReason;
use evenkeel_xds::ads::AdsClient;

use super::{DisconnectReason, SecurityLevel};

#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelMetrics(());

impl ChannelMetrics {
    pub(crate) fn for_target(&self, _: Arc<str>) -> ChannelMetrics {
        ChannelMetrics(())
    }

    pub(crate) fn records_policies(&self) -> bool {
        false
    }

    pub(crate) fn needs_labels(&self) -> bool {
        false
    }

    pub(crate) fn call(&self, _: &str) -> CallMeter {
        CallMeter(())
    }

    pub(crate) fn connected(&self, _: LbLabels, _: SecurityLevel) -> ConnectionMeter {
        ConnectionMeter(())
    }

    pub(crate) fn connect_failed(&self, _: &LbLabels) {}

    pub(crate) fn load_ignored(&self, _: IgnoredReason) {}

    pub(crate) fn record_measurement(&self, _: &Measurement) {}

    pub(crate) fn xds(&self) -> XdsMeter {
        XdsMeter(())
    }
}

#[derive(Debug)]
pub(crate) struct CallMeter(());

impl CallMeter {
    pub(crate) fn start_attempt(&self) -> AttemptMeter {
        AttemptMeter(())
    }

    pub(crate) fn retried(&mut self, _: Duration) {}

    pub(crate) fn transparently_retried(&mut self) {}

    pub(crate) fn finish(&mut self, _: Code) {}
}

#[derive(Clone, Debug)]
pub(crate) struct AttemptMeter(());

impl AttemptMeter {
    pub(crate) fn record_picked<'p>(&self, _: impl FnOnce() -> Option<&'p BackendLabels>) {}

    pub(crate) fn record_unpicked(&self, _: Option<Arc<str>>) {}

    pub(crate) fn sent(&self, _: &[u8]) {}

    pub(crate) fn received(&self, _: &[u8]) {}

    pub(crate) fn load_ignored(&self, _: IgnoredReason) {}

    pub(crate) fn finish(&self, _: Code) {}
}

#[derive(Debug)]
pub(crate) struct ConnectionMeter(());

impl ConnectionMeter {
    pub(crate) fn lost(&mut self, _: DisconnectReason) {}
}

#[derive(Debug)]
pub(crate) struct XdsMeter(());

impl XdsMeter {
    pub(crate) fn publish(&self, _: &AdsClient) {}
}
