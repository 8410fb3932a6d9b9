//! Differential tests: our client and the client of the h2 crate against the same bytes of a server, in memory.
//!
//! - `scripts` generates server behaviour, valid and invalid, and compares the outcomes of the calls.
//! - `hpack` generates header blocks, and compares with h2 and with a model of HPACK's tables.
//! - `echo` sends generated headers through an h2 server and back.
//!
//! Everything is polled by hand on one thread, so a failing case is the same in every run.

mod clients;
mod echo;
mod hpack;
#[path = "../common/memory_io.rs"]
mod memory_io;
mod scripts;
mod wire;
