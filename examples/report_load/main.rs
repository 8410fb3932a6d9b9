//! How does my server say how busy it is, and do clients go by it?
//!
//! Three servers of unequal capacity with evenkeel's layer, and a channel with `weighted_round_robin`. Look at the shares: calls go
//! in turn until there have been reports for a while (the blackout), then every server is equally busy.
//!
//! Servers, sockets, reports and weights are real. The capacities are not: a server says how busy it would be, so that the example
//! needs no three machines. Without `say_how_busy` the layer reports the CPU.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::Channel;
use evenkeel_orca::ServerLoad;
use examples::shop::{Orders, OrdersServer};
use examples::{Load, Outcome};
use tokio::net::TcpListener;
use tokio::time::interval;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// What each server can do in a second.
const CAPACITIES: [(&str, f64); 3] = [("small", 1_000.0), ("medium", 2_000.0), ("large", 4_000.0)];

#[tokio::main]
async fn main() -> Outcome {
    let (mut addresses, mut loads) = (Vec::new(), Vec::new());
    for (name, capacity) in CAPACITIES {
        let load = ServerLoad::new();
        addresses.push(serve(name, &load).await?.to_string());
        tokio::spawn(say_how_busy(load.clone(), capacity));
        loads.push((name, load));
    }

    // Short periods, so that there is something to see within seconds; both have defaults (docs/policies.md).
    let channel = Channel::builder(format!("ipv4:{}", addresses.join(",")))
        .service_config(
            r#"{"loadBalancingConfig": [{"weighted_round_robin": {
                "blackoutPeriod": "1s", "weightUpdatePeriod": "0.5s"}}]}"#,
        )
        .build()?;
    let calls = Load::start(channel, 500);
    for second in 1..=6 {
        let tally = calls.over(Duration::from_secs(1)).await;
        let busy = loads
            .iter()
            .map(|(name, load)| format!("{name} {:.0} %", load.report().application_utilization * 100.0));
        println!("second {second}: {tally}; busy: {}", busy.collect::<Vec<_>>().join(", "));
    }
    Ok(())
}

/// A tonic server whose calls are measured and reported: one line more than it had.
async fn serve(name: &'static str, load: &ServerLoad) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = Server::builder()
        .layer(load.layer())
        .add_service(OrdersServer::new(Shop(name)))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    Ok(address)
}

/// Says how busy a server is that can do so many requests per second. Yours may know better than its CPU what it is short of:
/// the length of a queue, the connections of a pool.
async fn say_how_busy(load: ServerLoad, capacity: f64) {
    let mut ticks = interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        load.set_application_utilization(load.report().rps_fractional / capacity);
    }
}

struct Shop(&'static str);

#[tonic::async_trait]
impl Orders for Shop {
    async fn get(&self, _: Request<String>) -> Result<Response<String>, Status> {
        Ok(Response::new(self.0.to_owned()))
    }
}
