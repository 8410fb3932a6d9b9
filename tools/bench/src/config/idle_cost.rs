//! Processor time and wake-ups of channels without calls.

use std::thread::sleep;
use std::time::Duration;

use evenkeel::XdsVariant;

use super::harness::{ConfigHarness, FIRST, Shape, TEN, client_with, resources_with};
use super::{Args, ms, now};
use crate::Error;
use crate::table::Table;
use crate::thresholds::{Threshold, ThresholdResult};

/// Time without calls before the measurement, in which start-up completes.
const SETTLING: Duration = Duration::from_secs(5);

/// Time over which processor time and wake-ups are counted.
const MEASURED: Duration = Duration::from_secs(10);

pub(super) fn table(args: &Args) -> Result<(Table, Vec<ThresholdResult>), Error> {
    let columns = ["policy", "channels", "CPU, ms/s", "wake-ups/s"];
    let mut table = Table::new("Channels without calls", &columns).note(format!(
        "One process, {TEN} connected endpoints for each channel. Wake-ups: voluntary context switches of all threads."
    ));
    let mut thresholds = Vec::new();
    for policy in ["round_robin", "weighted_round_robin"] {
        let mut harness = ConfigHarness::new()?;
        harness.send(resources_with(Shape::OneCluster, &harness.endpoints(FIRST, TEN)?, &policy.into()));
        let channels = format!("--channels={}", args.channels);
        let address = harness.control().address();
        let (mut client, _) =
            client_with(address, XdsVariant::StateOfTheWorld, None, &["--workers=1", &channels])?;
        harness.accepted_in_all(u64::from(args.channels) * TEN as u64)?;
        sleep(SETTLING);
        let (cpu, switches, began) = (client.numbers("cpu")?, client.numbers("switches")?, now());
        sleep(MEASURED);
        let (cpu_after, switches_after, ended) = (client.numbers("cpu")?, client.numbers("switches")?, now());
        let seconds = ms(began, ended) / 1e3;
        let [[cpu], [cpu_after], [switches], [switches_after]] = [cpu, cpu_after, switches, switches_after];
        let cpu = ms(cpu, cpu_after) / seconds;
        let wake_ups = switches_after.saturating_sub(switches) as f64 / seconds;
        table.row(vec![
            policy.to_owned(),
            args.channels.to_string(),
            format!("{cpu:.3}"),
            format!("{wake_ups:.1}"),
        ]);
        let what = format!("{} channels with {policy} without calls: CPU, ms/s", args.channels);
        thresholds.push(ThresholdResult::figure(what, Threshold::AtMost(0.1), Some(cpu)));
    }
    Ok((table, thresholds))
}
