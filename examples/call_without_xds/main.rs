//! How do I get the same balancing without a control plane?
//!
//! The target is a DNS name or a list of addresses. gRPC's service config sets the policy, timeouts and
//! retries that xDS would set. Compare the shares: `pick_first` is gRPC's default.

use evenkeel::Channel;
use examples::{Backend, Outcome, Tally, connected};

/// round_robin, with up to two retries of UNAVAILABLE and a timeout of two seconds for the whole call.
const SERVICE_CONFIG: &str = r#"{
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [{
        "name": [{"service": "shop.Orders"}],
        "timeout": "2s",
        "retryPolicy": {
            "maxAttempts": 3,
            "initialBackoff": "0.05s",
            "maxBackoff": "1s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"]
        }
    }]
}"#;

#[tokio::main]
async fn main() -> Outcome {
    let servers = [Backend::start("a").await?, Backend::start("b").await?, Backend::start("c").await?];

    // A DNS name: all addresses are used, and resolved again when connections fail.
    let by_name = format!("dns:///localhost:{}", servers[0].address().port());
    let channel = Channel::builder(by_name).service_config(SERVICE_CONFIG).build()?;
    println!("a DNS name:             {}", Tally::of(&channel, 30).await);

    // A list of addresses.
    let list = servers.each_ref().map(|server| server.address().to_string()).join(",");
    let channel = Channel::builder(format!("ipv4:{list}")).service_config(SERVICE_CONFIG).build()?;
    connected(&channel, 3).await;
    println!("a list, in turn:        {}", Tally::of(&channel, 30).await);

    // One server fails: the retry policy sends its calls to the others.
    servers[1].set_failing(true);
    println!("one of them fails:      {}", Tally::of(&channel, 30).await);
    servers[1].set_failing(false);

    // No service config: pick_first uses one connection for all calls.
    let channel = evenkeel::channel(format!("ipv4:{list}"))?;
    println!("without service config: {}", Tally::of(&channel, 30).await);
    Ok(())
}
