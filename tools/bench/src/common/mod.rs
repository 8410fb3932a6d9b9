//! What several suites measure with: backends, a control plane, clients, and the processes that they are.
//!
//! The cargo benches of `crates/evenkeel` include these files one by one, so they name each other by `super`.

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
