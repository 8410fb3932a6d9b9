//! The reconcile engine: the policy tree, and the one place that decides which policies run in a pass.
//!
//! A pass starts at the root and runs each policy whose inputs changed. Everything here is incremental computation: it may skip
//! a policy only if running it would return the same state.

pub(crate) mod by_subchannel;
pub(crate) mod child;
pub(crate) mod core;
pub(crate) mod cx;
pub(crate) mod dependencies;
pub(crate) mod describe;
pub(crate) mod pure_parent;
pub(crate) mod released;
pub(crate) mod revision;
pub(crate) mod tree;
