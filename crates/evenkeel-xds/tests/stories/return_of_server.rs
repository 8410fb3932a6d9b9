//! Many clients that lose their control plane at the same moment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Instant, Rng};
use evenkeel_xds::ads::{AdsClient, XdsVariant};
use evenkeel_xds::resource::ResourceType::Cluster;
use testkit::secs;

use crate::script::{ClientScript, MarkParser, bootstrap, reply};

const CLIENTS: usize = 1_000;

/// Window in which connection attempts are counted.
const WINDOW: Duration = Duration::from_millis(100);

/// Connection attempts of one client after the loss, as times since then.
struct ReconnectSchedule {
    /// Attempts while the server is down.
    failed: Vec<Duration>,
    /// The first attempt that succeeds.
    succeeded: Duration,
}

/// Returns the attempts of a client with this seed whose server is down for `outage`.
fn reconnects(seed: u64, outage: Duration) -> ReconnectSchedule {
    let bootstrap = bootstrap(&["one"]);
    let mut world = ClientScript::new(bootstrap.clone());
    world.client =
        AdsClient::new(Arc::new(bootstrap), MarkParser, XdsVariant::StateOfTheWorld, Rng::fixed(seed));
    world.channel(&[(Cluster, "a")]);
    world.accepts("one");
    world.sends("one", reply(Cluster, "1", &["a=1"]));
    world.passes(secs(100));
    let lost: Instant = world.now;
    world.ends("one", "gone");
    let mut failed = Vec::new();
    loop {
        world.redials("one");
        let at = world.now.since(lost);
        if at >= outage {
            world.accepts("one");
            world.sends("one", reply(Cluster, "2", &["a=2"]));
            assert_eq!(world.sees(Cluster, "a"), "2");
            return ReconnectSchedule { failed, succeeded: at };
        }
        failed.push(at);
        world.refuses("one");
    }
}

/// Returns the largest number of these times that fall into one window.
fn peak(mut times: Vec<Duration>) -> usize {
    times.sort_unstable();
    let in_window = |first: usize| times[first..].partition_point(|at| *at < times[first] + WINDOW);
    (0..times.len()).map(in_window).max().unwrap_or_default()
}

/// fault 14: a thousand clients lose the control plane at once, and it returns. Each has its own schedule, so
/// attempts disperse. Beyond the immediate first attempt, at most three in ten clients dial within 100 ms, and one in
/// five after the return.
#[test]
fn clients_return_to_a_server_one_by_one() {
    for outage in [secs(6), secs(60)] {
        let clients: Vec<_> = (0..CLIENTS as u64).map(|seed| reconnects(seed, outage)).collect();
        let schedules: BTreeSet<_> =
            clients.iter().map(|client| (client.failed.clone(), client.succeeded)).collect();
        assert_eq!(schedules.len(), CLIENTS, "no two clients have the same schedule");
        // The first attempt follows the loss at once: the stream that ended was in use.
        let later = |client: &ReconnectSchedule| client.failed.iter().skip(1).copied().collect::<Vec<_>>();
        let during: Vec<_> = clients.iter().flat_map(later).collect();
        assert!(during.len() >= 2 * CLIENTS, "clients retry during an outage of {outage:?}");
        let returned = clients.iter().map(|client| client.succeeded).collect();
        let (during, returned) = (peak(during), peak(returned));
        println!(
            "fault 14: outage of {outage:?}: at most {during} attempts in {WINDOW:?}, {returned} on return"
        );
        assert!(during <= CLIENTS * 3 / 10, "{during} attempts in {WINDOW:?}");
        assert!(returned <= CLIENTS / 5, "{returned} connections in {WINDOW:?}");
    }
}
