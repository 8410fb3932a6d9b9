//! No-op statistics for builds without the feature `admin`.
//!
//! The types have the signatures of the `on` module, are zero-sized and compile to nothing.

#![expect(clippy::unused_self, reason = "the signatures are those of the feature `admin`")]

use evenkeel_core::{Address, Code, LoadReport};

use super::FailureInfo;

#[derive(Debug, Default)]
pub(crate) struct ChannelStats(());

impl ChannelStats {
    pub(crate) fn start(&self) -> CallTimer {
        CallTimer(())
    }

    pub(crate) fn finish(&self, _: CallTimer, _: Option<(Code, FailureInfo<'_>)>) {}

    pub(crate) fn attach(&self, _: &Address, _: &EndpointStats) {}
}

#[derive(Debug, Default)]
pub(crate) struct EndpointStats(());

impl EndpointStats {
    pub(crate) fn start(&self) -> CallTimer {
        CallTimer(())
    }

    pub(crate) fn finish(&self, _: CallTimer, _: Option<(Code, FailureInfo<'_>)>) {}

    pub(crate) fn records_load(&self) -> bool {
        false
    }

    pub(crate) fn load(&self, _: &LoadReport) {}
}

#[derive(Debug, Default)]
pub(crate) struct CallTimer(());
