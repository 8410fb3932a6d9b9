//! Clients that are part of this program.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::{Channel, ConnectivityState, Description, EndpointRow};
use tonic::transport::{Channel as TonicChannel, Endpoint};

use crate::Error;
use crate::calls::raw::{H2, Hyper};
use crate::client::args::ClientArgs;
use crate::client::drive::measure;
use crate::client::echo::EchoClient;
use crate::common::rounds::RoundRobin;

/// Implementation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Hyper,
    H2,
    Tonic,
    TonicBalance,
    Evenkeel,
}

/// Runs one client process.
pub(crate) fn run(kind: Kind, args: &ClientArgs) -> Result<(), Error> {
    args.runtime()?.block_on(async {
        let (ask, load) = (args.ask(), args.load());
        match kind {
            Kind::Hyper => {
                let mut connections = Vec::new();
                for address in addresses(&args.target)? {
                    connections.push(Hyper::connect(address, &ask).await?);
                }
                measure(RoundRobin::new(connections), ask, load).await
            }
            Kind::H2 => {
                let mut connections = Vec::new();
                for address in addresses(&args.target)? {
                    connections.push(H2::connect(address, &ask).await?);
                }
                measure(RoundRobin::new(connections), ask, load).await
            }
            Kind::Tonic => {
                let [address] = addresses(&args.target)?[..] else {
                    return Err(format!("tonic's channel takes one address, found {:?}", args.target).into());
                };
                measure(EchoClient::new(endpoint(address)?.connect().await?), ask, load).await
            }
            Kind::TonicBalance => {
                let endpoints = addresses(&args.target)?.into_iter().map(endpoint);
                let endpoints: Vec<Endpoint> = endpoints.collect::<Result<_, _>>()?;
                measure(EchoClient::new(TonicChannel::balance_list(endpoints.into_iter())), ask, load).await
            }
            Kind::Evenkeel => measure(EchoClient::new(connected(&args.target).await?), ask, load).await,
        }
    })
}

fn addresses(target: &str) -> Result<Vec<SocketAddr>, Error> {
    let parse = |address: &str| {
        address.parse().map_err(|_| format!("expected an address with a port, found {address:?}").into())
    };
    target.split(',').map(parse).collect()
}

fn endpoint(address: SocketAddr) -> Result<Endpoint, Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?)
}

/// Returns a channel that has connected to all endpoints that it connects without calls. Other clients
/// connect first too.
async fn connected(target: &str) -> Result<Channel, Error> {
    let channel = Channel::builder(target).build()?;
    channel.ready().await?;
    while channel.tree().await.is_none_or(|tree| is_connecting(&tree)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(channel)
}

fn is_connecting(tree: &Description) -> bool {
    let is_connecting_to = |row: &EndpointRow| row.state == ConnectivityState::Connecting;
    tree.endpoints.iter().any(is_connecting_to) || tree.children.iter().any(|(_, child)| is_connecting(child))
}
