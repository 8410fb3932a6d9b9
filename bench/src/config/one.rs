//! One endpoint of many is replaced, again and again, over delta: what goes over the wire and what it costs the client.
//!
//! xDS sends a cluster's endpoints as one resource, so that what is sent grows with the cluster, and with it what the client
//! reads. In many small clusters, as many endpoints should cost no more than few.

use std::time::{Duration, Instant};

use evenkeel::Variant;
use evenkeel_control::Policy;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use serde_json::json;

use super::bed::{Bed, FIRST, Shape, client, resources, resources_with};
use super::relay::Relay;
use super::{Args, affordable};
use crate::Error;
use crate::bars::{Bar, Reach};
use crate::picks::one_replaced;
use crate::table::Table;

/// How long the client is left alone once it is connected, and how long it is watched at rest.
const SETTLE: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(3);

/// How far updates are apart, in all rows alike: where the control plane takes long to find out what changed, caches are cold
/// and processors asleep when it has. For the same reason it has as many small clusters in all rows, of which clients ask for
/// more or fewer.
const PACE: Duration = Duration::from_millis(40);

/// What an update may cost beside one of the fewest endpoints and still count as the same.
const FLAT: Bar = Bar::AtMost(1.1);

pub(super) fn table(args: &Args) -> Result<(Table, Vec<Reach>), Error> {
    let columns = [
        "endpoints",
        "in clusters of",
        "received, B",
        "sent, B",
        "client CPU, us",
        "of it the order, us",
        "at rest, us/s",
    ];
    let mut table = Table::new("One endpoint replaced, delta", &columns).note(format!(
        "Per update, of {} that come {} ms apart; the client is connected to all endpoints and makes no calls. The control plane has as \
         many clusters of ten in all rows; the client asks for those of its endpoints. Bytes of the stream \
         with the control plane. CPU of the client process, connecting to the new endpoint included. The order: making it anew, measured \
         by itself in this process. At rest: what the process takes while nothing changes and each cluster looks up its weights \
         once a second; while updates come it looks them up once an hour.",
        args.changes,
        PACE.as_millis()
    ));
    let mut bars = Vec::new();
    // One more than there are, while a connection ends.
    let counts = args.sizes.iter().map(|&size| affordable(size, 1)).collect::<Result<Vec<_>, _>>()?;
    let most = counts.iter().copied().max().unwrap_or_default();
    for is_in_tens in [false, true] {
        let mut first = None;
        for &count in &counts {
            let (shape, there, each) = if is_in_tens {
                (Shape::ClustersOfTen { routed: count }, most, count.min(10))
            } else {
                (Shape::OneCluster, count, count)
            };
            let Cost { received, sent, cpu, rest: at_rest } = changes(shape, count, there, args.changes)?;
            let order = one_replaced(each, args.changes)?;
            let (bytes, rest) = (received + sent, cpu - order);
            let (bytes_of_first, rest_of_first) = *first.get_or_insert((bytes, rest));
            if is_in_tens && Some(&count) == counts.last() {
                let what =
                    format!("one of {count} endpoints in clusters of ten replaced, delta, beside the fewest");
                bars.push(Reach::figure(format!("{what}: bytes"), FLAT, Some(bytes / bytes_of_first)));
                bars.push(Reach::figure(
                    format!("{what}: CPU without the order"),
                    FLAT,
                    Some(rest / rest_of_first),
                ));
            }
            let figures = [
                format!("{received:.0}"),
                format!("{sent:.0}"),
                format!("{cpu:.0}"),
                format!("{order:.1}"),
                format!("{at_rest:.0}"),
            ];
            table.row([count.to_string(), each.to_string()].into_iter().chain(figures).collect());
        }
    }
    Ok((table, bars))
}

struct Cost {
    received: f64,
    sent: f64,
    /// In us.
    cpu: f64,
    /// What it takes at rest, in us per second.
    rest: f64,
}

/// The client asks for the first `count` of the endpoints that are there.
fn changes(shape: Shape, count: usize, there: usize, changes: u32) -> Result<Cost, Error> {
    let mut bed = Bed::new()?;
    let mut endpoints = bed.endpoints(FIRST, there)?;
    bed.send(resources(shape, &endpoints));
    let relay = bed.runtime().block_on(Relay::start(bed.control().address()))?;
    let (mut client, _) = client(relay.address(), Variant::Delta, None)?;
    client.ask(&format!("connected {count}"))?;
    bed.acked()?;
    // What is left to do once all are connected comes before.
    std::thread::sleep(SETTLE);
    let (rested, [before]) = (Instant::now(), client.numbers("cpu")?);
    std::thread::sleep(REST);
    let (rest, [after]) = (rested.elapsed(), client.numbers("cpu")?);
    let rest = after.saturating_sub(before) as f64 / rest.as_secs_f64();

    let policy = Policy::with("weighted_round_robin", json!({ "weight_update_period": "3600s" }));
    bed.send(resources_with(shape, &endpoints, &policy));
    bed.acked_all::<Cluster>()?;
    std::thread::sleep(SETTLE);
    let (began, [before]) = (Instant::now(), client.numbers("cpu")?);
    let [received, sent] = relay.bytes();
    for change in 1..=changes {
        std::thread::sleep((PACE * change).saturating_sub(began.elapsed()));
        // All over the list; `changes` is bounded by the generations that there are.
        let i = (change as usize * 7919) % count;
        let endpoint = bed.endpoint(FIRST + change as u8, i)?;
        endpoints[i] = endpoint;
        bed.send(resources_with(shape, &endpoints, &policy));
        bed.acked()?;
        bed.accepted(endpoint)?;
    }
    let [after] = client.numbers("cpu")?;
    let [received_now, sent_now] = relay.bytes();
    let each = |sum: f64| sum / f64::from(changes);
    Ok(Cost {
        received: each(received_now.saturating_sub(received) as f64),
        sent: each(sent_now.saturating_sub(sent) as f64),
        cpu: each(after.saturating_sub(before) as f64) / 1e3,
        rest: rest / 1e3,
    })
}
