//! Checks of the fuzz targets.

#![forbid(unsafe_code)]

pub mod checks;
pub mod http2;
pub mod reports;
