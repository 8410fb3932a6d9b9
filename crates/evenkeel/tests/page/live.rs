//! Status page of a real process: a control plane, backends, a channel under constant load, and the admin
//! server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel::admin::{AdminServer, AdminWatch};
use evenkeel::{Bootstrap, Channel, XdsClient};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use testkit::browser::{Browser, Page, Theme};
use testkit::net::Backend;
use testkit::net::control::ControlPlane;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::resources;

use crate::{open, picture, text};

/// The page shows shares, weights, disconnects and NACKs as they happen. Its figures equal those of
/// `/api/state`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_follows_the_process() {
    let Some(browser) = Browser::start().await else { return };
    let backends = [Backend::start().await, Backend::start().await];
    let control = ControlPlane::start().await;
    control.serve("orders", "orders", &backends.each_ref().map(Backend::address));
    set_weights(&control, &backends, [1, 3]);
    let bootstrap = Bootstrap::from_json(&control.bootstrap("page")).expect("a bootstrap");
    let client = XdsClient::builder(bootstrap).build();
    let channel = Channel::builder("xds:///orders").xds_client(client).build().expect("a channel");
    channel.ready().await.expect("an open channel");
    let ended = call_steadily(&channel);
    let watch = AdminWatch::start("live", Duration::from_millis(250)).await;
    let admin = AdminServer::builder().watch(watch.clone()).start().await.expect("an admin server");

    let page = open(&browser, &format!("http://{}/", admin.address()), 1280, 800, Theme::Light).await;
    wait_for_shares(&page, &backends, [0.25, 0.75]).await;
    assert_eq!(text(&page, "#target").await, "xds:///orders");
    assert_eq!(text(&page, "#plane").await, "connected");
    assert_eq!(cell(&page, &backends[1], "weight").await, "3.00");
    assert_eq!(page.eval::<u32>("document.querySelectorAll('[data-status=ACKED]').length").await, 4);
    page.wait_for("document.querySelector('#headline').textContent === 'On an even keel'").await;
    assert_eq!(page.eval::<Vec<String>>(DIFFERENCES).await, [""; 0], "the page and /api/state");

    page.wait_for("!document.querySelector('#routes').hidden").await;
    let route = "document.querySelector('#route-list tr').innerText.replaceAll(/\\s+/g, ' ').trim()";
    assert_eq!(page.eval::<String>(route).await, "orders: * all calls orders");
    page.eval::<()>("void document.querySelector('[data-kind=Cluster] .name button').click()").await;
    assert!(text(&page, "[data-kind=Cluster] .raw").await.contains("\"edsClusterConfig\""));

    watch.mark("the weights change");
    set_weights(&control, &backends, [1, 1]);
    wait_for_shares(&page, &backends, [0.5, 0.5]).await;
    page.wait_for("[...document.querySelectorAll('[data-level=mark]')].some((event) => event.innerText.includes('the weights change'))").await;

    backends[0].kill();
    let dead = format!("document.querySelector('[data-endpoint=\"{}\"]')", backends[0].address());
    page.wait_for(&format!(
        "{dead}.dataset.state !== 'READY' && {dead}.querySelector('[data-field=got]').textContent === '0.0%'"
    ))
    .await;
    page.wait_for("document.querySelector('#ready').textContent === '1 / 2'").await;
    page.wait_for(&format!("{dead}.querySelector('[data-field=unused]').textContent !== ''")).await;
    page.screenshot(picture("live-dead")).await;
    backends[0].restart().await;
    wait_for_shares(&page, &backends, [0.5, 0.5]).await;

    control.set(Cluster { name: "orders".to_owned(), ..Cluster::default() });
    page.wait_for("document.querySelector('[data-resource=orders][data-kind=Cluster][data-status=NACKED] .error').textContent.includes('was rejected')").await;
    page.wait_for("!document.querySelector('#hints').hidden").await;
    wait_for_shares(&page, &backends, [0.5, 0.5]).await;
    assert_eq!(page.problems(), [""; 0]);
    page.screenshot(picture("live")).await;

    drop(admin);
    page.wait_for("document.body.dataset.connected === 'false' && !document.querySelector('#banner').hidden")
        .await;
    ended.store(true, Ordering::Relaxed);
}

/// Returns the differences between the page and `/api/state`. Retries until both show the same sample.
const DIFFERENCES: &str = r#"(async () => {
    const cell = (address, field) => document.querySelector(`[data-endpoint="${address}"] [data-field=${field}]`).textContent;
    const share = (value) => (value === 0 || value >= 0.01 ? (value * 100).toFixed(1) : (value * 100).toFixed(2)) + '%';
    const scaled = (value, one, two) => Number(value.toFixed(value >= one || value === 0 ? 0 : value >= two ? 1 : 2)).toString();
    const number = (text) => Number(text.replaceAll(',', '')).toString();
    for (;;) {
        const state = await (await fetch('/api/state')).json();
        if (String(state.at) !== document.body.dataset.at) continue;
        const wrong = [];
        const same = (what, found, expected) => { if (found !== expected) wrong.push(`${what}: ${found} is not ${expected}`); };
        const { endpoints, traffic } = state.channels[0];
        same('calls', number(document.querySelector('#calls').textContent), scaled(traffic.rate, 100, 1));
        same('p99', number(document.querySelector('#p99').textContent), scaled(traffic.p99_ms, 100, 10));
        for (const endpoint of endpoints) {
            same('got', cell(endpoint.address, 'got'), share(endpoint.got));
            same('want', cell(endpoint.address, 'want'), share(endpoint.want));
            same('rate', number(cell(endpoint.address, 'rate')), scaled(endpoint.traffic.rate, 100, 1));
            same('p99', number(cell(endpoint.address, 'p99')), scaled(endpoint.traffic.p99_ms, 100, 10));
            same('weight', number(cell(endpoint.address, 'weight')), scaled(endpoint.weight, 100, 10));
        }
        same('endpoints', endpoints.length, document.querySelectorAll('[data-endpoint]').length);
        return wrong;
    }
})()"#;

/// Waits until the page shows these expected shares, and similar actual ones.
async fn wait_for_shares(page: &Page, backends: &[Backend; 2], shares: [f64; 2]) {
    for (backend, share) in backends.iter().zip(shares) {
        let row = format!("document.querySelector('[data-endpoint=\"{}\"]')", backend.address());
        let percent =
            |field: &str| format!("parseFloat({row}.querySelector('[data-field={field}]').textContent)");
        let wanted = share * 100.0;
        page.wait_for(&format!(
            "{row}.dataset.state === 'READY' && {} === {wanted} && Math.abs({} - {wanted}) < 3",
            percent("want"),
            percent("got")
        ))
        .await;
    }
}

async fn cell(page: &Page, backend: &Backend, field: &str) -> String {
    text(page, &format!("[data-endpoint='{}'] [data-field={field}]", backend.address())).await
}

fn set_weights(control: &ControlPlane, backends: &[Backend; 2], weights: [u32; 2]) {
    let addresses = backends.each_ref().map(|backend| backend.address().to_string());
    let endpoints = resources::load_assignment("orders", &addresses.each_ref().map(String::as_str));
    control.set(resources::weighted(endpoints, weights));
}

/// Runs four sequential callers until the returned flag is set. Calls may fail, since backends are killed.
fn call_steadily(channel: &Channel) -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    for _ in 0..4 {
        let (mut client, ended) = (EchoClient::new(channel.clone()), ended.clone());
        tokio::spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                let _ = client.unary(EchoRequest::default()).await;
            }
        });
    }
    ended
}
