//! Start of a channel: the first call, and an unreachable control plane.

use std::sync::Arc;
use std::time::Duration;

use super::{LONG, Mesh, call, channel, channel_by, endpoints, patient, policies, request, send};
use evenkeel::{Bootstrap, Channel};
use evenkeel_xds::bootstrap::ServerConfig;
use testkit::net::proxy::Proxy;
use testkit::net::{Backend, ControlPlane};
use testkit::resources;
use tokio::time::timeout;
use tonic::Code;

/// Resolves the target and makes the first call. Afterwards the tree shows the policies and endpoints.
#[tokio::test]
async fn the_first_call() {
    let mesh = Mesh::start(2).await;
    assert!(mesh.channel.tree().await.is_none(), "no call was made yet");
    assert_eq!(mesh.control.streams(), 0);

    let answered_by = call(&mesh.channel).await.unwrap();
    assert!(mesh.backends.iter().any(|backend| backend.name() == answered_by));
    mesh.channel.ready().await.unwrap();

    let tree = mesh.channel.tree().await.unwrap();
    let names: Vec<_> = policies(&tree).into_iter().map(|policy| policy.policy.as_str()).collect();
    assert_eq!(
        names,
        [
            "xds_cluster_manager_experimental",
            "cds_experimental",
            "xds_cluster_resolver_experimental",
            "priority_experimental",
            "xds_cluster_impl_experimental",
            "xds_wrr_locality_experimental",
            "weighted_target_experimental",
            "edf_weighted_round_robin",
        ]
    );
    assert_eq!(tree.children[0].0, "cluster:pay");
    let rows = endpoints(&tree);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows.iter().map(|row| row.picks).sum::<u64>(), 1);
    assert!(rows.iter().all(|row| row.locality.as_deref().is_some_and(|name| name.contains("local"))));
    assert!(mesh.control.nacks().is_empty());
}

/// fault 2: calls fail at once with the target, the listener, the server and its error, and the node.
/// Wait-for-ready calls complete once the control plane is reachable.
#[tokio::test]
async fn no_control_plane_at_the_start() {
    let control = ControlPlane::start().await;
    let backend = Backend::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    control.kill();
    let channel = channel(&control).build().unwrap();

    let waiting = tokio::spawn({
        let channel = channel.clone();
        async move { send(&channel, patient(request())).await }
    });
    let status = call(&channel).await.unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Unavailable);
    let waits_for = r#"target "xds:///orders": listener "orders": not received: xDS server "#;
    assert!(status.message().starts_with(waits_for), "{:?}", status.message());
    for part in [&*control.address().to_string(), "os error 111", "node-7"] {
        assert!(status.message().contains(part), "no {part:?} in {:?}", status.message());
    }
    assert!(!waiting.is_finished());

    control.restart().await;
    assert_eq!(waiting.await.unwrap().unwrap(), backend.name());
    assert_eq!(call(&channel).await.unwrap(), backend.name());
}

/// Makes calls with a short deadline until one fails with a message that contains these texts, in order.
async fn waits_for(channel: &Channel, parts: &[&str]) {
    let mut text = String::new();
    let is_found = |text: &str| {
        let mut rest = text;
        parts.iter().all(|part| match rest.split_once(part) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    };
    let found = timeout(LONG, async {
        while !is_found(&text) {
            let mut request = request();
            request.set_timeout(Duration::from_millis(50));
            let status = send(channel, request).await.expect_err("nothing can serve the call");
            assert_eq!(
                status.code(),
                Code::DeadlineExceeded,
                "expected {parts:?}, found {text:?}, then {status}"
            );
            status.message().clone_into(&mut text);
        }
    });
    assert!(found.await.is_ok(), "expected {parts:?}, found {text:?}");
}

/// A call whose deadline passes before the first config names the stage: the resource, its server, the stream's state,
/// the time and the node. A stage that is over is named no more.
#[tokio::test]
async fn a_late_call_names_the_stage_that_it_waits_for() {
    let control = ControlPlane::start().await;
    control.kill();
    let unreachable = Proxy::to(control.address()).await;
    unreachable.accept_only(true);
    let bootstrap = control.bootstrap("node-7");
    let bootstrap = bootstrap.replace(&control.address().to_string(), &unreachable.address().to_string());
    let silent = super::channel_by(&bootstrap).build().unwrap();
    let server = format!("from xDS server \"{}\": ", unreachable.address());
    let text =
        [r#"for listener "orders" "#, &server, "the stream is being opened", r#"(xDS node id "node-7")"#];
    waits_for(&silent, &text).await;

    control.restart().await;
    let channel = channel(&control).build().unwrap();
    let server = format!("from xDS server \"{}\": ", control.address());
    let has_responded = "the stream is open, the server has not sent the resource ";
    let stage = async |resource: &str| {
        let resource = format!(" for {resource} ");
        let text = ["waiting for ", &resource, &server, has_responded, r#"(xDS node id "node-7")"#];
        waits_for(&channel, &text).await;
    };
    stage(r#"listener "orders""#).await;
    control.set(resources::listener_with_rds("orders", "routes"));
    stage(r#"route configuration "routes""#).await;
    control.set(resources::route_config("routes", "pay"));
    stage(r#"cluster "pay""#).await;
    control.set(resources::cluster("pay"));
    stage(r#"endpoints "pay""#).await;
    let backend = Backend::start().await;
    let unresponsive = Proxy::to(backend.address()).await;
    unresponsive.accept_only(true);
    control.set_endpoints("pay", &[unresponsive.address()]);
    let attempt = format!("1 connection attempt in progress, to {} for ", unresponsive.address());
    waits_for(&channel, &["no endpoint is connected: ", &attempt]).await;
}

/// The name of a service that is no valid `:authority` fails `build`, unless the application sets one.
#[tokio::test]
async fn names_that_are_no_authority() {
    let control = ControlPlane::start().await;
    let bootstrap = Bootstrap::from_json(&control.bootstrap("node-7")).unwrap();
    let to = || crate::builder("xds:///shop/orders").bootstrap(bootstrap.clone());
    let error = to().build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "authority \"shop%2Forders\": expected host or host:port, found the path of the target; set an authority \
         for the channel"
    );
    to().authority("orders").build().unwrap();
}

/// Bootstraps that no channel can use fail `build`, with the field, the value and the accepted forms.
#[tokio::test]
async fn unusable_control_planes_fail_build() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bootstrap.json");
    for (uri, kind, expected) in [
        (
            "etcd:///a",
            "insecure",
            "xds_servers[0].server_uri: \"etcd:///a\": expected host:port, dns:///host:port, ",
        ),
        ("a b:1", "insecure", "xds_servers[0].server_uri: \"a b:1\": expected a host name"),
        ("http://a", "insecure", "xds_servers[0].server_uri: \"http://a\": has no port; expected"),
        (
            "a:1",
            "google_default",
            "xds_servers[0].channel_creds: expected insecure or tls, found \"google_default\";",
        ),
    ] {
        let text = format!(
            r#"{{"xds_servers": [{{"server_uri": "{uri}", "channel_creds": [{{"type": "{kind}"}}]}}]}}"#
        );
        std::fs::write(&file, text).unwrap();
        let error = crate::builder("xds:///orders").bootstrap_file(&file).build().unwrap_err();
        assert!(error.to_string().contains(&format!("bootstrap: {expected}")), "{error}");
    }
    // A bootstrap that was built in code is checked too.
    let mut built = Bootstrap::from_json(&ControlPlane::start().await.bootstrap("node-7")).unwrap();
    built.servers = vec![Arc::new(ServerConfig::insecure("etcd:///a"))];
    let error = crate::builder("xds:///orders").bootstrap(built).build().unwrap_err();
    assert!(error.to_string().starts_with("server_uri \"etcd:///a\": expected host:port, "), "{error}");
}

/// A control plane that is a URL is used without its scheme.
#[tokio::test]
async fn control_planes_that_are_urls() {
    let control = ControlPlane::start().await;
    let backend = Backend::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    let address = control.address().to_string();
    for scheme in ["http", "https"] {
        let text = control.bootstrap("node-7").replace(&address, &format!("{scheme}://{address}"));
        assert!(text.contains("://"));
        let channel = channel_by(&text).build().unwrap();
        assert_eq!(call(&channel).await.unwrap(), backend.name());
    }
}
