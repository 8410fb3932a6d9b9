//! Resource names and their canonical spelling.

use evenkeel_xds::resource::ResourceType;
use evenkeel_xds::resource::name::ResourceName;
use proptest::prelude::*;

/// Returns the canonical spelling and the authority of a listener name, or its error.
fn read(text: &str) -> Result<(String, Option<String>), String> {
    let name = ResourceName::parse(ResourceType::Listener, text).map_err(|error| error.to_string())?;
    assert_eq!(name.as_str(), name.to_string());
    Ok((name.to_string(), name.authority().map(str::to_owned)))
}

/// Expands `L` to the resource type, which occurs in every case.
fn long(text: &str) -> String {
    text.replace("/L/", "/envoy.config.listener.v3.Listener/")
}

/// FED-3: all spellings of a name have one canonical form.
#[test]
fn spellings_of_one_resource_are_one_name() {
    let cases: &[(&str, &str, Option<&str>)] = &[
        // Old-style names are unchanged.
        ("orders", "orders", None),
        ("a:/b/c", "a:/b/c", None),
        ("orders?b=2&a=1#x", "orders?b=2&a=1#x", None),
        ("100%", "100%", None),
        ("https://auth/L/id", "https://auth/L/id", None),
        // Context parameters are sorted, the last duplicate counts, and empty ones are dropped.
        ("xdstp://auth/L/id", "xdstp://auth/L/id", Some("auth")),
        ("xdstp://auth/L/id?", "xdstp://auth/L/id", Some("auth")),
        ("xdstp://auth/L/id?a=1&b=2", "xdstp://auth/L/id?a=1&b=2", Some("auth")),
        ("xdstp://auth/L/id?b=2&a=1", "xdstp://auth/L/id?a=1&b=2", Some("auth")),
        ("xdstp://auth/L/id?b=2&&a=1&", "xdstp://auth/L/id?a=1&b=2", Some("auth")),
        ("xdstp://auth/L/id?a=1&a=2", "xdstp://auth/L/id?a=2", Some("auth")),
        ("xdstp://auth/L/id?b=&a", "xdstp://auth/L/id?a=&b=", Some("auth")),
        ("xdstp://auth/L/id?a=x=y", "xdstp://auth/L/id?a=x%3Dy", Some("auth")),
        ("xdstp://auth/L/id?%61=%26", "xdstp://auth/L/id?a=%26", Some("auth")),
        ("xdstp://auth/L/id?a=1/2?3", "xdstp://auth/L/id?a=1/2?3", Some("auth")),
        // Directives are not part of the name.
        ("xdstp://auth/L/id?b=2&a=1#entry=x", "xdstp://auth/L/id?a=1&b=2", Some("auth")),
        ("xdstp://auth/L/id#alt=xdstp://b/L/c?x=y", "xdstp://auth/L/id", Some("auth")),
        // Percent-encoding is applied where required, in upper case. An encoded slash is no separator.
        ("xdstp://auth/L/%69d/x", "xdstp://auth/L/id/x", Some("auth")),
        ("xdstp://auth/L/[::1]:80", "xdstp://auth/L/%5B::1%5D:80", Some("auth")),
        ("xdstp://auth/L/%5b::1%5d:80", "xdstp://auth/L/%5B::1%5D:80", Some("auth")),
        ("xdstp://auth/L/a%2fb", "xdstp://auth/L/a%2Fb", Some("auth")),
        ("xdstp://auth/L/a%25b", "xdstp://auth/L/a%25b", Some("auth")),
        ("xdstp://auth/L/a b", "xdstp://auth/L/a%20b", Some("auth")),
        ("xdstp://auth/L/ö", "xdstp://auth/L/%C3%B6", Some("auth")),
        // Authorities may be empty, and are returned in the spelling of the bootstrap.
        ("xdstp:///L/id", "xdstp:///L/id", Some("")),
        ("xdstp://a%20b/L/id", "xdstp://a%20b/L/id", Some("a b")),
        ("xdstp://a%2Fb/L/id", "xdstp://a%2Fb/L/id", Some("a/b")),
        ("xdstp://[::1]:80/L/id", "xdstp://[::1]:80/L/id", Some("[::1]:80")),
        ("xdstp://auth/L//id/", "xdstp://auth/L//id/", Some("auth")),
    ];
    for (text, canonical, authority) in cases {
        let expected = (long(canonical), authority.map(str::to_owned));
        assert_eq!(read(&long(text)), Ok(expected), "{text}");
    }
    let encoded_type = read("xdstp://auth/envoy.config.listener.v3.%4Cistener/id");
    assert_eq!(encoded_type, Ok((long("xdstp://auth/L/id"), Some("auth".to_owned()))));
}

/// FED-3: names with another authority, id or parameter are different resources.
#[test]
fn different_resources_have_different_names() {
    let names = [
        "id",
        "xdstp:///L/id",
        "xdstp://a/L/id",
        "xdstp://b/L/id",
        "xdstp://a/L/ID",
        "xdstp://a/L/id/",
        "xdstp://a/L/i/d",
        "xdstp://a/L/i%2Fd",
        "xdstp://a/L/id?a=1",
        "xdstp://a/L/id?a=2",
        "xdstp://a/L/id?b=1",
        "xdstp://a/L/id?a=1&b=1",
        "xdstp://a/L/id?a=1%26b=1",
        "xdstp://a/L/id%3Fa=1",
    ];
    let read = names.map(|text| ResourceName::parse(ResourceType::Listener, &long(text)).unwrap());
    let distinct: std::collections::BTreeSet<_> = read.iter().collect();
    assert_eq!(distinct.len(), names.len());
}

/// FED-3: invalid names are rejected.
#[test]
fn invalid_names_are_rejected() {
    let form = "expected xdstp://AUTHORITY/TYPE/ID";
    let cases = [
        ("", "must not be empty".to_owned()),
        ("xdstp:", form.to_owned()),
        ("xdstp:/L/id", form.to_owned()),
        ("xdstp://auth", form.to_owned()),
        ("xdstp://auth/id", form.to_owned()),
        ("xdstp://auth?/L/id", form.to_owned()),
        ("xdstp://auth/L/", "has no id after its type".to_owned()),
        ("xdstp://auth/L/?a=1", "has no id after its type".to_owned()),
        ("xdstp://auth/L/id?=1", "context parameter \"=1\" has no name".to_owned()),
        ("xdstp://auth/L/a%", "\"a%\": expected two hexadecimal digits after each %".to_owned()),
        ("xdstp://auth/L/a%2", "\"a%2\": expected two hexadecimal digits after each %".to_owned()),
        ("xdstp://auth/L/%+1", "\"%+1\": expected two hexadecimal digits after each %".to_owned()),
        ("xdstp://a%zz/L/id", "\"a%zz\": expected two hexadecimal digits after each %".to_owned()),
        ("xdstp://auth/L/id?a=%FF", "\"%FF\": is not UTF-8 when percent-decoded".to_owned()),
        (
            "xdstp://auth/envoy.config.route.v3.RouteConfiguration/id",
            "expected type \"envoy.config.listener.v3.Listener\", found \"envoy.config.route.v3.RouteConfiguration\""
                .to_owned(),
        ),
    ];
    for (text, problem) in cases {
        let text = long(text);
        assert_eq!(read(&text), Err(format!("resource name {text:?}: {problem}")));
    }
}

/// FED-3: the type in a name must be that of the subscription.
#[test]
fn each_type_takes_its_own_names() {
    for kind in ResourceType::ALL {
        for other in ResourceType::ALL {
            let name = format!("xdstp://auth/{}/id", other.message());
            assert_eq!(ResourceName::parse(kind, &name).is_ok(), kind == other, "{name} as {kind}");
        }
    }
}

#[test]
fn long_names_are_refused_and_not_repeated() {
    let longest = "n".repeat(4 << 10);
    assert_eq!(read(&longest), Ok((longest.clone(), None)));
    let longer = format!("{longest}n");
    let error = format!("resource name {:?}...: has 4097 bytes; at most 4096 are allowed", "n".repeat(120));
    assert_eq!(read(&longer), Err(error));
    let spaces = long(&format!("xdstp://auth/L/{}", " ".repeat(2_000)));
    let error = read(&spaces).unwrap_err();
    assert!(error.ends_with("has 6047 bytes when percent-encoded; at most 4096 are allowed"), "{error}");
}

proptest! {
    /// FED-3: a canonical name is its own canonical form.
    #[test]
    fn canonical_names_stay_as_they_are(text in "(xdstp://[a-z%/]{0,4}/envoy.config.listener.v3.Listener/)?[ -~ö]{0,20}") {
        if let Ok(name) = ResourceName::parse(ResourceType::Listener, &text) {
            prop_assert_eq!(ResourceName::parse(ResourceType::Listener, name.as_str()), Ok(name));
        }
    }

    /// FED-3: the order of context parameters does not matter.
    #[test]
    fn order_of_parameters_does_not_matter(
        parameters in prop::collection::btree_map("[a-z%&=/]{1,3}", "[ -~ö]{0,6}", 1..5).prop_flat_map(|all| {
            let all: Vec<_> = all.into_iter().collect();
            (Just(all.clone()), Just(all).prop_shuffle())
        })
    ) {
        let name = |parameters: &[(String, String)]| {
            let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<Vec<_>>().concat();
            let query: Vec<_> =
                parameters.iter().map(|(key, value)| format!("{}={}", escaped(key), escaped(value))).collect();
            let text = long(&format!("xdstp://auth/L/id?{}", query.join("&")));
            ResourceName::parse(ResourceType::Listener, &text).unwrap()
        };
        prop_assert_eq!(name(&parameters.0), name(&parameters.1));
    }
}
