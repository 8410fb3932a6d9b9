//! Opens byte streams that HTTP/2 can start on.
//!
//! [`connect`] returns such a stream, or an error that states the cause. It reads credentials for every connection, so
//! that rotated certificates apply, and it never falls back to plaintext. Timeouts are left to the caller, which drops
//! the future.

use std::sync::Arc;

use evenkeel_core::Address;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::credentials::{ClusterTls, Credentials, H2};
use crate::transport::errors::{ConnectError, describe_io_error, plain_message, sanitize};
use crate::transport::tls_socket::TlsSocket;
use crate::transport::{Connector, Io};

/// Opens a byte stream to an endpoint, secured according to the credentials. `host` is the name that the endpoint's
/// certificate must be valid for: a DNS name or an IP address, without a port.
///
/// With TLS 1.3, a server verifies our certificate after the handshake has finished on our side. Its alert then
/// arrives with the first read; [`TlsSocket`] makes sure that it is reported.
pub(crate) async fn connect(
    connector: &dyn Connector,
    address: &Address,
    credentials: &Credentials,
    host: &str,
) -> Result<Box<dyn Io>, ConnectError> {
    let io = open(connector, address).await?;
    let Some(tls) = credentials.tls_config_source() else { return Ok(io) };
    let failed = |name: &str, cause| ConnectError {
        address: address.clone(),
        server: Some(format!("as {name:?}")),
        cause,
    };
    let name = tls.server_name(host).map_err(|error| failed(host, error.to_string()))?;
    let shown = name.to_str().into_owned();
    handshake(io, tls.config().await, name).await.map_err(|cause| failed(&shown, cause))
}

/// Opens a byte stream to an endpoint, secured by its cluster's security config. Without the required certificates,
/// no connection is opened at all.
pub(crate) async fn connect_by_cluster(
    connector: &dyn Connector,
    address: &Address,
    cluster: &ClusterTls,
) -> Result<Box<dyn Io>, ConnectError> {
    let failed = |server, cause| ConnectError { address: address.clone(), server, cause };
    let (config, name) =
        cluster.handshake().await.map_err(|error| failed(None, sanitize(&error.to_string())))?;
    let io = open(connector, address).await?;
    let server = || Some(format!("of cluster {:?}", cluster.cluster()));
    handshake(io, config, name).await.map_err(|cause| failed(server(), cause))
}

async fn open(connector: &dyn Connector, address: &Address) -> Result<Box<dyn Io>, ConnectError> {
    let opened = connector.connect(address).await;
    opened.map_err(|error| ConnectError {
        address: address.clone(),
        server: None,
        cause: plain_message(&error),
    })
}

async fn handshake(
    io: Box<dyn Io>,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<Box<dyn Io>, String> {
    let stream =
        TlsConnector::from(config).connect(name, io).await.map_err(|error| describe_io_error(&error))?;
    match stream.get_ref().1.alpn_protocol() {
        Some(H2) => Ok(Box::new(TlsSocket::new(stream))),
        _ => Err("the server did not select \"h2\" (ALPN), which gRPC requires".to_owned()),
    }
}
