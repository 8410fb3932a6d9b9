//! Simulated environment for evenkeel's tests.
//!
//! [`CoreSim`] drives a [`Core`](evenkeel_core::Core) as a channel would, on virtual time. It performs
//! effects against scripted backends and keeps the latest picker. After each step it asserts that a further
//! pass changes nothing. `XdsSim` (feature `xds`) adds the xDS client. [`Counting`] counts allocations, [`Log`] records log lines, and [`resources`] builds
//! xDS resources.

mod alloc;
#[cfg(feature = "browser")]
pub mod browser;
mod core_sim;
mod log;
#[cfg(feature = "net")]
pub mod net;
pub mod resources;
mod sync;
#[cfg(feature = "xds")]
mod xds_sim;

pub use alloc::{Allocations, Counting};
pub use core_sim::{CoreSim, Picked, dialled, endpoints, secs, weighted};
pub use log::Log;
pub use sync::lock;
#[cfg(feature = "xds")]
pub use xds_sim::XdsSim;
