//! How do I get the same balancing without a control plane?
//!
//! A target can be a DNS name or a list of addresses; gRPC's service config says what routes and clusters would say: the policy,
//! timeouts, retries. Look at the shares: `pick_first` is what gRPC does unless told otherwise.

use evenkeel::Channel;
use examples::{Backend, Outcome, Tally, connected};

/// Every server in turn; what fails as UNAVAILABLE is tried again, up to three times, all within two seconds.
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

    // A name: all its addresses are used, and looked up again when connections fail.
    let by_name = format!("dns:///localhost:{}", servers[0].address().port());
    let channel = Channel::builder(by_name).service_config(SERVICE_CONFIG).build()?;
    println!("a DNS name:             {}", Tally::of(&channel, 30).await);

    // A list.
    let list = servers.each_ref().map(|server| server.address().to_string()).join(",");
    let channel = Channel::builder(format!("ipv4:{list}")).service_config(SERVICE_CONFIG).build()?;
    connected(&channel, 3).await;
    println!("a list, in turn:        {}", Tally::of(&channel, 30).await);

    // One of them has trouble: the retry policy takes its calls elsewhere.
    servers[1].set_failing(true);
    println!("one of them fails:      {}", Tally::of(&channel, 30).await);
    servers[1].set_failing(false);

    // Nothing said: one connection for everything.
    let channel = evenkeel::channel(format!("ipv4:{list}"))?;
    println!("without service config: {}", Tally::of(&channel, 30).await);
    Ok(())
}
