//! Instructions and allocations of an update: one endpoint of ten is replaced, beside more or fewer other
//! clusters.
//!
//! The counted work spans from the control plane's message to the new picker. The client parses the message,
//! ACKs it, computes the change for its channel, and runs the passes that connect the new endpoint. Sockets,
//! threads and clocks are not involved, so the counts are deterministic. One process makes all updates, so
//! that valgrind starts once.

use std::net::SocketAddr;

use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, Resource};
use evenkeel_xds::ads::XdsVariant;
use evenkeel_xds::resource::ResourceType;
use prost::Message as _;
use testkit::XdsSim;

use super::cell;
use super::marks::{self, mark};
use crate::Error;
use crate::common::allocator::Totals;
use crate::config::{Shape, resources};
use crate::table::Table;
use crate::thresholds::{Threshold, ThresholdResult};

/// Number of counted updates of each size.
const UPDATES: u32 = 50;

/// Numbers of endpoints in the table.
const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

/// Maximum cost of an update, relative to that with the fewest endpoints.
const FLAT: Threshold = Threshold::AtMost(1.1);

/// Cost of one update with this number of endpoints.
pub(super) struct Counted {
    pub(super) endpoints: usize,
    /// `None` if valgrind is missing.
    pub(super) instructions: Option<f64>,
    pub(super) allocations: f64,
}

pub(super) fn table() -> Result<(Table, Option<ThresholdResult>), Error> {
    let columns = ["endpoints", "instructions", "beside the fewest", "allocations"];
    let mut table = Table::new("One endpoint replaced, counted", &columns).note(format!(
        "From the control plane's message (delta) to the new picker, of {UPDATES} updates. All are in clusters of ten, the same ten \
         in turn. Without sockets and threads.",
    ));
    let (mut first, mut threshold) = (None, None);
    for Counted { endpoints, instructions, allocations } in counted(&SIZES)? {
        first = first.or(instructions);
        let ratio = instructions.zip(first).map(|(this, first)| this / first);
        table.row(vec![
            endpoints.to_string(),
            cell(instructions, 0),
            cell(ratio, 3),
            cell(Some(allocations), 1),
        ]);
        let what = format!(
            "one of {endpoints} endpoints in clusters of ten replaced, delta, beside the fewest: instructions"
        );
        threshold = Some(ThresholdResult::figure(what, FLAT, ratio));
    }
    Ok((table, threshold))
}

/// Counts an update for each number of endpoints in a worker process.
pub(super) fn counted(sizes: &[usize]) -> Result<Vec<Counted>, Error> {
    let (allocations, sections) = marks::count("updates", UPDATES.into(), sizes)?;
    // Sections of preparation and updates alternate.
    let of_updates = sections.map(|all| all.into_iter().skip(1).step_by(2).collect::<Vec<_>>());
    let found = of_updates.as_ref().map_or(allocations.len(), Vec::len).min(allocations.len());
    if found != sizes.len() {
        return Err(format!("expected counts of {} sizes of updates, found {found}", sizes.len()).into());
    }
    let each = |sum: &f64| sum / f64::from(UPDATES);
    let counted = |(i, (&endpoints, allocations)): (usize, (&usize, &f64))| Counted {
        endpoints,
        instructions: of_updates.as_ref().and_then(|all| all.get(i)).map(each),
        allocations: each(allocations),
    };
    Ok(sizes.iter().zip(&allocations).enumerate().map(counted).collect())
}

/// Worker process: prints the allocations of the updates for each number of endpoints, and marks their start
/// and end.
pub(super) fn work(updates: u32, sizes: &[usize]) -> Result<(), Error> {
    for &size in sizes {
        let mut harness = UpdateHarness::new();
        let mut endpoints: Vec<SocketAddr> = (0..size).map(|i| endpoint(1, i)).collect();
        harness.take_all(&endpoints)?;
        endpoints.truncate(10);
        // The first updates are not counted: tables and lists grow to their final size.
        let mut messages = Vec::new();
        for update in 0..updates + WARM_UP {
            let i = update as usize % endpoints.len();
            endpoints[i] = endpoint(2 + (update as usize / 250) as u8, i * 256 + update as usize % 250);
            messages.push(harness.message(ResourceType::Endpoints, &endpoints)?);
        }
        let (warm_up, counted) = messages.split_at(WARM_UP as usize);
        warm_up.iter().try_for_each(|message| harness.take(message))?;
        mark();
        let (before, _) = Totals::now();
        let result = counted.iter().try_for_each(|message| harness.take(message));
        let (after, _) = Totals::now();
        mark();
        result?;
        println!("{}", after - before);
    }
    Ok(())
}

const WARM_UP: u32 = 20;

fn endpoint(generation: u8, i: usize) -> SocketAddr {
    let [high, low] = (i as u16).to_be_bytes();
    SocketAddr::from(([10, generation, high, low], 80))
}

/// Simulated channel, and the number of responses that it received.
struct UpdateHarness {
    sim: XdsSim,
    sent: u64,
}

impl UpdateHarness {
    fn new() -> UpdateHarness {
        UpdateHarness { sim: XdsSim::new("bench", XdsVariant::Delta), sent: 0 }
    }

    /// Applies all resources for these endpoints.
    fn take_all(&mut self, endpoints: &[SocketAddr]) -> Result<(), Error> {
        for kind in ResourceType::ALL {
            let message = self.message(kind, endpoints)?;
            self.sim.receive(&message);
        }
        let connected = self.sim.core().subchannel_count();
        if connected == endpoints.len() { Ok(()) } else { Err(format!("{connected} were connected").into()) }
    }

    /// Applies an update, which must change the config.
    fn take(&mut self, message: &[u8]) -> Result<(), Error> {
        self.sim.receive(message).ok_or("an update changed nothing")?;
        Ok(())
    }

    /// Encodes the resources of one type for these endpoints as a response.
    fn message(&mut self, kind: ResourceType, endpoints: &[SocketAddr]) -> Result<Vec<u8>, Error> {
        self.sent += 1;
        let all = resources(Shape::ClustersOfTen { routed: endpoints.len() }, endpoints);
        let resources = all.iter().filter(|(type_url, ..)| *type_url == kind.type_url());
        let resource = |(_, name, any): (_, &str, &_)| Resource {
            name: name.to_owned(),
            version: self.sent.to_string(),
            resource: Some(Clone::clone(any)),
            ..Resource::default()
        };
        let response = DeltaDiscoveryResponse {
            resources: resources.map(resource).collect(),
            type_url: kind.type_url().to_owned(),
            nonce: self.sent.to_string(),
            ..DeltaDiscoveryResponse::default()
        };
        if response.resources.is_empty() {
            Err(format!("no {kind}").into())
        } else {
            Ok(response.encode_to_vec())
        }
    }
}
