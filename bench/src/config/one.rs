//! One endpoint of many is replaced, again and again, over delta: what goes over the wire and what it costs the client.
//!
//! xDS sends a cluster's endpoints as one resource, so that what is sent grows with the cluster, and with it what the client
//! reads. In many small clusters, as many endpoints should cost no more than few.

use evenkeel::Variant;

use super::bed::{Bed, FIRST, Shape, client, resources};
use super::relay::Relay;
use super::{Args, affordable};
use crate::Error;
use crate::bars::{Bar, Reach};
use crate::picks::one_replaced;
use crate::table::Table;

/// What an update may cost beside one of the fewest endpoints and still count as the same.
const FLAT: Bar = Bar::AtMost(1.1);

pub(super) fn table(args: &Args) -> Result<(Table, Vec<Reach>), Error> {
    let columns =
        ["endpoints", "in clusters of", "received, B", "sent, B", "client CPU, us", "of it the order, us"];
    let mut table = Table::new("One endpoint replaced, delta", &columns).note(format!(
        "Per update, of {} one after the other; the client is connected to all endpoints and makes no calls. Bytes of the stream \
         with the control plane. CPU of the client process, connecting to the new endpoint included. The order: making it \
         anew, measured by itself in this process.",
        args.changes
    ));
    let mut bars = Vec::new();
    for shape in [Shape::OneCluster, Shape::ClustersOfTen] {
        let mut first = None;
        for &size in &args.sizes {
            // One more than there are, while a connection ends.
            let count = affordable(size, 1)?;
            let each = if shape == Shape::OneCluster { count } else { count.min(10) };
            let Cost { received, sent, cpu } = changes(shape, count, args.changes)?;
            let order = one_replaced(each, args.changes)?;
            let (bytes, rest) = (received + sent, cpu - order);
            let (bytes_of_first, rest_of_first) = *first.get_or_insert((bytes, rest));
            if shape == Shape::ClustersOfTen && Some(&size) == args.sizes.last() {
                let what =
                    format!("one of {count} endpoints in clusters of ten replaced, delta, beside the fewest");
                bars.push(Reach::figure(format!("{what}: bytes"), FLAT, Some(bytes / bytes_of_first)));
                bars.push(Reach::figure(
                    format!("{what}: CPU without the order"),
                    FLAT,
                    Some(rest / rest_of_first),
                ));
            }
            let figures =
                [format!("{received:.0}"), format!("{sent:.0}"), format!("{cpu:.0}"), format!("{order:.1}")];
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
}

fn changes(shape: Shape, count: usize, changes: u32) -> Result<Cost, Error> {
    let mut bed = Bed::new()?;
    let mut endpoints = bed.endpoints(FIRST, count)?;
    bed.send(resources(shape, &endpoints));
    let relay = bed.runtime().block_on(Relay::start(bed.control().address()))?;
    let (mut client, _) = client(relay.address(), Variant::Delta, None)?;
    client.ask(&format!("connected {count}"))?;
    bed.acked()?;
    let [before] = client.numbers("cpu")?;
    let [received, sent] = relay.bytes();
    for change in 1..=changes {
        // All over the list; `changes` is bounded by the generations that there are.
        let i = (change as usize * 7919) % count;
        let endpoint = bed.endpoint(FIRST + change as u8, i)?;
        endpoints[i] = endpoint;
        bed.send(resources(shape, &endpoints));
        bed.acked()?;
        bed.accepted(endpoint)?;
    }
    let [after] = client.numbers("cpu")?;
    let [received_now, sent_now] = relay.bytes();
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / f64::from(changes);
    Ok(Cost {
        received: each(received, received_now),
        sent: each(sent, sent_now),
        cpu: each(before, after) / 1e3,
    })
}
