//! evenkeel against the others: the programs of gRPC's published xDS interop description, the description's cases as a
//! driver that runs them with any client, server and control plane, and the peers to run them with.
//! `tools/interop/README.md` tells how to run all of it.

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
