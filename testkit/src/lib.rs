//! The virtual world that evenkeel's tests run in.
//!
//! [`CoreSim`] drives a [`Core`](evenkeel_core::Core) as a channel would, on virtual time: it carries out effects against
//! scripted backends, keeps the picker that was published last, and holds every policy to the rule that a pass with
//! nothing new changes nothing. A test is a story: what happens, and what is dialled, picked and reported.
//! [`Counting`] counts allocations, [`Log`] keeps what is logged. [`resources`] makes what a control plane would send.

mod alloc;
#[cfg(feature = "browser")]
pub mod browser;
mod core_sim;
mod log;
#[cfg(feature = "net")]
pub mod net;
pub mod resources;

pub use alloc::{Allocations, Counting};
pub use core_sim::{CoreSim, Picked, dialled, endpoints, secs, weighted};
pub use log::Log;
