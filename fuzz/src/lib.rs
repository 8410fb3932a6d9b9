//! What every fuzz target checks.

#![forbid(unsafe_code)]

pub mod checks;
pub mod reports;
