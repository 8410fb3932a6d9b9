//! Listener names of targets and of server addresses.

use evenkeel_xds::bootstrap::Bootstrap;
use serde_json::{Value, json};

use super::{read, server, with};

/// Returns the listener name and the authority of a target.
fn target(bootstrap: &Bootstrap, target: &str) -> Result<(String, String), String> {
    let target = bootstrap.listener_name(target).map_err(|error| error.to_string())?;
    Ok((target.listener.to_string(), target.authority))
}

/// FED-1, FED-2, FED-5: the examples of A47 and the edge cases of targets lead to the expected listener.
#[test]
fn targets_lead_to_listeners() {
    let plain = read(&with("authorities", json!({})));
    let federated = read(&json!({
        "xds_servers": [server("a")],
        "client_default_listener_resource_name_template":
            "xdstp://xds.authority.com/envoy.config.listener.v3.Listener/grpc/client/%s?project_id=1234",
        "authorities": {
            "xds.authority.com": {"client_listener_resource_name_template":
                "xdstp://xds.authority.com/envoy.config.listener.v3.Listener/own/%s/%s?project_id=1234"},
            "xds.other.com": {},
            "a b": {},
        },
    }));
    let listed = read(&with("client_default_listener_resource_name_template", json!("listeners/%s?at=%s")));
    let fixed = read(&with("client_default_listener_resource_name_template", json!("always")));
    let long = |text: &str| text.replace("/L/", "/envoy.config.listener.v3.Listener/");
    let cases = [
        (&plain, "xds:///orders", "orders", "orders"),
        (&plain, "xds:orders", "orders", "orders"),
        (&plain, "xds:/orders", "orders", "orders"),
        (&plain, "XDS:///orders", "orders", "orders"),
        (&plain, "orders", "orders", "orders"),
        (&plain, "orders:8080", "orders:8080", "orders:8080"),
        (&plain, "xds:orders:8080", "orders:8080", "orders:8080"),
        (&plain, "xds:///shop/orders", "shop/orders", "shop%2Forders"),
        (&plain, "xds:////orders", "/orders", "%2Forders"),
        (&plain, "xds:///a%20b%3F", "a b?", "a%20b%3F"),
        (&plain, "xds:///[::1]:80", "[::1]:80", "[::1]:80"),
        (&listed, "xds:///a b", "listeners/a b?at=a b", "a%20b"),
        (&fixed, "xds:///orders", "always", "orders"),
        (
            &federated,
            "xds:///server.example.com",
            "xdstp://xds.authority.com/L/grpc/client/server.example.com?project_id=1234",
            "server.example.com",
        ),
        (
            &federated,
            "xds:///[::1]:80/x y",
            "xdstp://xds.authority.com/L/grpc/client/%5B::1%5D:80/x%20y?project_id=1234",
            "[::1]:80%2Fx%20y",
        ),
        (
            &federated,
            "xds:///a%3Fb%25s",
            "xdstp://xds.authority.com/L/grpc/client/a%3Fb%25s?project_id=1234",
            "a%3Fb%25s",
        ),
        (
            &federated,
            "xds://xds.authority.com/a/b",
            "xdstp://xds.authority.com/L/own/a/b/a/b?project_id=1234",
            "a%2Fb",
        ),
        (
            &federated,
            "xds://xds.other.com/server.other.com",
            "xdstp://xds.other.com/L/server.other.com",
            "server.other.com",
        ),
        (&federated, "xds://a%20b/orders", "xdstp://a%20b/L/orders", "orders"),
    ];
    for (bootstrap, text, listener, authority) in cases {
        assert_eq!(target(bootstrap, text), Ok((long(listener), authority.to_owned())), "{text}");
    }
}

/// FED-1, FED-2: a target without a listener is rejected with the reason.
#[test]
fn targets_without_a_listener_are_rejected_with_a_reason() {
    let none = read(&with("authorities", json!({})));
    let two = read(&with("authorities", json!({"a": {}, "b\n": {}})));
    let default = |template: &str| {
        read(
            &json!({"xds_servers": [server("a")], "authorities": {"a": {}}, "client_default_listener_resource_name_template": template}),
        )
    };
    let elsewhere = default("xdstp://c/envoy.config.listener.v3.Listener/%s");
    let nobody = default("xdstp:///envoy.config.listener.v3.Listener/%s");
    let odd = default("xdstp://a/listeners/%s");
    let name = "expected the name of a service, as in xds:///orders";
    let from = "(from client_default_listener_resource_name_template of the bootstrap)";
    let cases: Vec<(&Bootstrap, &str, String)> = vec![
        (&none, "", name.into()),
        (&none, "xds:", name.into()),
        (&none, "xds:///", name.into()),
        (&none, "xds://a", name.into()),
        (&none, "dns:///orders", "expected scheme xds, found \"dns\"".into()),
        (
            &none,
            "xds:///orders?a=b",
            "? is not allowed in a target; write %3F if the name contains it".into(),
        ),
        (&none, "xds:///orders#a", "# is not allowed in a target; write %23 if the name contains it".into()),
        (&none, "xds:///100%", "\"100%\": expected two hexadecimal digits after each %".into()),
        (
            &none,
            "xds://a/orders",
            "authority \"a\" is not in authorities of the bootstrap, which has none".into(),
        ),
        (
            &two,
            "xds://A/orders",
            "authority \"A\" is not in authorities of the bootstrap, which has \"a\", \"b\\n\"".into(),
        ),
        (
            &elsewhere,
            "xds:///x",
            format!("authority \"c\" is not in authorities of the bootstrap, which has \"a\" {from}"),
        ),
        (
            &nobody,
            "xds:///x",
            format!("authority \"\" is not in authorities of the bootstrap, which has \"a\" {from}"),
        ),
        (
            &odd,
            "xds:///x",
            format!(
                "resource name \"xdstp://a/listeners/x\": expected type \"envoy.config.listener.v3.Listener\", found \"listeners\" {from}"
            ),
        ),
    ];
    for (bootstrap, text, problem) in cases {
        assert_eq!(target(bootstrap, text), Err(format!("target {text:?}: {problem}")));
    }
    let long = "n".repeat(5_000);
    let error = target(&none, &long).unwrap_err();
    assert!(error.len() < 500 && error.contains("has 5000 bytes; at most 4096 are allowed"), "{error}");
}

/// BS-6: the listener name of a server comes from the template and the listening address.
#[test]
fn servers_ask_for_listeners_by_their_address() {
    let server_name = |template: Value, address: &str| {
        let mut bootstrap = with("authorities", json!({"xds.authority.com": {}}));
        bootstrap["server_listener_resource_name_template"] = template;
        let name = read(&bootstrap).server_listener_name(address).map_err(|error| error.to_string());
        name.map(|name| name.to_string())
    };
    let ok = |text: &str| Ok(text.to_owned());
    assert_eq!(
        server_name(json!("example/resource/%s"), "0.0.0.0:8080"),
        ok("example/resource/0.0.0.0:8080")
    );
    let address = "grpc/server?xds.resource.listening_address=";
    assert_eq!(server_name(json!(format!("{address}%s")), "[::]:80"), ok(&format!("{address}[::]:80")));
    let prefix = "xdstp://xds.authority.com/envoy.config.listener.v3.Listener/grpc/server";
    assert_eq!(
        server_name(json!(format!("{prefix}/%s?b=1&a=2")), "[::]:80"),
        ok(&format!("{prefix}/%5B::%5D:80?a=2&b=1"))
    );
    assert_eq!(
        server_name(json!(null), "[::]:80"),
        Err("server \"[::]:80\": server_listener_resource_name_template is not set in the bootstrap"
            .to_owned()),
    );
    assert_eq!(
        server_name(json!("xdstp://b/envoy.config.listener.v3.Listener/%s"), "[::]:80"),
        Err("server \"[::]:80\": authority \"b\" is not in authorities of the bootstrap, which has \"xds.authority.com\" \
            (from server_listener_resource_name_template of the bootstrap)".to_owned()),
    );
}
