//! What every fuzz target checks.

#![forbid(unsafe_code)]

pub mod checks;
pub mod http2;
pub mod reports;
