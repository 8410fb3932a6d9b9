//! Example: write a custom policy, register it with one call, and run it on virtual time.
//!
//! `cargo run -p evenkeel-core --example custom_policy`

mod nearest;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::{
    CallOutcome, Code, Core, Endpoint, Endpoints, Instant, LbEffect, LbEvent, LbUpdate, LoadReport, Locality,
    PickArgs, PickResult, Registry, Rng,
};
use nearest::Nearest;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::standard();
    registry.register::<Nearest>("example.Nearest");
    let config = registry.parse_json(r#"[{"example.Nearest": {"zone": "a", "maxUtilization": 0.7}}]"#)?;

    let zone = |zone: &str| Arc::new(Locality { zone: zone.to_owned(), ..Locality::default() });
    let endpoints = Endpoints::list([
        Endpoint::at("10.0.0.1:443").with_locality(zone("a"), 1),
        Endpoint::at("10.0.1.1:443").with_locality(zone("b"), 1).with_weight(3),
        Endpoint::at("10.0.1.2:443").with_locality(zone("b"), 1),
    ]);
    let mut core = Core::builder(Rng::fixed(7)).build();
    core.update(LbUpdate::new(config, endpoints));
    let now = Instant::ORIGIN;
    let mut dialled = Vec::new();
    for effect in core.reconcile(now).effects {
        if let LbEffect::Connect { id, .. } = effect {
            core.handle(LbEvent::Connected(id), now);
            dialled.push(id);
        }
    }
    let picker = core.reconcile(now).picker.ok_or("nothing to pick from")?;

    let busy = |utilization| LoadReport { cpu_utilization: utilization, ..LoadReport::default() };
    for (utilization, label) in
        [(0.3, "zone a has room"), (0.9, "zone a is busy"), (0.5, "zone a has room again")]
    {
        // Out-of-band report, passed to the core as a driver does. The first dialled endpoint is the one in
        // zone a.
        core.handle(LbEvent::Load(dialled[0], busy(utilization)), now);
        core.reconcile(now);
        let mut counts = BTreeMap::new();
        for entropy in 0..1_000 {
            let PickResult::Complete(id, trackers) = picker.pick(&PickArgs::new("/demo.Demo/Get", entropy))
            else {
                continue;
            };
            let address = core.subchannel(id).map(|subchannel| subchannel.address().to_string());
            *counts.entry(address.unwrap_or_default()).or_insert(0) += 1;
            let load = busy(if id == dialled[0] { utilization } else { 0.2 });
            trackers.finish(&CallOutcome::Finished { code: Code::Ok, at: now, load: Some(&load) });
        }
        println!("{label:22} {counts:?}");
    }
    Ok(())
}
