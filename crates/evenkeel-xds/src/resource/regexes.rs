//! Regular expressions of a resource, compiled within limits.
//!
//! xDS uses the RE2 syntax, in which classes (`\d`, `\w`) and word boundaries are ASCII. A short pattern can
//! compile to megabytes. Each expression therefore has a limit, and all expressions of a resource share
//! another. Matching is linear in the length of the text.

use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};

use crate::text::quoted;

/// Maximum compiled size of all expressions of a resource, in multiples of the limit for one.
const TOTAL_SIZE_FACTOR: usize = 16;

/// Size limit of the first attempt. Most expressions are small, and only this much is charged for them.
const FIRST_SIZE: usize = 4 << 10;

/// Cache that compiles each expression once.
pub(super) struct RegexCache {
    limit: usize,
    left: usize,
    known: BTreeMap<(bool, String), Regex>,
}

impl RegexCache {
    /// Creates a cache with a limit of `limit` bytes per expression.
    pub(super) fn new(limit: usize) -> RegexCache {
        RegexCache { limit, left: limit.saturating_mul(TOTAL_SIZE_FACTOR), known: BTreeMap::new() }
    }

    /// Returns an expression that matches whole texts only.
    pub(super) fn full_match(&mut self, pattern: &str) -> Result<Regex, String> {
        self.compile(pattern, true)
    }

    /// Returns an expression that matches anywhere in a text.
    pub(super) fn search(&mut self, pattern: &str) -> Result<Regex, String> {
        self.compile(pattern, false)
    }

    fn compile(&mut self, pattern: &str, whole: bool) -> Result<Regex, String> {
        let key = (whole, pattern.to_owned());
        if let Some(regex) = self.known.get(&key) {
            return Ok(regex.clone());
        }
        let limit = self.limit.min(self.left);
        let mut size = FIRST_SIZE.min(limit);
        loop {
            match build(pattern, whole, size) {
                Ok(regex) => {
                    // The compiled size is unknown, so the limit of the attempt is charged.
                    self.left = self.left.saturating_sub(size);
                    self.known.insert(key, regex.clone());
                    return Ok(regex);
                }
                Err(regex::Error::CompiledTooBig(_)) if size < limit => {
                    size = size.saturating_mul(16).min(limit);
                }
                Err(regex::Error::CompiledTooBig(_)) => {
                    // Charge a failure in full, so that the number of hostile patterns is bounded too.
                    self.left = self.left.saturating_sub(limit);
                    return Err(self.too_big(pattern, limit));
                }
                Err(error) => {
                    return Err(format!(
                        "{} is not a valid regular expression: {}",
                        quoted(pattern),
                        reason(&error)
                    ));
                }
            }
        }
    }

    fn too_big(&self, pattern: &str, limit: usize) -> String {
        if limit < self.limit {
            let together = self.limit.saturating_mul(TOTAL_SIZE_FACTOR);
            return format!(
                "the regular expressions of one resource exceed {together} bytes in total when compiled"
            );
        }
        format!(
            "{} takes more than {limit} bytes when compiled; at most that many are allowed",
            quoted(pattern)
        )
    }
}

fn build(pattern: &str, whole: bool, size: usize) -> Result<Regex, regex::Error> {
    let build = |pattern: &str| {
        let with = |unicode: bool| RegexBuilder::new(pattern).unicode(unicode).size_limit(size).build();
        match with(false) {
            // Classes such as `\pL` are a syntax error without Unicode support.
            Err(regex::Error::Syntax(_)) => with(true),
            built => built,
        }
    };
    // Compile the pattern alone first: `a)|(b` must not escape from the group around it.
    let alone = build(pattern)?;
    if whole { build(&format!(r"\A(?:{pattern})\z")) } else { Ok(alone) }
}

/// Returns the description of the error on one line.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let told = text.rsplit_once("error: ").map_or(text.as_str(), |(_, told)| told);
    quoted(told.trim())
}
