//! xDS client as a state machine without I/O.
//!
//! A driver passes in bytes from control planes; one complete config per channel comes out. The crate reads the
//! bootstrap, tracks the ADS streams, parses resources into types that cannot be invalid, resolves their dependencies
//! and builds load reports. It opens no sockets, reads no clock and spawns no tasks. The driver passes in messages and
//! times, and performs the effects that this crate returns.
//!
//! | module | purpose |
//! |---|---|
//! | [`bootstrap`] | control planes, node and name templates of the bootstrap file (A27) |
//! | [`resource`] | resources, parsed and validated |
//! | [`lb`] | load-balancing policies of the control plane as policies of [`evenkeel_core`] (A52) |
//! | [`ads`] | ADS streams, subscriptions, cache, failures and fallback |
//! | [`dependency_manager`] | from a listener to one complete config (A74) |
//! | [`routing`] | route matching and cluster selection per call |
//! | [`resolver`] | all of the above for one channel |
//! | [`lrs`] | load reports to control planes |
//! | [`target`] | gRPC target strings, of channels and of control planes |
//! | [`json`] | reader of JSON objects with errors by field path |

#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
// Input never indexes a list without a bounds check.
#![warn(clippy::indexing_slicing)]
// Arithmetic on input saturates or is checked, in every build profile. Constants and the core's `Instant`, which
// saturates, are exempt (see clippy.toml).
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[expect(clippy::indexing_slicing, reason = "servers and authorities are fixed lists that never shrink")]
pub mod ads;
pub mod bootstrap;
pub mod dependency_manager;
pub mod json;
pub mod lb;
mod limits;
pub mod lrs;
pub mod resolver;
pub mod resource;
pub mod routing;
pub mod target;
mod text;

pub use limits::XdsLimits;
pub use resource::problems::{FieldPath, ValidationError, ValidationErrors};
