//! What several suites measure with: backends, a control plane, clients, and the processes that they are.
//!
//! The cargo benches of `crates/evenkeel` include these files one by one, so they name each other by `super`.

pub(crate) mod process;
