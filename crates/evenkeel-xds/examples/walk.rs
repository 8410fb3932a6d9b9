//! One channel from its bootstrap to its picks, with a control plane inside this program. It prints the
//! requests, the responses, the resulting config, and the NACK of an invalid resource. It opens no sockets.
//!
//! `cargo run -p evenkeel-xds --example walk`

use std::error::Error;
use std::sync::Arc;

use evenkeel_core::cluster::{Cluster, stages};
use evenkeel_core::{
    CallOutcome, Code, Core, Instant, LbEffect as CoreEffect, LbEvent, PickArgs, PickResult, Registry, Rng,
    RootPicker,
};
use evenkeel_proto::envoy::service::discovery::v3::DiscoveryResponse;
use evenkeel_proto::prost::{Message, Name};
use evenkeel_xds::ads::{
    AdsClient, AdsEffect, AdsEvent, AdsRequest, AdsStreamId, ChangedResources, SubscriberId, XdsVariant,
};
use evenkeel_xds::bootstrap::Bootstrap;
use evenkeel_xds::resolver::{XdsResolver, XdsResolverOutput, XdsResolverUpdate};
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use evenkeel_xds::routing::ConfigSelector;
use testkit::resources::{any, cluster, listener_with_rds, load_assignment, route_config, weighted};

const BOOTSTRAP: &str = r#"{
  "xds_servers": [{ "server_uri": "control.example:443", "channel_creds": [{ "type": "tls" }] }],
  "node": { "id": "walk" }
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let bootstrap = Bootstrap::from_json(BOOTSTRAP)?;
    let target = bootstrap.listener_name("xds:///orders")?;
    println!("xds:///orders is the listener {:?}\n", target.listener.as_str());
    let mut walk = ExampleChannel::new(bootstrap, target.listener.as_str(), &target.authority);

    walk.send("a listener that points at routes", &listener_with_rds("orders", "routes"));
    walk.send("routes: every call to the cluster orders-eu", &route_config("routes", "orders-eu"));
    walk.send("the cluster: endpoints from this stream", &cluster("orders-eu"));
    let endpoints = load_assignment("orders-eu", &["10.0.0.1:80", "10.0.0.2:80"]);
    walk.send("two endpoints, weights 2 and 4", &weighted(endpoints, [2, 4]));
    println!("\ntwelve calls: {}", walk.calls(12));

    let bad = load_assignment("orders-eu", &["10.0.0.9:80", "10.0.0.9:80"]);
    println!();
    walk.send("a duplicate address", &bad);
    println!("\nand the calls go on: {}", walk.calls(6));
    walk.show_stages()
}

/// Driver of one channel.
struct ExampleChannel {
    client: AdsClient,
    channel: SubscriberId,
    stream: Option<AdsStreamId>,
    resolver: XdsResolver,
    core: Core,
    picker: Option<RootPicker>,
    selector: Option<Arc<ConfigSelector>>,
    sent: u64,
}

impl ExampleChannel {
    fn new(bootstrap: Bootstrap, listener: &str, authority: &str) -> ExampleChannel {
        let node = bootstrap.node.id.clone();
        let parser = ResourceParser::new(Registry::standard());
        let mut client =
            AdsClient::new(Arc::new(bootstrap), parser, XdsVariant::StateOfTheWorld, Rng::from_entropy(1));
        let channel = client.add_subscriber();
        let mut walk = ExampleChannel {
            client,
            channel,
            stream: None,
            resolver: XdsResolver::new(listener, authority, &node, 7, Arc::new(|| ())),
            core: Core::builder(Rng::fixed(1)).build(),
            picker: None,
            selector: None,
            sent: 0,
        };
        walk.follow(&ChangedResources::Anything);
        walk
    }

    /// Sends a resource from the control plane.
    fn send<M: Name>(&mut self, what: &str, message: &M) {
        println!("  sends  {what}");
        self.sent += 1;
        let response = DiscoveryResponse {
            version_info: self.sent.to_string(),
            resources: vec![any(message)],
            type_url: M::type_url(),
            nonce: format!("n{}", self.sent),
            ..DiscoveryResponse::default()
        };
        let stream = self.stream.expect("the client opened a stream");
        self.client.handle(AdsEvent::Message { stream, bytes: &response.encode_to_vec() }, Instant::ORIGIN);
        self.run();
    }

    /// Performs the effects that the client returns.
    fn run(&mut self) {
        while let Some(effect) = self.client.poll_effect() {
            match effect {
                AdsEffect::Open { stream, server, .. } => {
                    println!("opens a stream to {}", server.uri);
                    self.stream = Some(stream);
                    self.client.handle(AdsEvent::Opened { stream }, Instant::ORIGIN);
                }
                AdsEffect::Send { stream, request } => {
                    show(&request);
                    self.client.handle(AdsEvent::Written { stream }, Instant::ORIGIN);
                }
                AdsEffect::Warn(text) | AdsEffect::Info(text) => println!("  tells  {text}"),
                AdsEffect::Read { .. } | AdsEffect::Close { .. } => {}
            }
        }
        while let Some((id, changed)) = self.client.poll_changed() {
            self.follow(&changed);
            self.client.processed(id);
        }
    }

    /// Resolves the known resources, subscribes to missing ones, and applies a complete config.
    fn follow(&mut self, changed: &ChangedResources) {
        let XdsResolverOutput { watches, update } = self.resolver.update(changed, [], &self.client);
        if let Some(watches) = watches {
            self.client.watch(self.channel, watches.resources, Instant::ORIGIN);
        }
        if let Some(XdsResolverUpdate { update, route }) = update {
            self.core.update(update);
            self.connect();
            self.selector = route.ok();
        }
        self.run();
    }

    /// Connects every subchannel at once.
    fn connect(&mut self) {
        let now = Instant::ORIGIN;
        for effect in self.core.reconcile(now).effects {
            if let CoreEffect::Connect { id, .. } = effect {
                self.core.handle(LbEvent::Connected(id), now);
            }
        }
        self.picker = self.core.reconcile(now).picker.or(self.picker.take());
    }

    fn calls(&mut self, n: u64) -> String {
        let (Some(selector), Some(picker)) = (&self.selector, &self.picker) else { return "wait".to_owned() };
        let mut went = String::new();
        for entropy in 0..n {
            let call = PickArgs::new("/shop.Orders/Get", entropy);
            let Ok(selected) = selector.select(&call) else { return "no route".to_owned() };
            match picker.pick(&call.with_cluster(selected.cluster().child()).with_hash(selected.hash())) {
                PickResult::Complete(id, trackers) => {
                    let address = self.core.subchannel(id).map(|subchannel| subchannel.address().to_string());
                    let last = address.unwrap_or_default();
                    went.push_str(if last.starts_with("10.0.0.1:") { "1" } else { "2" });
                    trackers.finish(&CallOutcome::Finished {
                        code: Code::Ok,
                        at: Instant::ORIGIN,
                        load: None,
                    });
                }
                other => return format!("{other:?}"),
            }
        }
        went
    }

    /// Prints the inputs of the cluster's policies, stage by stage.
    fn show_stages(&self) -> Result<(), Box<dyn Error>> {
        let config = self.resolver.config().ok_or("there is a config")?;
        let Some(Ok(cluster)) = config.clusters.cluster("orders-eu") else { return Ok(()) };
        let Cluster::Leaf(leaf) = &**cluster else { return Ok(()) };
        let set = config.clusters.endpoint_set(&leaf.source).ok_or("there are endpoints")?;
        let stages = stages(leaf, set);
        for (name, config) in [
            ("the cluster's policy", &stages.lb_policy_config),
            ("xds_cluster_resolver_experimental", &stages.cluster_resolver),
            ("priority_experimental", &stages.priority),
        ] {
            println!("\n{name}\n{}", serde_json::to_string_pretty(config)?);
        }
        if let Some(config) = &stages.weighted_target {
            println!("\nweighted_target_experimental\n{}", serde_json::to_string_pretty(config)?);
        }
        Ok(())
    }
}

fn show(request: &AdsRequest) {
    let AdsRequest::Sotw(request) = request else { return };
    let kind =
        ResourceType::from_type_url(&request.type_url).map_or_else(String::new, |kind| kind.to_string());
    match &request.error_detail {
        Some(error) => println!("refuses  {}", error.message),
        None if request.response_nonce.is_empty() => println!("   asks  {kind} {:?}", request.resource_names),
        None => println!("accepts  {kind} version {}", request.version_info),
    }
}
