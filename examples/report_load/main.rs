//! How does my server report its load, and how do clients use it?
//!
//! Three servers of unequal capacity use evenkeel's layer, and a channel uses `weighted_round_robin`. Check the
//! shares: round robin applies during the blackout period, then every server has the same utilization.
//!
//! Servers, sockets, reports and weights are real. The capacities are simulated, since the servers share one machine:
//! each server computes its utilization. Without `say_how_busy` the layer reports the CPU.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::Channel;
use evenkeel_orca::ServerLoad;
use examples::shop::orders_server::{Orders, OrdersServer};
use examples::shop::{GetRequest, Order};
use examples::{Load, Outcome};
use tokio::net::TcpListener;
use tokio::time::interval;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Capacity of each server in calls per second.
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

    // Short periods, for a short example. Both have defaults (docs/policies.md).
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

/// Starts a tonic server. One line adds the layer that measures and reports its calls.
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

/// Sets the utilization of a server with this capacity in requests per second. A real server may know a
/// better measure than its CPU: the length of a queue, or the connections of a pool.
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
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Order>, Status> {
        Ok(Response::new(Order { id: request.into_inner().id, backend: self.0.to_owned() }))
    }
}
