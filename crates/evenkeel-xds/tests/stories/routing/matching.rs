//! Route matching by path, headers and fraction.

use evenkeel_proto::envoy::config::core::v3::RuntimeFractionalPercent;
use evenkeel_proto::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier::{
    self, ContainsMatch, ExactMatch, PrefixMatch, PresentMatch, RangeMatch, SafeRegexMatch, StringMatch,
    SuffixMatch,
};
use evenkeel_proto::envoy::config::route::v3::route_match::PathSpecifier;
use evenkeel_proto::envoy::config::route::v3::{HeaderMatcher, RouteMatch};
use evenkeel_proto::envoy::r#type::matcher::v3::StringMatcher;
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::envoy::r#type::v3::{FractionalPercent, Int64Range};
use proptest::prelude::*;

use super::{selector, way};
use crate::route::{header, matching, regex};

/// Returns true if a route with this match matches the call.
fn takes(change: impl FnOnce(&mut RouteMatch), path: &str, headers: &[(&str, &str)], entropy: u64) -> bool {
    way(&selector([matching(change)]), path, headers, entropy).is_ok()
}

/// A28: paths match by prefix, exact path and regular expression, case-sensitive or not.
#[test]
fn paths() {
    let check = |specifier: &PathSpecifier, case_sensitive: Option<bool>, yes: &[&str], no: &[&str]| {
        for (paths, expected) in [(yes, true), (no, false)] {
            for path in paths {
                let change = |m: &mut RouteMatch| {
                    m.path_specifier = Some(specifier.clone());
                    m.case_sensitive = case_sensitive;
                };
                assert_eq!(takes(change, path, &[], 0), expected, "{specifier:?} {path}");
            }
        }
    };
    let prefix = |text: &str| PathSpecifier::Prefix(text.to_owned());
    let exact = |text: &str| PathSpecifier::Path(text.to_owned());
    let matching = |text: &str| PathSpecifier::SafeRegex(regex(text));
    check(&prefix(""), None, &["/", "/a/b"], &[]);
    check(&prefix("/a."), None, &["/a.", "/a.b/C"], &["/a", "/A.b/C", "/ba."]);
    check(&prefix("/a."), Some(true), &["/a.b"], &["/A.b"]);
    check(&prefix("/aB."), Some(false), &["/Ab.c/D", "/ab."], &["/ab", "/x"]);
    check(&prefix("a"), None, &[], &["/a"]);
    check(&exact("/a/B"), None, &["/a/B"], &["/a/b", "/a/B/", "/a"]);
    check(&exact("/a/B"), Some(false), &["/a/b", "/A/B"], &["/a/b/"]);
    check(&exact(""), None, &[], &["/"]);
    // A regular expression matches the whole path, and sets its own case sensitivity.
    check(&matching("/a/[bc]"), None, &["/a/b", "/a/c"], &["/a/bc", "/a/d", "/x/a/b"]);
    check(&matching("/a|/ab"), None, &["/a", "/ab"], &["/abc"]);
    check(&matching("/a/b"), Some(false), &["/a/b"], &["/A/b"]);
    check(&matching("(?i)/a/b"), None, &["/A/b"], &[]);
    // RE2's classes are ASCII. Unicode classes are available explicitly.
    check(&matching(r"/\w+\d"), None, &["/ab1"], &["/é1", "/a٣"]);
    check(&matching(r"/\pL+"), None, &["/é"], &["/1"]);
    check(&matching("/é."), None, &["/éa"], &["/e"]);
    check(&matching("(?m)/a$"), None, &["/a"], &["/a\n/b"]);
}

/// VAL-R6, RT-2: every kind of header matcher, plain and inverted.
#[test]
fn headers() {
    type Values<'a> = &'a [&'a str];
    let check = |test: HeaderMatchSpecifier, yes: Values<'_>, no: Values<'_>| {
        let inverted = HeaderMatcher { invert_match: true, ..header("x-h", test.clone()) };
        for (values, expected) in [(yes, true), (no, false)] {
            for value in values {
                let sent = [("x-h", *value), ("x-other", "y")];
                let plain = header("X-H", test.clone());
                assert_eq!(takes(|m| m.headers = vec![plain], "/", &sent, 0), expected, "{test:?} {value}");
                let inverted = inverted.clone();
                assert_eq!(
                    takes(|m| m.headers = vec![inverted], "/", &sent, 0),
                    !expected,
                    "not {test:?} {value}"
                );
            }
        }
        // A41: an absent header does not match, inverted or not.
        for matcher in [header("x-h", test.clone()), inverted] {
            assert!(!takes(|m| m.headers = vec![matcher], "/", &[("x-other", "y")], 0), "absent: {test:?}");
        }
    };
    let string =
        |pattern, ignore_case| StringMatch(StringMatcher { match_pattern: Some(pattern), ignore_case });
    let text = |text: &str| text.to_owned();
    check(ExactMatch(text("aB")), &["aB"], &["ab", "aBc", "", "aB,aB"]);
    check(PrefixMatch(text("aB")), &["aB", "aBc"], &["ab", "caB"]);
    check(SuffixMatch(text("aB")), &["aB", "caB"], &["ab", "aBc", "B"]);
    check(ContainsMatch(text("aB")), &["aB", "caBc"], &["ab", "a B"]);
    check(SafeRegexMatch(regex("a+")), &["a", "aaa"], &["", "ab", "ba"]);
    check(string(MatchPattern::Exact(text("aB")), false), &["aB"], &["ab"]);
    check(string(MatchPattern::Exact(text("aB")), true), &["Ab", "AB"], &["Abc"]);
    check(string(MatchPattern::Prefix(text("aB")), true), &["Abc"], &["c", ""]);
    check(string(MatchPattern::Suffix(text("aB")), true), &["cAb"], &["Abc"]);
    check(string(MatchPattern::Suffix(text("aB")), false), &["caB"], &["cAb"]);
    check(string(MatchPattern::Contains(text("a.B")), false), &["xa.Bx"], &["xA.bx", "xa-Bx"]);
    check(string(MatchPattern::Contains(text("a.B")), true), &["xA.bx"], &["xA-bx"]);
    check(string(MatchPattern::SafeRegex(regex("a.")), false), &["ab"], &["Ab", "abc"]);
    check(string(MatchPattern::SafeRegex(regex("a.")), true), &["ab"], &["Ab"]);
    check(RangeMatch(Int64Range { start: -5, end: 10 }), &["-5", "0", "9"], &["10", "-6", "1.5", "a", ""]);
    check(RangeMatch(Int64Range { start: 5, end: 5 }), &[], &["5", "99999999999999999999"]);
    check(
        RangeMatch(Int64Range { start: i64::MIN, end: i64::MAX }),
        &["-9223372036854775808", "0"],
        &["9223372036854775807"],
    );
}

/// RT-2: `present_match` is the only matcher that an absent header can satisfy.
#[test]
fn presence() {
    for (present_match, invert_match, if_present, if_absent) in [
        (true, false, true, false),
        (true, true, false, true),
        (false, false, false, true),
        (false, true, true, false),
    ] {
        let matcher = HeaderMatcher { invert_match, ..header("x-h", PresentMatch(present_match)) };
        let takes = |sent: &[(&str, &str)]| takes(|m| m.headers = vec![matcher.clone()], "/", sent, 0);
        assert_eq!((takes(&[("x-h", "")]), takes(&[])), (if_present, if_absent), "{matcher:?}");
    }
}

/// VAL-R6: several values are joined. Only custom metadata and content-type are matched, never binary headers.
#[test]
fn visible_headers() {
    let takes =
        |matcher: HeaderMatcher, sent: &[(&str, &str)]| takes(|m| m.headers = vec![matcher], "/", sent, 0);
    let exact = |name: &str, value: &str| header(name, ExactMatch(value.to_owned()));
    assert!(takes(exact("x", "a,b"), &[("x", "a"), ("x", "b")]));
    assert!(!takes(exact("x", "a"), &[("x", "a"), ("x", "b")]));
    for name in ["x-bin", "X-Bin", ":path", "grpc-timeout", "te", "user-agent"] {
        let sent = [(&*name.to_ascii_lowercase(), "v")];
        assert!(!takes(exact(name, "v"), &sent), "{name}");
        assert!(!takes(header(name, PresentMatch(true)), &sent), "{name}");
        assert!(takes(header(name, PresentMatch(false)), &sent), "{name}");
    }
    assert!(takes(exact("x-bin-x", "v"), &[("x-bin-x", "v")]));
    assert!(takes(exact("content-type", "application/grpc"), &[]));
    assert!(takes(
        exact("Content-Type", "application/grpc+proto"),
        &[("content-type", "application/grpc+proto")]
    ));
    assert!(!takes(exact("content-type", "application/grpc"), &[("content-type", "application/grpc+proto")]));
}

/// A28: a route matches only if all of its header matchers do.
#[test]
fn all_headers_must_match() {
    let both = |m: &mut RouteMatch| {
        m.headers = vec![header("a", ExactMatch("1".to_owned())), header("b", ExactMatch("2".to_owned()))];
    };
    assert!(takes(both, "/", &[("a", "1"), ("b", "2")], 0));
    assert!(!takes(both, "/", &[("a", "1")], 0));
    assert!(!takes(both, "/", &[("a", "1"), ("b", "1")], 0));
}

/// RT-2: a fraction in each denominator matches its part of the calls. Zero matches none, and the maximum matches
/// all.
#[test]
fn fractions() {
    const CALLS: u64 = 100_000;
    let count = |numerator, denominator| {
        let default_value = Some(FractionalPercent { numerator, denominator });
        let fraction = RuntimeFractionalPercent { default_value, runtime_key: "ignored".to_owned() };
        let selector = selector([matching(|m| m.runtime_fraction = Some(fraction))]);
        (0..CALLS).filter(|entropy| way(&selector, "/", &[], *entropy).is_ok()).count() as u64
    };
    for (numerator, denominator, expected) in [
        (30, 0, CALLS * 3 / 10),
        (3_000, 1, CALLS * 3 / 10),
        (300_000, 2, CALLS * 3 / 10),
        (1, 0, CALLS / 100),
    ] {
        let found = count(numerator, denominator);
        assert!(found.abs_diff(expected) < CALLS / 200, "{numerator} of {denominator}: {found}");
    }
    for denominator in 0..3 {
        assert_eq!(count(0, denominator), 0);
        assert_eq!(count(u32::MAX, denominator), CALLS);
    }
    assert_eq!((count(100, 0), count(10_000, 1), count(1_000_000, 2)), (CALLS, CALLS, CALLS));
}

proptest! {
    /// A matcher that ignores case equals one on the lower-case value.
    #[test]
    fn case_does_not_matter_when_ignored(pattern in "[aAbB.]{1,3}", value in "[aAbB.]{0,5}") {
        let (lower, in_lower) = (pattern.to_lowercase(), value.to_lowercase());
        let kinds = [
            (MatchPattern::Exact(pattern.clone()), in_lower == lower),
            (MatchPattern::Prefix(pattern.clone()), in_lower.starts_with(&lower)),
            (MatchPattern::Suffix(pattern.clone()), in_lower.ends_with(&lower)),
            (MatchPattern::Contains(pattern), in_lower.contains(&lower)),
        ];
        for (kind, expected) in kinds {
            let string = StringMatcher { match_pattern: Some(kind.clone()), ignore_case: true };
            let found = takes(|m| m.headers = vec![header("x", StringMatch(string))], "/", &[("x", &value)], 0);
            prop_assert_eq!(found, expected, "{:?} {}", kind, value);
        }
    }
}
