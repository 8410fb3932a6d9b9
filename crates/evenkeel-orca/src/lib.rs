//! Load reports (ORCA, A51).
#![forbid(unsafe_code)]

pub mod cpu;
