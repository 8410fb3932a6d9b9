//! One update replaces all endpoints under load.

use std::time::Duration;

use evenkeel::XdsVariant;

use super::harness::{ConfigHarness, FIRST, Shape, client, resources};
use super::{Args, VARIANTS, affordable, ms};
use crate::Error;
use crate::spread::Spread;
use crate::table::Table;
use crate::thresholds::{Threshold, ThresholdResult};

/// Call rates: milliseconds between calls.
const RATES: [(&str, u64); 2] = [("20/s", 50), ("all it can", 0)];

pub(super) fn table(args: &Args) -> Result<(Table, Vec<ThresholdResult>), Error> {
    let columns = [
        "variant",
        "endpoints",
        "calls",
        "ACK, ms",
        "in force, ms",
        "in force / ACK",
        "first call, ms",
        "all connected, ms",
        "late",
        "failed",
    ];
    let mut table = Table::new("All endpoints replaced", &columns).note(format!(
        "From the control plane's send, medians of {} updates (ratios with quartiles). In force: the channel is READY with a \
         new endpoint. First call: the first response of a new endpoint. Late: calls that started after that point and went to \
         old endpoints. Failed: failed calls. Old and new endpoints are connected at the same time, so there may be fewer than \
         requested.",
        args.swaps
    ));
    let mut thresholds = Vec::new();
    for (name, variant) in VARIANTS {
        for &size in &args.sizes {
            let count = affordable(size, 2)?;
            for (rate, every) in RATES {
                let figures = swaps(variant, count, every, args.swaps)?;
                if Some(&size) == args.sizes.last() {
                    let what = format!("{count} endpoints replaced, {name}, calls {rate}");
                    let ratio = figures.ratio()?;
                    let in_force = Some((ratio.median, format!("{ratio:.1}")));
                    thresholds.push(ThresholdResult::new(
                        format!("{what}: in force, times the ACK"),
                        Threshold::AtMost(3.0),
                        in_force,
                    ));
                    let lost = f64::from(figures.late + figures.failed);
                    thresholds.push(ThresholdResult::figure(
                        format!("{what}: calls failed or late"),
                        Threshold::AtMost(0.0),
                        Some(lost),
                    ));
                }
                let names = [name.to_owned(), count.to_string(), rate.to_owned()];
                table.row(names.into_iter().chain(figures.cells()?).collect());
            }
        }
    }
    Ok((table, thresholds))
}

#[derive(Default)]
struct Figures {
    acked: Vec<f64>,
    in_force: Vec<f64>,
    first: Vec<f64>,
    all: Vec<f64>,
    late: u32,
    failed: u32,
}

impl Figures {
    /// Returns the time until the update was in force, relative to that of the ACK.
    fn ratio(&self) -> Result<Spread, Error> {
        let ratios =
            self.in_force.iter().zip(&self.acked).map(|(in_force, acked)| in_force / acked).collect();
        Ok(Spread::of(ratios).ok_or("nothing was swapped")?)
    }

    fn cells(self) -> Result<[String; 7], Error> {
        let ratio = self.ratio()?;
        let median =
            |figures| Spread::of(figures).map_or_else(String::new, |spread| format!("{:.1}", spread.median));
        Ok([
            median(self.acked),
            median(self.in_force),
            format!("{ratio:.1}"),
            median(self.first),
            median(self.all),
            self.late.to_string(),
            self.failed.to_string(),
        ])
    }
}

fn swaps(variant: XdsVariant, count: usize, every: u64, swaps: u32) -> Result<Figures, Error> {
    let mut harness = ConfigHarness::new()?;
    harness.send(resources(Shape::OneCluster, &harness.endpoints(FIRST, count)?));
    let (mut client, _) = client(harness.control().address(), variant, Some(every))?;
    client.ask(&format!("connected {count}"))?;
    let mut figures = Figures::default();
    for swap in 1..=swaps {
        // More generations than any sensible number of swaps.
        let generation = FIRST + (swap % 200) as u8;
        let next = resources(Shape::OneCluster, &harness.endpoints(generation, count)?);
        client.ask(&format!("watch {generation}"))?;
        // At a different phase between two calls each time.
        std::thread::sleep(Duration::from_millis(every) * swap / swaps);
        let began = harness.send(next);
        let acked = harness.acked()?;
        let [first, ready] = client.numbers("swapped")?;
        let [all] = client.numbers(&format!("connected {count}"))?;
        let [late, failed] = client.numbers("since")?;
        // If the channel was READY all the time, the first response marks the change.
        let in_force = if ready == 0 { first } else { ready };
        figures.acked.push(ms(began, acked));
        figures.in_force.push(ms(began, in_force));
        figures.first.push(ms(began, first));
        figures.all.push(ms(began, all));
        figures.late += u32::try_from(late)?;
        figures.failed += u32::try_from(failed)?;
        harness.open(count)?;
    }
    Ok(figures)
}
