//! One endpoint of many is replaced repeatedly, with the delta variant: bytes on the wire and cost for the
//! client.
//!
//! xDS sends a cluster's endpoints as one resource, so the size of an update grows with the cluster. In many
//! small clusters, the cost should not depend on the number of endpoints.

use std::fmt;
use std::time::{Duration, Instant};

use evenkeel::XdsVariant;
use evenkeel_control::ClusterPolicy;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use serde_json::json;

use super::harness::{ConfigHarness, FIRST, Shape, TEN, client, resources, resources_with};
use super::relay::Relay;
use super::{Args, affordable};
use crate::Error;
use crate::picks::one_replaced;
use crate::table::Table;
use crate::thresholds::{Threshold, ThresholdResult};

/// Time after all connections are established, and time of the idle measurement.
const SETTLE: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_secs(2);

/// Interval between updates, equal in all rows: if the control plane needs long to compute a change, caches
/// are cold and processors asleep afterwards. For the same reason it has the same number of small clusters in
/// all rows. Clients request more or fewer of them.
const PACE: Duration = Duration::from_millis(40);

/// Maximum cost of an update, relative to the row with the fewest endpoints.
const FLAT: Threshold = Threshold::AtMost(1.1);

pub(super) fn table(args: &Args) -> Result<(Table, Vec<ThresholdResult>), Error> {
    let columns = [
        "endpoints",
        "in clusters of",
        "replaced",
        "received, B",
        "sent, B",
        "client CPU, us",
        "of it the order, us",
        "at rest, us/s",
    ];
    let mut table = Table::new("One endpoint replaced, delta", &columns).note(format!(
        "Per update, of {} that are {} ms apart; the client is connected to all endpoints and makes no calls. The control plane \
         has the same number of clusters of ten in all rows; the client subscribes to those of its endpoints. Bytes of the ADS \
         stream. CPU of the client process, including the connection to the new endpoint. The order: rebuilding the schedule, \
         measured alone in this process. At rest: CPU of the process without updates, while each cluster updates its weights \
         once a second; during updates it does so once an hour. Instructions of an update are in another \
         table.",
        args.changes,
        PACE.as_millis()
    ));
    let mut thresholds = Vec::new();
    // One connection more than endpoints, while the old one closes.
    let counts = args.sizes.iter().map(|&size| affordable(size, 1)).collect::<Result<Vec<_>, _>>()?;
    let most = counts.iter().copied().max().unwrap_or_default();
    let in_one =
        |&count: &usize| Row { shape: Shape::OneCluster, count, there: count, replaced: Replaced::Any };
    let in_tens = |count: usize, replaced| {
        let shape = Shape::ClustersOfTen { routed: count };
        Row { shape, count, there: most, replaced }
    };
    let mut rows: Vec<Row> = counts.iter().map(in_one).collect();
    rows.extend(counts.iter().map(|&count| in_tens(count, Replaced::OneOfTen)));
    rows.push(in_tens(most, Replaced::Any));
    let mut first = None;
    for row in rows {
        let Row { shape, count, replaced, .. } = row;
        let each = if shape == Shape::OneCluster { count } else { count.min(TEN) };
        let Cost { received, sent, cpu, rest } = changes(row, args.changes)?;
        let order = one_replaced(each, args.changes)?;
        if replaced == Replaced::OneOfTen {
            let bytes = received + sent;
            let ratio = bytes / *first.get_or_insert(bytes);
            if count == most {
                let what = format!(
                    "one of {count} endpoints in clusters of ten replaced, delta, beside the fewest: bytes"
                );
                thresholds.push(ThresholdResult::figure(what, FLAT, Some(ratio)));
            }
        }
        let names = [count.to_string(), each.to_string(), replaced.to_string()].into_iter();
        let figures = [received, sent, cpu].map(|figure| format!("{figure:.0}"));
        table.row(names.chain(figures).chain([format!("{order:.1}"), format!("{rest:.0}")]).collect());
    }
    Ok((table, thresholds))
}

/// Parameters of a row. The client requests the first `count` of the existing endpoints.
#[derive(Clone, Copy)]
struct Row {
    shape: Shape,
    count: usize,
    there: usize,
    replaced: Replaced,
}

/// Endpoint that an update replaces.
#[derive(Clone, Copy, PartialEq)]
enum Replaced {
    /// One of the first ten in rotation: rows differ by the remaining endpoints only.
    OneOfTen,
    /// Any endpoint: caches hold little of its data.
    Any,
}

impl Replaced {
    fn index(self, change: u32, count: usize) -> usize {
        let change = change as usize;
        match self {
            Replaced::OneOfTen => change % count.min(TEN),
            Replaced::Any => (change * 7919) % count,
        }
    }
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Replaced::OneOfTen => "of the same ten",
            Replaced::Any => "any",
        })
    }
}

struct Cost {
    received: f64,
    sent: f64,
    /// Processor time of an update, in us.
    cpu: f64,
    /// Processor time without updates, in us per second.
    rest: f64,
}

fn changes(row: Row, changes: u32) -> Result<Cost, Error> {
    let Row { shape, count, there, replaced } = row;
    let mut harness = ConfigHarness::new()?;
    let mut endpoints = harness.endpoints(FIRST, there)?;
    harness.send(resources(shape, &endpoints));
    let relay = harness.runtime().block_on(Relay::start(harness.control().address()))?;
    let (mut client, _) = client(relay.address(), XdsVariant::Delta, None)?;
    client.ask(&format!("connected {count}"))?;
    harness.acked()?;
    // Let the work after the last connection complete.
    std::thread::sleep(SETTLE);
    let (rested, [before]) = (Instant::now(), client.numbers("cpu")?);
    std::thread::sleep(REST);
    let (rest, [after]) = (rested.elapsed(), client.numbers("cpu")?);
    let rest = after.saturating_sub(before) as f64 / rest.as_secs_f64();

    let policy = ClusterPolicy::with("weighted_round_robin", json!({ "weight_update_period": "3600s" }));
    harness.send(resources_with(shape, &endpoints, &policy));
    harness.acked_all::<Cluster>()?;
    std::thread::sleep(SETTLE);
    let (began, [before]) = (Instant::now(), client.numbers("cpu")?);
    let [received, sent] = relay.bytes();
    for change in 1..=changes {
        std::thread::sleep((PACE * change).saturating_sub(began.elapsed()));
        let i = replaced.index(change, count);
        // `changes` is bounded by the number of generations.
        let endpoint = harness.endpoint(FIRST + change as u8, i)?;
        endpoints[i] = endpoint;
        harness.send(resources_with(shape, &endpoints, &policy));
        harness.acked()?;
        harness.accepted(endpoint)?;
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
