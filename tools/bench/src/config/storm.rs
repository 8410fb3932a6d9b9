//! Calls while thousands of connections are established: after an update that replaces all endpoints, and at
//! start-up.
//!
//! The client has one worker thread and four callers in a closed loop. Calls, connection attempts and passes
//! of the core therefore compete for one processor. Calls are counted per half second, relative to the same
//! run without the storm.

use std::thread::sleep;
use std::time::Duration;

use evenkeel::XdsVariant;

use super::client::WINDOW_NANOS;
use super::harness::{ConfigHarness, FIRST, Shape, client_with, resources};
use super::{Args, affordable, ms, now};
use crate::Error;
use crate::common::process::WorkerProcess;
use crate::table::Table;
use crate::thresholds::{Threshold, ThresholdResult};

/// Time of undisturbed calls, before a replacement and after a start.
const CALM: Duration = Duration::from_secs(3);

/// Number of undisturbed windows used as reference.
const CALM_WINDOWS: usize = 4;

pub(super) fn tables(args: &Args) -> Result<(Table, Table, Vec<ThresholdResult>), Error> {
    let columns = ["storm", "from, s", "calls/s", "of the calm", "p50, ms", "p99, ms"];
    let mut windows = Table::new("Calls while thousands of connections are made, per half second", &columns)
        .note(
            "One worker thread, four callers in a closed loop, weighted_round_robin. Seconds are since the control plane's send, \
             or since the first response of the process. The calm is the median of undisturbed half seconds of the same run.",
        );
    let columns = [
        "storm",
        "endpoints",
        "all connected, ms",
        "schedules",
        "client CPU, ms",
        "least of the calm",
        "greatest p99, ms",
        "failed",
    ];
    let mut summary = Table::new("Calls while thousands of connections are made", &columns).note(
        "Schedules: computed by the policy until all were connected. Client CPU: of all threads until then, including calls.",
    );
    let mut thresholds = Vec::new();
    let size = args.sizes.iter().copied().max().unwrap_or(0);
    let count = affordable(size, 2)?;
    for (name, storm) in [("replaced", replace(count)?), ("start", start(count)?)] {
        for window in &storm.windows {
            windows.row(vec![
                name.to_owned(),
                format!("{:.1}", window.from),
                format!("{:.0}", window.calls * 1e9 / WINDOW_NANOS as f64),
                format!("{:.2}", window.share),
                format!("{:.2}", window.p50),
                format!("{:.2}", window.p99),
            ]);
        }
        let least = storm.windows.iter().map(|window| window.share).reduce(f64::min);
        let p99 = storm.windows.iter().map(|window| window.p99).reduce(f64::max);
        let show = |figure: Option<f64>| figure.map_or_else(String::new, |figure| format!("{figure:.2}"));
        summary.row(vec![
            name.to_owned(),
            count.to_string(),
            format!("{:.0}", storm.connected),
            storm.schedules.to_string(),
            format!("{:.0}", storm.cpu),
            show(least),
            show(p99),
            storm.failed.to_string(),
        ]);
        let what = format!("{count} endpoints, one worker, {name}");
        thresholds.push(ThresholdResult::figure(
            format!("{what}: calls of a half second, of the calm"),
            Threshold::AtLeast(0.5),
            least,
        ));
        thresholds.push(ThresholdResult::figure(format!("{what}: p99, ms"), Threshold::AtMost(5.0), p99));
    }
    Ok((windows, summary, thresholds))
}

/// Figures of one storm.
struct Storm {
    windows: Vec<Window>,
    connected: f64,
    schedules: u64,
    cpu: f64,
    failed: u64,
}

/// Half a second of calls.
struct Window {
    /// Start in seconds after the start of the storm.
    from: f64,
    calls: f64,
    /// Calls relative to those of an undisturbed window.
    share: f64,
    p50: f64,
    p99: f64,
}

fn replace(count: usize) -> Result<Storm, Error> {
    let mut harness = ConfigHarness::new()?;
    harness.send(resources(Shape::OneCluster, &harness.endpoints(FIRST, count)?));
    let mut client = start_client(&harness)?;
    harness.accepted_in_all(count as u64)?;
    client.ask(&format!("connected {count}"))?;
    sleep(CALM);
    let next = resources(Shape::OneCluster, &harness.endpoints(FIRST + 1, count)?);
    client.ask(&format!("watch {}", FIRST + 1))?;
    let before = Totals::of(&mut client)?;
    let accepted = harness.accepted_so_far()?;
    let began = harness.send(next);
    harness.accepted_in_all(accepted + count as u64)?;
    let [connected] = client.numbers(&format!("connected {count}"))?;
    let after = Totals::of(&mut client)?;
    // Old connections are closed under load too.
    harness.open(count)?;
    let ended = now();
    sleep(Duration::from_nanos(2 * WINDOW_NANOS));
    let mut windows = windows(&mut client)?;
    let first = windows.iter().position(|window| window.ends_at() > began).unwrap_or(0);
    let calm = &windows[first.saturating_sub(CALM_WINDOWS)..first];
    let calm = median(calm.iter().map(|window| window.calls).collect());
    windows.retain(|window| window.ends_at() > began && window.at < ended);
    Storm::new(
        &mut client,
        &windows,
        began,
        calm,
        [ms(began, connected), before.until(&after)],
        &before,
        &after,
    )
}

fn start(count: usize) -> Result<Storm, Error> {
    let mut harness = ConfigHarness::new()?;
    harness.send(resources(Shape::OneCluster, &harness.endpoints(FIRST, count)?));
    let started = now();
    let mut client = start_client(&harness)?;
    harness.accepted_in_all(count as u64)?;
    let [connected] = client.numbers(&format!("connected {count}"))?;
    let after = Totals::of(&mut client)?;
    sleep(CALM);
    let mut windows = windows(&mut client)?;
    let began = windows.first().map_or(started, |window| window.at);
    // The last window is incomplete.
    windows.pop();
    let calm = &windows[windows.len().saturating_sub(CALM_WINDOWS)..];
    let calm = median(calm.iter().map(|window| window.calls).collect());
    windows.retain(|window| window.at < connected);
    let before = Totals::default();
    Storm::new(
        &mut client,
        &windows,
        began,
        calm,
        [ms(started, connected), before.until(&after)],
        &before,
        &after,
    )
}

impl Storm {
    fn new(
        client: &mut WorkerProcess,
        windows: &[RawWindow],
        began: u64,
        calm: f64,
        [connected, cpu]: [f64; 2],
        before: &Totals,
        after: &Totals,
    ) -> Result<Storm, Error> {
        let [_, failed] = client.numbers("since")?;
        let windows = windows.iter().map(|window| Window {
            from: (window.at as f64 - began as f64) / 1e9,
            calls: window.calls,
            share: window.calls / calm.max(1.0),
            p50: window.p50,
            p99: window.p99,
        });
        let schedules = after.schedules - before.schedules;
        Ok(Storm { windows: windows.collect(), connected, schedules, cpu, failed })
    }
}

/// Totals of a client since its start.
#[derive(Default)]
struct Totals {
    schedules: u64,
    cpu: u64,
}

impl Totals {
    fn of(client: &mut WorkerProcess) -> Result<Totals, Error> {
        let [schedules] = client.numbers("weighed")?;
        let [cpu] = client.numbers("cpu")?;
        Ok(Totals { schedules, cpu })
    }

    /// Returns the processor time up to a later moment, in milliseconds.
    fn until(&self, later: &Totals) -> f64 {
        ms(self.cpu, later.cpu)
    }
}

fn start_client(harness: &ConfigHarness) -> Result<WorkerProcess, Error> {
    let address = harness.control().address();
    let (client, _) = client_with(address, XdsVariant::StateOfTheWorld, Some(0), &["--workers=1"])?;
    Ok(client)
}

/// Half a second as the client reports it.
struct RawWindow {
    at: u64,
    calls: f64,
    p50: f64,
    p99: f64,
}

impl RawWindow {
    fn ends_at(&self) -> u64 {
        self.at + WINDOW_NANOS
    }
}

fn windows(client: &mut WorkerProcess) -> Result<Vec<RawWindow>, Error> {
    let numbers = client.list("windows")?;
    let (start, figures) = numbers.split_first().ok_or("the client reported no windows")?;
    let (figures, _) = figures.as_chunks::<3>();
    let window = |(i, &[calls, p50, p99]): (u64, &[u64; 3])| RawWindow {
        at: start + i * WINDOW_NANOS,
        calls: calls as f64,
        p50: p50 as f64 / 1e3,
        p99: p99 as f64 / 1e3,
    };
    Ok((0..).zip(figures).map(window).collect())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}
