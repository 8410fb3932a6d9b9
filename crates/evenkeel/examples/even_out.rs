//! Three servers of unequal capacity report their load, and a channel evens it out.
//!
//! ```sh
//! cargo run -p evenkeel --example even_out
//! ```
//!
//! Servers, sockets, reports and weights are real. The capacities are not: the servers only say how busy they would be, so that the
//! example needs no three machines.

use std::time::Duration;

use evenkeel::Channel;
use evenkeel_orca::ServerLoad;
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio::time::{interval, sleep};
use tonic::service::Routes;

/// What each server can do in a second.
const CAPACITIES: [f64; 3] = [1_000.0, 2_000.0, 4_000.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut servers, mut loads) = (Vec::new(), Vec::new());
    for capacity in CAPACITIES {
        let load = ServerLoad::new();
        servers.push(serve(load.clone()).await);
        tokio::spawn(say_how_busy(load.clone(), capacity));
        loads.push(load);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let channel = Channel::builder(format!("ipv4:{}", addresses.join(",")))
        .service_config(r#"{"loadBalancingConfig": [{"weighted_round_robin": {"blackoutPeriod": "2s"}}]}"#)
        .build()?;
    tokio::spawn(call_steadily(channel));

    let heads = CAPACITIES.map(|capacity| format!("{:>19}", format!("can do {capacity}/s")));
    println!("{:>6} {}", "", heads.join(" │ "));
    println!("{:>6} {}", "second", [" calls  share  busy"; 3].join(" │ "));
    let mut before = [0; 3];
    for second in 1..=8 {
        sleep(Duration::from_secs(1)).await;
        let now: Vec<usize> = servers.iter().map(Backend::calls).collect();
        let calls: Vec<usize> = now.iter().zip(before).map(|(now, before)| now - before).collect();
        let all = calls.iter().sum::<usize>().max(1);
        let columns = calls.iter().zip(&loads).map(|(calls, load)| {
            let busy = load.report().application_utilization * 100.0;
            format!("{calls:>6}  {:>4.0}%  {busy:>3.0}%", *calls as f64 / all as f64 * 100.0)
        });
        println!("{second:>6} {}", columns.collect::<Vec<_>>().join(" │ "));
        before.copy_from_slice(&now);
    }
    println!(
        "Busy is what the servers report. Calls go in turn until there have been reports for two seconds, then by them."
    );
    Ok(())
}

/// A server with the layer, in one line.
async fn serve(load: ServerLoad) -> Backend {
    let with_layer =
        move |routes: Routes| Routes::from(routes.prepare().into_axum_router().layer(load.layer()));
    Backend::builder().around(with_layer).start().await
}

/// Says how busy a server is that can do so many requests per second.
async fn say_how_busy(load: ServerLoad, capacity: f64) {
    let mut ticks = interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        load.set_application_utilization(load.report().rps_fractional / capacity);
    }
}

/// About 1,500 calls per second.
async fn call_steadily(channel: Channel) {
    let mut ticks = interval(Duration::from_millis(10));
    loop {
        ticks.tick().await;
        for _ in 0..15 {
            let mut client = EchoClient::new(channel.clone());
            tokio::spawn(async move { client.unary(EchoRequest::default()).await });
        }
    }
}
