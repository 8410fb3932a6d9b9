//! What an xDS client decides, as values.
//!
//! Bytes from a control plane go in, and one complete config for a channel comes out. This crate reads the bootstrap,
//! keeps the state of the streams to the control planes, turns resources into types that cannot be wrong, follows
//! the names from listener to endpoints, and keeps the books of load reports. It opens no socket, reads no clock and
//! spawns nothing: a driver hands in messages, times and answers, and carries out what comes back.
//!
//! | where | what |
//! |---|---|
//! | [`bootstrap`] | which control planes there are, who we are, and how names are made |
//! | [`resource`] | resources, parsed and checked |
//! | [`lb`] | the policies of the control plane as policies of [`evenkeel_core`] (A52) |
//! | [`ads`] | streams, subscriptions, cache, failures and fallback |
//! | [`dependency_manager`] | from a listener to one complete config (A74) |
//! | [`routing`] | which cluster a call goes to, and how |
//! | [`resolver`] | all of this for one channel |
//! | [`lrs`] | load reports to control planes |

#![forbid(unsafe_code)]
// What comes from outside is never a place in a list without a look whether it is one.
#![warn(clippy::indexing_slicing)]
// Arithmetic on values from outside saturates or is checked, in whatever profile the crate is built. Constants and the
// core's `Instant`, which saturates, are exempt (see clippy.toml).
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[expect(clippy::indexing_slicing, reason = "servers and authorities are lists of its own that never shrink")]
pub mod ads;
pub mod bootstrap;
pub mod dependency_manager;
pub mod lb;
mod limits;
pub mod lrs;
pub mod resolver;
pub mod resource;
pub mod routing;
mod text;

pub use limits::XdsLimits;
pub use resource::problems::{FieldPath, ValidationError, ValidationErrors};
