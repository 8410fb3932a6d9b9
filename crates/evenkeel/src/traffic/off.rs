//! The counters of a build in which nobody can look: they take in everything, keep nothing and compile to nothing.

#![expect(clippy::unused_self, reason = "the signatures are those of the feature `admin`")]

use evenkeel_core::{Address, Code, LoadReport};

#[derive(Debug, Default)]
pub(crate) struct Tallies(());

impl Tallies {
    pub(crate) fn begin(&self) -> Counted {
        Counted(())
    }

    pub(crate) fn end(&self, _: Counted, _: Option<Code>) {}

    pub(crate) fn link(&self, _: &Address, _: &Link) {}
}

#[derive(Debug, Default)]
pub(crate) struct Link(());

impl Link {
    pub(crate) fn begin(&self) -> Counted {
        Counted(())
    }

    pub(crate) fn end(&self, _: Counted, _: Option<Code>) {}

    pub(crate) fn wants_load(&self) -> bool {
        false
    }

    pub(crate) fn load(&self, _: &LoadReport) {}
}

#[derive(Debug, Default)]
pub(crate) struct Counted(());
