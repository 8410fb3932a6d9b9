//! What reading a resource gathers on the way.

use std::time::Duration;

use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::prost_types;
use regex::bytes::Regex;

use super::regexes::Regexes;
use crate::bootstrap::ServerConfig;
use crate::resource::{Parsed, Parser, Rejected, Resource, fields};
use crate::{Limits, Path, Problems};

/// How many warnings of one resource are told apart; more are only counted.
const KEPT: usize = 32;

/// The problems and warnings of one resource, and what it may use.
pub(in crate::resource) struct Reader<'a> {
    pub(super) limits: &'a Limits,
    /// Whether the control plane may choose the authority of calls (A81).
    pub(super) trusted: bool,
    problems: Problems,
    warnings: Vec<String>,
    more_warnings: usize,
    regexes: Regexes,
}

impl<'a> Reader<'a> {
    pub(in crate::resource) fn new(parser: &'a Parser, from: &ServerConfig) -> Reader<'a> {
        Reader {
            limits: &parser.limits,
            trusted: from.features.trusted_xds_server,
            problems: Problems::new(),
            warnings: Vec::new(),
            more_warnings: 0,
            regexes: Regexes::new(parser.limits.regex_bytes),
        }
    }

    /// What the parser answers.
    pub(in crate::resource) fn finish(
        mut self,
        name: String,
        resource: impl FnOnce() -> Option<Resource>,
    ) -> Result<Parsed, Rejected> {
        if self.more_warnings > 0 {
            self.warnings.push(format!("and {} more warnings", self.more_warnings));
        }
        fields::finish(name, self.problems, self.warnings, resource)
    }

    pub(in crate::resource) fn problem(&mut self, path: &Path<'_>, text: impl Into<String>) {
        self.problems.add(path, text);
    }

    pub(in crate::resource) fn warn(&mut self, path: &Path<'_>, text: &str) {
        if self.warnings.len() < KEPT {
            self.warnings.push(format!("{path}: {text}"));
        } else {
            self.more_warnings += 1;
        }
    }

    pub(in crate::resource) fn name(&mut self, text: &str, path: &Path<'_>) {
        fields::name(text, self.limits, path, &mut self.problems);
    }

    /// The value; it is a problem if there is none.
    pub(super) fn required<T>(&mut self, value: Option<T>, path: &Path<'_>) -> Option<T> {
        if value.is_none() {
            self.problem(path, "is required");
        }
        value
    }

    /// A duration, if there is one and it is right.
    pub(in crate::resource) fn duration(
        &mut self,
        value: Option<&prost_types::Duration>,
        path: &Path<'_>,
    ) -> Option<Duration> {
        fields::duration(value?, path, &mut self.problems)
    }

    /// A fraction as so many in a million, and what one of its units is.
    pub(super) fn fraction(&mut self, fraction: FractionalPercent, path: &Path<'_>) -> Option<(u32, u32)> {
        let denominator = fields::denominator(fraction.denominator, path, &mut self.problems)?;
        Some((denominator.per_million(fraction.numerator), denominator.per_million(1)))
    }

    /// A regular expression that a text must match as a whole.
    pub(super) fn whole(&mut self, pattern: &str, path: &Path<'_>) -> Option<Regex> {
        self.regexes.whole(pattern).map_err(|text| self.problems.add(path, text)).ok()
    }

    /// A regular expression that is looked for within a text.
    pub(super) fn within(&mut self, pattern: &str, path: &Path<'_>) -> Option<Regex> {
        self.regexes.within(pattern).map_err(|text| self.problems.add(path, text)).ok()
    }
}
