//! Interoperability with other gRPC implementations: the programs of gRPC's published xDS interop
//! description, its cases as a driver for any client, server and control plane, and the peers.
//! `tools/interop/README.md` describes how to run them.

pub mod channelz;
pub mod client;
pub mod driver;
pub mod flags;
pub mod istio;
pub mod matrix;
pub mod orca_cases;
pub mod peers;
pub mod proto;
pub mod server;
mod sync;
