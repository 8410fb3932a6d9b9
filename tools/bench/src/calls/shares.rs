//! Deviation of each endpoint's share of calls from its weight in the control plane.

use std::num::NonZeroUsize;

use crate::Error;
use crate::calls::Args;
use crate::calls::bench_clients::{BenchClient, EVENKEEL_EDF, GRPC_GO, TONIC_XDS};
use crate::calls::control::GREATEST_WEIGHT;
use crate::calls::harness::{CallHarness, Span, Task};
use crate::calls::peers::Peers;
use crate::calls::scenario::{BASE, Scenario};
use crate::calls::warm_up;
use crate::table::Table;

/// Whole cycles of the weights from 1 to 10, so that exact shares are possible.
const CALLS: u64 = 364 * 55;

/// Largest error of any endpoint's share, by client.
pub(crate) struct Shares {
    rows: Vec<(BenchClient, Result<f64, String>)>,
}

impl Shares {
    pub(crate) fn error_of(&self, client: BenchClient) -> Option<f64> {
        self.rows.iter().find(|(of, _)| of.name == client.name)?.1.as_ref().ok().copied()
    }

    /// Returns the table; `None` without clients.
    pub(crate) fn table(&self) -> Option<Table> {
        if self.rows.is_empty() {
            return None;
        }
        let note = format!(
            "Endpoints have the weights 1 to {GREATEST_WEIGHT} in EDS, the cluster has ROUND_ROBIN, and {CALLS} calls are \
             made, {} at a time: the largest error of any endpoint's share, relative to the share of its weight.",
            BASE.concurrency
        );
        let mut table = Table::new("share of calls by weight", &["client", "largest error"]).note(note);
        for (client, error) in &self.rows {
            let error = match error {
                Ok(error) => format!("{:.3} %", error * 100.0),
                Err(why) => why.clone(),
            };
            table.row(vec![client.name.to_owned(), error]);
        }
        Some(table)
    }
}

/// Measures the clients that take weights from a control plane.
pub(crate) fn measure(
    chosen: &[(Scenario, Vec<BenchClient>)],
    args: &Args,
    peers: &Peers,
) -> Result<Shares, Error> {
    let is_chosen = |client: &BenchClient| chosen.iter().any(|(_, clients)| clients.contains(client));
    let clients = [EVENKEEL_EDF, TONIC_XDS, GRPC_GO].into_iter().filter(is_chosen);
    let clients: Vec<BenchClient> = clients.filter(|client| peers.have(client)).collect();
    let mut rows = Vec::new();
    if clients.is_empty() {
        return Ok(Shares { rows });
    }
    let mut harness = CallHarness::start(BASE.servers, GREATEST_WEIGHT as usize)?;
    let task = Task {
        payload: BASE.payload,
        concurrency: BASE.concurrency,
        warm_up: warm_up(args.seconds),
        span: Span::Calls(CALLS),
        threads: args.threads.get(),
    };
    for client in clients {
        eprintln!("share of calls by weight: {}", client.name);
        let error = match harness.run(&client.with_target("edf"), task, peers) {
            Ok((_, counts)) => largest_error(&counts),
            Err(error) => Err(error.to_string()),
        };
        rows.push((client, error));
    }
    Ok(Shares { rows })
}

/// Returns the largest error for backends with the weights 1, 2, 3 and so on.
fn largest_error(counts: &[u64]) -> Result<f64, String> {
    let total: u64 = counts.iter().sum();
    let weights: usize = (1..=counts.len()).sum();
    let (Some(total), Some(weights)) = (NonZeroUsize::new(total as usize), NonZeroUsize::new(weights)) else {
        return Err("no calls".to_owned());
    };
    let error = |(i, count): (usize, &u64)| {
        let expected = total.get() as f64 * (i + 1) as f64 / weights.get() as f64;
        (*count as f64 - expected).abs() / expected
    };
    Ok(counts.iter().enumerate().map(error).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_right_or_off_by_so_much() {
        assert_eq!(largest_error(&[100, 200, 300]), Ok(0.0));
        assert_eq!(largest_error(&[200, 200, 200]), Ok(1.0));
        assert_eq!(largest_error(&[0, 0]), Err("no calls".to_owned()));
    }

    /// Equal shares for the weights 1 to 10.
    #[test]
    fn the_error_of_a_client_that_ignores_weights() {
        let error = largest_error(&[2002; 10]).expect("calls");
        assert!((error - 4.5).abs() < 1e-9, "{error}");
    }
}
