//! evenkeel's part of both benches: a control plane, and a channel through it.

use std::net::SocketAddr;

use crate::Error;

/// Starts a control plane whose `xds:///bench` is weighted_round_robin over the backends, and says where it is.
pub(crate) async fn control_plane(backends: &[SocketAddr]) -> Result<SocketAddr, Error> {
    Err(format!("no control plane yet for {} backends", backends.len()).into())
}

/// A channel to `xds:///bench` of the control plane, all of whose backends are connected when it is handed out.
pub(crate) async fn channel(control: SocketAddr) -> Result<tonic::transport::Channel, Error> {
    Err(format!("no channel yet through {control}").into())
}
