//! Parts that several suites share: backends, a control plane, clients and their processes.
//!
//! The cargo benches of `crates/evenkeel` include these files individually, so they refer to each other by
//! `super`.

pub(crate) mod allocator;
pub(crate) mod backend;
pub(crate) mod generated;
pub(crate) mod no_channel;
pub(crate) mod ours;
pub(crate) mod process;
pub(crate) mod profile;
pub(crate) mod raw;
pub(crate) mod raw_h2;
pub(crate) mod raw_hyper;
pub(crate) mod rounds;
pub(crate) mod wire;
