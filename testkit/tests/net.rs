//! Backend and control plane of the testkit over real sockets, called by tonic clients.

#[path = "net/backend.rs"]
mod backend;
#[path = "net/control.rs"]
mod control;

use std::net::SocketAddr;

use tonic::transport::{Channel, Endpoint};

fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("a URI").connect_lazy()
}
