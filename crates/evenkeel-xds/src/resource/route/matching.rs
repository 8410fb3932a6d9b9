//! Parsing of route matches (A28).

use evenkeel_proto::envoy::config::core::v3::RuntimeFractionalPercent;
use evenkeel_proto::envoy::config::route::v3 as proto;
use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use evenkeel_proto::envoy::config::route::v3::route_match::PathSpecifier;

use crate::FieldPath;
use crate::resource::reader::ResourceReader;
use crate::routing::text_matcher::{CaseSensitivity, TextMatcher};
use crate::routing::{HeaderMatchKind, HeaderMatcher, HeaderName, RouteMatch};

pub(super) fn read(
    message: &proto::RouteMatch,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<RouteMatch> {
    let matcher = path_matcher(message, path, reader);
    let headers = (message.headers.iter().enumerate())
        .filter_map(|(i, header)| header_matcher(header, &path.field("headers").index(i), reader))
        .collect();
    let fraction = message.runtime_fraction.as_ref();
    let per_million =
        fraction.and_then(|fraction| per_million(fraction, &path.field("runtime_fraction"), reader));
    Some(RouteMatch { path: matcher?, headers, per_million })
}

fn path_matcher(
    message: &proto::RouteMatch,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<TextMatcher> {
    let case = CaseSensitivity::from_ignore_case(message.case_sensitive == Some(false));
    let found = match &message.path_specifier {
        Some(PathSpecifier::Prefix(text)) => return Some(TextMatcher::Prefix(text.clone(), case)),
        Some(PathSpecifier::Path(text)) => return Some(TextMatcher::Exact(text.clone(), case)),
        Some(PathSpecifier::SafeRegex(regex)) => {
            return reader.full_match(&regex.regex, &path.field("safe_regex").field("regex"));
        }
        Some(PathSpecifier::ConnectMatcher(_)) => "connect_matcher",
        Some(PathSpecifier::PathSeparatedPrefix(_)) => "path_separated_prefix",
        None => "none of these",
    };
    reader.problem(path, format!("expected prefix, path or safe_regex, found {found}"));
    None
}

fn per_million(
    message: &RuntimeFractionalPercent,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<u32> {
    let path = path.field("default_value");
    let fraction = reader.required(message.default_value, &path)?;
    reader.fraction(fraction, &path).map(|(per_million, _)| per_million)
}

fn header_matcher(
    message: &proto::HeaderMatcher,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<HeaderMatcher> {
    reader.name(&message.name, &path.field("name"));
    if message.treat_missing_header_as_empty {
        reader.warn(&path.field("treat_missing_header_as_empty"), "is ignored, as gRPC does");
    }
    let case_sensitive = |text: &String, make: fn(String, CaseSensitivity) -> TextMatcher| {
        Some(HeaderMatchKind::Text(make(text.clone(), CaseSensitivity::Sensitive)))
    };
    let test = match &message.header_match_specifier {
        Some(HeaderMatchSpecifier::ExactMatch(text)) => case_sensitive(text, TextMatcher::Exact),
        Some(HeaderMatchSpecifier::PrefixMatch(text)) => case_sensitive(text, TextMatcher::Prefix),
        Some(HeaderMatchSpecifier::SuffixMatch(text)) => case_sensitive(text, TextMatcher::Suffix),
        Some(HeaderMatchSpecifier::ContainsMatch(text)) => {
            Some(HeaderMatchKind::Text(TextMatcher::Contains(text.clone())))
        }
        Some(HeaderMatchSpecifier::SafeRegexMatch(regex)) => {
            let path = path.field("safe_regex_match");
            reader.full_match(&regex.regex, &path.field("regex")).map(HeaderMatchKind::Text)
        }
        Some(HeaderMatchSpecifier::StringMatch(text)) => {
            reader.text_matcher(text, &path.field("string_match")).map(HeaderMatchKind::Text)
        }
        Some(HeaderMatchSpecifier::RangeMatch(range)) => {
            let (start, end) = (range.start, range.end);
            if start >= end {
                let text = format!("no number is in [{start}, {end}): end is exclusive");
                reader.warn(&path.field("range_match"), text);
            }
            Some(HeaderMatchKind::Range(start..end))
        }
        Some(HeaderMatchSpecifier::PresentMatch(present)) => Some(HeaderMatchKind::Present(*present)),
        None => {
            reader.problem(
                path,
                "expected one of exact_match, safe_regex_match, range_match, present_match, prefix_match, suffix_match, \
                 contains_match and string_match, found none of these",
            );
            None
        }
    };
    Some(HeaderMatcher { name: HeaderName::new(&message.name), test: test?, invert: message.invert_match })
}
