//! Validation of bootstraps, with the client's own parser.

use std::error::Error as _;
use std::path::Path;

use evenkeel_xds::ValidationErrors;
use evenkeel_xds::bootstrap::Bootstrap;

use super::locate::locate;
use super::{Finding, ValidationReport, count};
use crate::input;

pub(super) fn verdict(file: &Path, text: &str) -> ValidationReport {
    let subject = input::name(file);
    // The bootstrap parser reports syntax errors without a position, so the syntax is checked separately.
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        let place = (error.line() > 0).then(|| (error.line() as u64, error.column().max(1) as u64));
        let finding = Finding::error(format!("cannot be read as JSON: {what}")).at(place);
        return ValidationReport { subject, findings: vec![finding], summary: None };
    }
    match Bootstrap::from_json(text) {
        Ok(bootstrap) => {
            let findings = bootstrap.warnings().into_iter().map(Finding::warning).collect();
            ValidationReport { subject, findings, summary: Some(summary(&bootstrap)) }
        }
        Err(error) => {
            let findings = match error.source().and_then(|source| source.downcast_ref::<ValidationErrors>()) {
                Some(problems) => problems
                    .iter()
                    .map(|problem| {
                        Finding::error(&problem.text).path(&problem.path).at(locate(text, &problem.path))
                    })
                    .collect(),
                None => vec![Finding::error(error.to_string())],
            };
            ValidationReport { subject, findings, summary: None }
        }
    }
}

fn summary(bootstrap: &Bootstrap) -> String {
    let servers = count(bootstrap.servers.len(), "control plane");
    let authorities = match bootstrap.authorities.len() {
        0 => String::new(),
        1 => ", 1 authority".to_owned(),
        more => format!(", {more} authorities"),
    };
    format!("{servers}{authorities}, node {:?}", bootstrap.node.id)
}
