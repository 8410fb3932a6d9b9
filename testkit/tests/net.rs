//! The parts on real sockets, under plain tonic clients.

#[path = "net/backend.rs"]
mod backend;
