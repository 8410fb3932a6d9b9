//! Figures of a scenario by round, and their table.

use std::fmt::Write as _;

use crate::Error;
use crate::calls::bench_clients::{BenchClient, HYPER};
use crate::calls::harness::Figures;
use crate::calls::ratio::{Ratio, median};
use crate::calls::scenario::Scenario;
use crate::table::Table;

/// Figures of every client in every round.
pub(crate) struct Results {
    pub(crate) scenario: Scenario,
    threads: usize,
    rows: Vec<Row>,
    left_out: String,
}

struct Row {
    client: BenchClient,
    /// Figures with the number of the round, since a round may have failed.
    rounds: Vec<(usize, Figures)>,
    failure: Option<String>,
}

impl Results {
    pub(crate) fn new(
        scenario: Scenario,
        clients: &[BenchClient],
        threads: usize,
        left_out: String,
    ) -> Results {
        let row = |client: &BenchClient| Row { client: *client, rounds: Vec::new(), failure: None };
        Results { scenario, threads, rows: clients.iter().map(row).collect(), left_out }
    }

    pub(crate) fn add(&mut self, round: usize, client: BenchClient, figures: Figures) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.client == client) {
            row.rounds.push((round, figures));
        }
    }

    pub(crate) fn fail(&mut self, client: BenchClient, error: &Error) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.client == client) {
            let first = error.to_string().lines().next().unwrap_or_default().to_owned();
            row.failure.get_or_insert(first);
        }
    }

    /// Returns the ratio of one client's figure to another's, per round.
    pub(crate) fn ratio(
        &self,
        client: BenchClient,
        base: BenchClient,
        figure: impl Fn(&Figures) -> f64,
    ) -> Option<Ratio> {
        let row = |client| self.rows.iter().find(|row| row.client == client);
        let (row, base) = (row(client)?, row(base)?);
        Ratio::of_rounds(row.rounds.iter().filter_map(|(round, figures)| {
            let (_, base) = base.rounds.iter().find(|(of_base, _)| of_base == round)?;
            Some((figure(figures), figure(base)))
        }))
    }

    pub(crate) fn table(&self) -> Table {
        let columns = [
            "client",
            "calls/s",
            "p50, µs",
            "p99, µs",
            "p99.9, µs",
            "CPU per call, µs",
            "busy",
            "calls/s beside hyper",
            "CPU beside hyper",
        ];
        let mut table = Table::new(self.scenario.to_string(), &columns).note(self.note());
        for row in &self.rows {
            table.row(self.cells(row));
        }
        table
    }

    fn note(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        let mut note = format!("Clients have {} thread{plural}.", self.threads);
        if !self.left_out.is_empty() {
            note.push(' ');
            note.push_str(&self.left_out);
        }
        for row in &self.rows {
            if let Some(failure) = &row.failure {
                // Writing to a `String` cannot fail.
                let _ = write!(note, " A run failed: {failure}.");
            }
        }
        note
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let middle = |figure: &dyn Fn(&Figures) -> f64, digits: usize| {
            let values = row.rounds.iter().map(|(_, figures)| figure(figures)).collect();
            median(values).map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let beside = |figure: &dyn Fn(&Figures) -> f64| {
            self.ratio(row.client, HYPER, figure).map_or("-".to_owned(), |ratio| ratio.to_string())
        };
        vec![
            row.client.name.to_owned(),
            middle(&Figures::throughput, 0),
            middle(&|figures| figures.p50 * 1e6, 0),
            middle(&|figures| figures.p99 * 1e6, 0),
            middle(&|figures| figures.p999 * 1e6, 0),
            middle(&|figures| figures.cpu_per_call() * 1e6, 2),
            middle(&|figures| figures.cpu / figures.elapsed, 2),
            beside(&Figures::throughput),
            beside(&Figures::cpu_per_call),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::bench_clients::{EVENKEEL, TONIC_XDS};
    use crate::calls::scenario::BASE;

    fn figures(calls: f64, cpu: f64) -> Figures {
        Figures { calls, elapsed: 2.0, cpu, p50: 1e-3, p99: 2e-3, p999: 3e-3 }
    }

    fn results() -> Results {
        let mut results = Results::new(
            BASE,
            &[HYPER, EVENKEEL, TONIC_XDS],
            1,
            "tonic-xds is left out: no network.".to_owned(),
        );
        results.add(0, HYPER, figures(1_000.0, 1.0));
        results.add(1, HYPER, figures(2_000.0, 2.0));
        results.add(0, EVENKEEL, figures(1_500.0, 1.2));
        results.add(1, EVENKEEL, figures(2_400.0, 1.2));
        results
    }

    #[test]
    fn a_row_has_medians_and_ratios_of_rounds() {
        let results = results();
        let expected = [
            "evenkeel-weighted_round_robin",
            "975",
            "1000",
            "2000",
            "3000",
            "650.00",
            "0.60",
            "1.35 (1.20..1.50)",
            "0.65 (0.50..0.80)",
        ];
        assert_eq!(results.cells(&results.rows[1]), expected);
    }

    #[test]
    fn a_client_that_did_not_run_has_no_figures_and_a_reason() {
        let mut results = results();
        assert_eq!(results.cells(&results.rows[2])[1..], ["-"; 8]);
        results.fail(EVENKEEL, &"evenkeel: no answer\nfor a while".into());
        let note =
            "Clients have 1 thread. tonic-xds is left out: no network. A run failed: evenkeel: no answer.";
        assert_eq!(results.note(), note);
    }

    /// A round in which one of the two failed is not compared.
    #[test]
    fn rounds_are_compared_with_themselves() {
        let mut results = results();
        results.rows[0].rounds.remove(0);
        let ratio = results.ratio(EVENKEEL, HYPER, Figures::throughput);
        assert_eq!(ratio, Some(Ratio { low: 1.2, middle: 1.2, high: 1.2 }));
    }
}
