//! `cargo run -p interop -- istio`: the cases with istiod, and their section of `docs/interop.md`.
//!
//! Istiod is not part of the matrix: it is configured by Istio's own resources, and its build without a cache takes
//! many minutes. The section is replaced in place, and [`matrix`](crate::matrix) keeps it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::driver::{IstioCase, IstioLineup, istio_cases};
use crate::peers::{self, NoPeer, Peer};

/// Text before the table.
const INTRODUCTION: &str = include_str!("../docs/istio.md");

/// Heading of the section.
const HEADING: &str = "## Istio\n";

/// Results of the cases with istiod.
pub struct IstioReport {
    /// Names of the clients, each with the result of every case.
    pub columns: Vec<(String, Vec<Result<(), String>>)>,
    /// Cases of the report, in order.
    pub cases: Vec<IstioCase>,
    /// istiod with its versions.
    pub peer: Peer,
}

impl IstioReport {
    /// Builds istiod and runs the cases, or those with one of these names, `jobs` at a time. Calls `print` for each
    /// case that ended.
    ///
    /// # Errors
    ///
    /// If Go is missing or istiod cannot be built.
    pub async fn run(names: &[String], jobs: usize, print: impl Fn(String)) -> Result<IstioReport, NoPeer> {
        let peer = Peer::install_istiod().await?;
        print(format!("istiod: {}", peer.versions.join(", ")));
        let cases: Vec<_> = istio_cases()
            .into_iter()
            .filter(|case| names.is_empty() || names.iter().any(|name| name == case.name))
            .collect();
        let client = peers::own("xds_interop_client");
        let clients = [client.clone(), client.with_flag("evenkeel (delta)", "--delta=true")];
        let places = Arc::new(Semaphore::new(jobs.max(1)));
        let mut running = JoinSet::new();
        for (row, case) in cases.iter().copied().enumerate() {
            for (column, client) in clients.iter().enumerate() {
                let lineup = IstioLineup {
                    client: client.clone(),
                    server: peers::own("xds_interop_server"),
                    istiod: peer.program("istiod"),
                };
                let places = places.clone();
                running.spawn(async move {
                    let _place = places.acquire_owned().await;
                    let begin = Instant::now();
                    let result = case.run(&lineup).await.map_err(|failure| failure.to_string());
                    (column, row, result, begin.elapsed())
                });
            }
        }
        let not_ended = vec![Err("it panicked".to_owned()); cases.len()];
        let mut columns: Vec<_> =
            clients.iter().map(|client| (client.peer.clone(), not_ended.clone())).collect();
        while let Some(ended) = running.join_next().await {
            let Ok((column, row, result, took)) = ended else { continue };
            let what = format!("{}, istiod: {}", columns[column].0, cases[row].name);
            match &result {
                Ok(()) => print(format!("passed  {what} ({:.1} s)", took.as_secs_f64())),
                Err(why) => print(format!("FAILED  {what}: {why}")),
            }
            columns[column].1[row] = result;
        }
        Ok(IstioReport { columns, cases, peer })
    }

    /// Number of cases that passed, and of those that failed.
    pub fn counts(&self) -> (usize, usize) {
        let results = || self.columns.iter().flat_map(|(_, results)| results);
        let passed = results().filter(|result| result.is_ok()).count();
        (passed, results().count() - passed)
    }

    /// Returns the section of `docs/interop.md`, with its heading.
    pub fn section(&self) -> String {
        let mut text = format!("{HEADING}\n{INTRODUCTION}\n");
        let names: Vec<_> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        let _ = writeln!(text, "| case | {} |", names.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(names.len()));
        for (row, case) in self.cases.iter().enumerate() {
            let cells =
                self.columns.iter().map(|(_, results)| if results[row].is_ok() { "yes" } else { "**no**" });
            let cells: Vec<_> = cells.collect();
            let _ = writeln!(text, "| `{}`: {} | {} |", case.name, case.shows, cells.join(" | "));
        }
        let _ = writeln!(text, "\nThe versions: {}.\n", self.peer.versions.join(", "));
        text
    }
}

/// Returns the section about Istio in a document, if it has one.
pub fn section_in(document: &str) -> Option<&str> {
    let begin = document.find(&format!("\n{HEADING}"))? + 1;
    let rest = &document[begin..];
    let end = rest[HEADING.len()..].find("\n## ").map_or(rest.len(), |end| HEADING.len() + end + 1);
    Some(&rest[..end])
}

/// Returns the document with this section in place of the existing one, or before the section about gRPC's
/// own driver.
pub fn with_section(document: &str, section: &str) -> String {
    if let Some(old) = section_in(document) {
        return document.replacen(old, section, 1);
    }
    match document.find("\n## gRPC's own driver\n") {
        Some(at) => format!("{}\n{section}{}", &document[..at], &document[at + 1..]),
        None => format!("{document}\n{section}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_inserted_once_and_replaced_afterwards() {
        let document = "# Title\n\n## First\n\ntext\n\n## gRPC's own driver\n\nlast\n";
        assert_eq!(section_in(document), None);
        let once = with_section(document, "## Istio\n\none\n\n");
        assert_eq!(once, "# Title\n\n## First\n\ntext\n\n## Istio\n\none\n\n## gRPC's own driver\n\nlast\n");
        assert_eq!(section_in(&once), Some("## Istio\n\none\n\n"));
        let twice = with_section(&once, "## Istio\n\ntwo\n\n");
        assert_eq!(twice, once.replace("one", "two"));
        assert_eq!(with_section("text\n", "## Istio\n\none\n"), "text\n\n## Istio\n\none\n");
        assert_eq!(section_in("text\n\n## Istio\n\none\n"), Some("## Istio\n\none\n"));
    }
}
