//! Common state and helpers of the resource parsers.

use std::fmt;
use std::time::Duration;

use evenkeel_proto::envoy::r#type::matcher::v3::StringMatcher;
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_proto::prost;
use evenkeel_proto::prost_types::{self, Any};
use regex::bytes::Regex;

use crate::FieldPath;
use crate::bootstrap::ServerConfig;
use crate::resource::findings::ParseDiagnostics;
use crate::resource::regexes::RegexCache;
use crate::resource::{ParsedResource, RejectedResource, Resource, ResourceParser, fields, message_name};
use crate::routing::text_matcher::{CaseSensitivity, RegexMatcher, TextMatcher};
use crate::text::quoted;

/// Errors and warnings of one resource, with the parser's config.
pub(super) struct ResourceReader<'a> {
    pub(super) parser: &'a ResourceParser,
    /// True if the control plane may set the authority of calls (A81).
    pub(super) trusted: bool,
    pub(super) diagnostics: ParseDiagnostics,
    regexes: RegexCache,
}

impl<'a> ResourceReader<'a> {
    pub(super) fn new(parser: &'a ResourceParser, from: &ServerConfig) -> ResourceReader<'a> {
        ResourceReader {
            parser,
            trusted: from.features.trusted_xds_server,
            diagnostics: ParseDiagnostics::default(),
            regexes: RegexCache::new(parser.limits.regex_bytes),
        }
    }

    /// Returns the resource if there is no error.
    pub(super) fn finish(
        self,
        name: String,
        resource: Option<Resource>,
    ) -> Result<ParsedResource, RejectedResource> {
        match (self.diagnostics.warnings(), resource) {
            (Ok(warnings), Some(resource)) => Ok(ParsedResource { name, resource, warnings }),
            (result, _) => {
                Err(RejectedResource { name: Some(name), problems: result.err().unwrap_or_default() })
            }
        }
    }

    pub(super) fn problem(&mut self, path: &FieldPath<'_>, text: impl Into<String>) {
        self.diagnostics.problem(path, text);
    }

    pub(super) fn warn(&mut self, path: &FieldPath<'_>, text: impl fmt::Display) {
        self.diagnostics.warn(path, text);
    }

    /// Warns about each field below `path` that is set.
    pub(super) fn warn_fields<const N: usize>(
        &mut self,
        path: &FieldPath<'_>,
        fields: [(&str, bool); N],
        text: &str,
    ) {
        for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
            self.warn(&path.field(field), text);
        }
    }

    /// Checks that a name is not empty and within the limit.
    pub(super) fn name(&mut self, text: &str, path: &FieldPath<'_>) {
        if text.is_empty() {
            self.problem(path, "must not be empty");
        } else {
            self.length(text, path);
        }
    }

    /// Checks that a text is within the limit for names. It may be empty.
    pub(super) fn length(&mut self, text: &str, path: &FieldPath<'_>) {
        let limit = self.parser.limits.name_bytes;
        if text.len() > limit {
            self.problem(path, format!("has {} bytes; at most {limit} are allowed", text.len()));
        }
    }

    /// Returns the value, and reports an error if it is missing.
    pub(super) fn required<T>(&mut self, value: Option<T>, path: &FieldPath<'_>) -> Option<T> {
        if value.is_none() {
            self.problem(path, "is required");
        }
        value
    }

    /// Decodes the message in `any`, which must have this type.
    pub(super) fn message<M: prost::Message + prost::Name + Default>(
        &mut self,
        any: Option<&Any>,
        path: &FieldPath<'_>,
    ) -> Option<M> {
        let (type_url, bytes) = any.map_or(("", &[][..]), |any| (any.type_url.as_str(), &any.value));
        if message_name(type_url) == M::full_name() {
            return self.decode(bytes, path);
        }
        self.problem(path, format!("expected {}, found type {}", M::full_name(), quoted(type_url)));
        None
    }

    /// Decodes a message and reports an error if it is malformed.
    pub(super) fn decode<M: prost::Message + Default>(
        &mut self,
        bytes: &[u8],
        path: &FieldPath<'_>,
    ) -> Option<M> {
        M::decode(bytes).map_err(|error| self.problem(path, format!("cannot be decoded: {error}"))).ok()
    }

    /// Returns the duration, if it is set and valid.
    pub(super) fn duration(
        &mut self,
        value: Option<&prost_types::Duration>,
        path: &FieldPath<'_>,
    ) -> Option<Duration> {
        fields::duration(value?, path, &mut self.diagnostics.problems)
    }

    /// Returns the fraction in millionths, and the size of its unit in millionths.
    pub(super) fn fraction(
        &mut self,
        fraction: FractionalPercent,
        path: &FieldPath<'_>,
    ) -> Option<(u32, u32)> {
        let denominator = fields::denominator(fraction.denominator, path, &mut self.diagnostics.problems)?;
        Some((denominator.per_million(fraction.numerator), denominator.per_million(1)))
    }

    /// Compiles a regular expression that must match the whole text.
    pub(super) fn full_match(&mut self, pattern: &str, path: &FieldPath<'_>) -> Option<TextMatcher> {
        let compiled = self.regexes.full_match(pattern).map_err(|text| self.problem(path, text)).ok()?;
        Some(TextMatcher::Regex(RegexMatcher { source: pattern.into(), compiled }))
    }

    /// Compiles a regular expression that matches anywhere in a text.
    pub(super) fn search(&mut self, pattern: &str, path: &FieldPath<'_>) -> Option<Regex> {
        self.regexes.search(pattern).map_err(|text| self.problem(path, text)).ok()
    }

    /// Parses a string matcher.
    pub(super) fn text_matcher(
        &mut self,
        message: &StringMatcher,
        path: &FieldPath<'_>,
    ) -> Option<TextMatcher> {
        let case = CaseSensitivity::from_ignore_case(message.ignore_case);
        match &message.match_pattern {
            Some(MatchPattern::Exact(text)) => Some(TextMatcher::Exact(text.clone(), case)),
            Some(MatchPattern::Prefix(text)) => {
                self.required_part(text, &path.field("prefix")).map(|text| TextMatcher::Prefix(text, case))
            }
            Some(MatchPattern::Suffix(text)) => {
                self.required_part(text, &path.field("suffix")).map(|text| TextMatcher::Suffix(text, case))
            }
            Some(MatchPattern::Contains(text)) => {
                let path = path.field("contains");
                let text = self.required_part(text, &path)?;
                if case == CaseSensitivity::Sensitive {
                    return Some(TextMatcher::Contains(text));
                }
                let compiled = self.search(&format!("(?i:{})", regex::escape(&text)), &path)?;
                Some(TextMatcher::ContainsIgnoreCase(RegexMatcher { source: text.into(), compiled }))
            }
            Some(MatchPattern::SafeRegex(regex)) => {
                if case == CaseSensitivity::Insensitive {
                    self.warn(&path.field("ignore_case"), "is ignored: it does not apply to safe_regex");
                }
                self.full_match(&regex.regex, &path.field("safe_regex").field("regex"))
            }
            Some(MatchPattern::Custom(_)) => {
                self.problem(&path.field("custom"), "is not supported");
                None
            }
            None => {
                let text = "expected exact, prefix, suffix, contains or safe_regex, found none of these";
                self.problem(path, text);
                None
            }
        }
    }

    /// Returns the text of a prefix, suffix or substring. An empty one is rejected, because it would match
    /// every text.
    fn required_part(&mut self, text: &str, path: &FieldPath<'_>) -> Option<String> {
        if text.is_empty() {
            self.problem(path, "must not be empty");
        }
        Some(text.to_owned()).filter(|text| !text.is_empty())
    }
}
