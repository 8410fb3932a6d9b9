//! A server for those who look inside: the page, its data as JSON, CSDS.

mod state;

pub use state::*;
