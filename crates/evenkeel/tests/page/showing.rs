//! Rendering of states that the test provides.

use serde_json::{Value, json};
use testkit::browser::{Browser, Theme};

use crate::scripted::{
    self, Script, busy_state, channel, endpoint, fail, fleet, fleet_history, state, without_config,
};
use crate::{open, picture, reading, shown, text};

/// A channel that appears while the history request is pending is shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_that_come_before_the_history_are_shown() {
    let Some(browser) = Browser::start().await else { return };
    let script = Script::start(state(0, &[])).await;
    script.be_slow(true);
    let page = browser.page(1280, 800, Theme::Light).await;
    page.open(script.url()).await;
    page.wait_for("document.body.dataset.connected === 'true'").await;
    let later = state(1, &[channel(1, "xds:///orders", &fleet())]);
    script.say(later.clone());
    shown(&page, &later).await;
    script.be_slow(false);
    for second in 2..5 {
        let later = state(second, &[channel(1, "xds:///orders", &fleet())]);
        script.say(later.clone());
        shown(&page, &later).await;
    }
    assert_eq!(page.problems(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uneven_balance_is_reported_with_the_endpoints() {
    let Some(browser) = Browser::start().await else { return };
    let script = Script::start(state(0, &[channel(1, "xds:///orders", &fleet())])).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    assert_eq!(text(&page, "#headline").await, "On an even keel");
    assert_eq!(text(&page, "#target").await, "xds:///orders");
    assert_eq!(text(&page, "[data-endpoint='127.0.0.1:41005'] [data-field=got]").await, "50.0%");
    assert_eq!(text(&page, "[data-endpoint='127.0.0.1:41001'] [data-field=rate]").await, "37.5");

    let mut endpoints = fleet();
    endpoints[0]["utilization"] = json!(1.2);
    let overloaded = state(1, &[channel(1, "xds:///orders", &endpoints)]);
    script.say(overloaded.clone());
    shown(&page, &overloaded).await;
    assert_eq!(text(&page, "#headline").await, "Overloaded");
    assert_eq!(
        text(&page, "#because").await,
        "small-1 is above its capacity (up to 120%) while small-2 has spare capacity (38%)."
    );
    assert_eq!(page.eval::<String>("document.querySelector('#verdict').dataset.level").await, "bad");

    let mut endpoints = fleet();
    endpoints[4]["traffic"]["failures"] = json!(30.0);
    let failing = state(2, &[channel(1, "xds:///orders", &endpoints)]);
    script.say(failing.clone());
    shown(&page, &failing).await;
    assert_eq!(
        (text(&page, "#headline").await, text(&page, "#success").await),
        ("Calls fail".into(), "95.00%".into())
    );
    assert!(text(&page, "#because").await.contains("huge"));

    let mut endpoints = fleet();
    endpoints[3]["state"] = json!("TRANSIENT_FAILURE");
    endpoints[3]["unused"] = json!("connection refused");
    let down = state(3, &[channel(1, "xds:///orders", &endpoints)]);
    script.say(down.clone());
    shown(&page, &down).await;
    assert_eq!(text(&page, "#headline").await, "1 of 5 endpoints down");
    assert_eq!(
        text(&page, "[data-endpoint='127.0.0.1:41004'] [data-field=unused]").await,
        "connection refused"
    );
    assert_eq!(text(&page, "[data-endpoint='127.0.0.1:41004'] [data-field=state]").await, "failing");

    let mut endpoints = fleet();
    (endpoints[4]["got"], endpoints[0]["got"]) = (json!(0.3), json!(0.2625));
    (endpoints[4]["off"], endpoints[0]["off"]) = (json!(-0.2), json!(0.2));
    let uneven = state(4, &[channel(1, "xds:///orders", &endpoints)]);
    script.say(uneven.clone());
    shown(&page, &uneven).await;
    assert_eq!(text(&page, "#headline").await, "Uneven");
    assert_eq!(
        page.eval::<Vec<String>>(
            "[...document.querySelectorAll('[data-off]')].map((cell) => cell.dataset.off)"
        )
        .await,
        ["more", "less"]
    );

    let mut resting = without_config(1, "xds:///orders", 0.0);
    resting["state"] = json!("IDLE");
    let at_rest = state(11, &[resting]);
    script.say(at_rest.clone());
    shown(&page, &at_rest).await;
    assert_eq!(text(&page, "#headline").await, "Idle");
    assert_eq!(page.problems(), [""; 0]);
}

/// Names from outside are inserted as text everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_are_text() {
    let Some(browser) = Browser::start().await else { return };
    let evil = "<img src=x onerror=\"window.broken=1\"><script>window.broken=1</script>";
    let mut endpoints =
        vec![endpoint(evil, "1.1.1.1:1", 10.0, 0.5, 0.5), endpoint("", "\"'><b>:2", 10.0, 0.5, 0.5)];
    endpoints[0]["unused"] = json!(evil);
    fail(&mut endpoints[0]["traffic"], &[("UNKNOWN", "server", 9)], evil);
    endpoints[0]["cluster"] = json!(evil);
    endpoints[0]["locality"] = json!(evil);
    let mut channel = channel(1, evil, &endpoints);
    channel["tree"] = json!({
        "policy": evil, "state": "READY", "details": { evil: evil, "chosen": evil }, "warnings": [evil],
        "children": [[evil, { "policy": evil, "state": null, "details": {} }]],
    });
    fail(&mut channel["traffic"], &[(evil, "server", 9)], evil);
    channel["drops"] = json!([{ "cluster": evil, "category": evil, "limit": null, "count": 9 }]);
    let mut state = state(0, &[channel, without_config(2, evil, 0.0)]);
    state["title"] = json!(evil);
    state["hints"] = json!([evil]);
    state["events"] =
        json!([{ "number": 1, "at": scripted::START, "level": "mark", "subject": evil, "text": evil }]);
    state["xds"] = json!([{
        "scope": evil, "node": evil, "servers": [{ "uri": evil, "connected": false }],
        "resources": [{ "kind": evil, "name": evil, "version": evil, "status": evil, "updated": null,
            "error": { "version": evil, "details": evil, "at": null } }],
    }]);
    let script = Script::start(state).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    page.eval::<()>("void document.querySelector('#tree .row').click()").await;
    let places = [
        "#title",
        "#target",
        "#because",
        "#channels b",
        "#codes th",
        "#last-error-text",
        "[data-endpoint='1.1.1.1:1'] .failed",
        "#hints li",
        "[data-event] .words",
        ".node",
        ".servers li",
        "[data-resource] .name",
        ".error",
        "#tree .policy",
        "#tree .details dt",
        "#tree .details dd",
        "#tree .warnings li",
        "[data-endpoint='1.1.1.1:1'] .name",
        "[data-endpoint='1.1.1.1:1'] .why",
        ".group th",
    ];
    for place in places {
        assert!(
            page.eval::<bool>(&format!(
                "document.querySelector({}).textContent.includes('<img src=x')",
                json!(place)
            ))
            .await,
            "{place}"
        );
    }
    assert_eq!(
        page.eval::<(u32, u32, bool)>(
            "[document.images.length, document.scripts.length, 'broken' in window]"
        )
        .await,
        (0, 1, false)
    );
    assert_eq!(page.problems(), [""; 0]);
}

/// UX 7: a thousand endpoints. An update changes only the elements whose data changed, and few others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_endpoints_stay_usable() {
    let Some(browser) = Browser::start().await else { return };
    let many = |second: u64| -> Value {
        let of = |index: u64| {
            let rate = 50.0 + ((index * 7 + second * 3) % 11) as f64;
            let address = format!("10.0.{}.{}:50051", index / 250, index % 250);
            let mut endpoint = endpoint("", &address, rate, 0.001, 0.5);
            endpoint["locality"] = json!(format!("zone-{}", index / 500));
            endpoint
        };
        let mut endpoints: Vec<Value> = (0..1000).map(of).collect();
        endpoints[777]["state"] = json!("TRANSIENT_FAILURE");
        endpoints[777]["unused"] = json!("connection refused");
        state(second, &[channel(1, "xds:///orders", &endpoints)])
    };
    let script = Script::start(many(0)).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    page.wait_for("document.querySelectorAll('[data-endpoint]').length === 40").await;
    assert_eq!(text(&page, "#ready").await, "999 / 1,000");
    let first = "document.querySelector('[data-endpoint]').dataset.endpoint";
    assert_eq!(page.eval::<String>(first).await, "10.0.3.27:50051", "the one in trouble stands first");

    let before = page.busy().await;
    for second in 1..=10 {
        script.say(many(second));
        shown(&page, &many(second)).await;
    }
    let each = page.busy().await.saturating_sub(before) / 10;
    eprintln!("an update of 1,000 endpoints, 40 shown: {each:?} of the processor");
    // The goal is 50 ms. Above 200 ms it is not noise.
    assert!(each.as_millis() < 200, "{each:?}");

    page.eval::<()>("void document.querySelector('#all').click()").await;
    page.wait_for("document.querySelectorAll('[data-endpoint]').length === 1000").await;
    let before = page.busy().await;
    for second in 11..=20 {
        script.say(many(second));
        shown(&page, &many(second)).await;
    }
    eprintln!("with all of them shown: {:?}", page.busy().await.saturating_sub(before) / 10);

    page.eval::<()>("void document.querySelector('#all').click()").await;
    page.eval::<()>("void (window.touched = 0, new MutationObserver((all) => { window.touched += all.length; }).observe(document.querySelector('#endpoints'), { subtree: true, childList: true, attributes: true, characterData: true }))").await;
    let mut same = many(20);
    same["at"] = json!(scripted::START + 21_000);
    script.say(same.clone());
    shown(&page, &same).await;
    assert_eq!(page.eval::<u32>("window.touched").await, 0, "what did not change is not touched");

    page.eval::<()>("void (document.querySelector('#filter').value = '10.0.3.27:', document.querySelector('#filter').dispatchEvent(new Event('input')))").await;
    assert_eq!(page.eval::<u32>("document.querySelectorAll('[data-endpoint]').length").await, 1);
    assert_eq!(page.problems(), [""; 0]);
    page.screenshot(picture("thousand")).await;
}

/// Among 1,000 endpoints, those that are down for one reason share a row, and the charts stay in reach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_failures_share_a_row() {
    let Some(browser) = Browser::start().await else { return };
    let of = |index: u64| {
        let address = format!("10.0.{}.{}:50051", index / 250, index % 250);
        let mut endpoint = endpoint("", &address, 50.0, 0.001, 0.5);
        if index.is_multiple_of(4) {
            endpoint["state"] = json!("TRANSIENT_FAILURE");
            let wait = index % 7;
            let why = format!(
                "connecting to {address}: connection refused (os error 111); next attempt in {wait}s"
            );
            endpoint["unused"] = json!(why);
        }
        endpoint
    };
    let mut endpoints: Vec<Value> = (0..1000).map(of).collect();
    endpoints[4]["unused"] = json!("certificate expired");
    let script = Script::start(state(1, &[channel(1, "xds:///orders", &endpoints)])).await;
    let page = open(&browser, script.url(), 1280, 1000, Theme::Light).await;
    let folds = "[...document.querySelectorAll('[data-fold] th')].map((row) => row.innerText)";
    assert_eq!(
        page.eval::<Vec<String>>(folds).await,
        [" 249 endpoints failing connection refused (os error 111)"]
    );
    assert_eq!(text(&page, "#headline").await, "250 of 1,000 endpoints down");
    let rows = "document.querySelectorAll('[data-endpoint]').length";
    assert_eq!(page.eval::<u32>(rows).await, 39);
    let bottom = "document.querySelector('#charts').getBoundingClientRect().top";
    assert!(page.eval::<f64>(bottom).await < 1000.0, "the charts are below the first screen");
    page.screenshot(picture("folded")).await;
    page.eval::<()>("void document.querySelector('[data-fold] button').click()").await;
    let down = "[...document.querySelectorAll('[data-state=TRANSIENT_FAILURE]')].length";
    assert_eq!(page.eval::<u32>(down).await, 39, "the members follow their row");
    assert_eq!(text(&page, "[data-fold] button").await, "Fold");
    assert_eq!(page.problems(), [""; 0]);
}

/// A link holds the channel, the filter and the order of the table. The state can be copied as JSON.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_has_a_link() {
    let Some(browser) = Browser::start().await else { return };
    let many: Vec<Value> = (0..20).map(|i| endpoint("", &format!("10.0.0.{i}:1"), 50.0, 0.05, 0.5)).collect();
    let both = state(0, &[channel(1, "xds:///orders", &fleet()), channel(2, "xds:///users", &many)]);
    let script = Script::start(both.clone()).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    page.eval::<()>("void document.querySelector('[data-channel=\"2\"]').click()").await;
    page.eval::<()>("void document.querySelector('[data-sort=name]').click()").await;
    page.eval::<()>("void (document.querySelector('#filter').value = '0.0.1', document.querySelector('#filter').dispatchEvent(new Event('input')))").await;
    let link: String = page.eval("location.href").await;
    assert!(link.ends_with("#channel=xds%3A%2F%2F%2Fusers&find=0.0.1&sort=name"), "{link}");

    let page = open(&browser, &link, 1280, 800, Theme::Light).await;
    assert_eq!(text(&page, "#target").await, "xds:///users");
    let rows = "document.querySelectorAll('[data-endpoint]').length";
    assert_eq!(page.eval::<u32>(rows).await, 11);
    let sorted = "document.querySelector('[data-sort=name]').parentElement.getAttribute('aria-sort')";
    assert_eq!(page.eval::<String>(sorted).await, "ascending");

    page.eval::<()>("void (navigator.clipboard.writeText = async (text) => { window.copied = text; })").await;
    page.eval::<()>("void document.querySelector('#copy').click()").await;
    page.wait_for("document.querySelector('#copy').textContent === 'Copied'").await;
    let copied: String = page.eval("window.copied").await;
    let copied: Value = serde_json::from_str(&copied).expect("JSON");
    assert_eq!(copied["channels"][1]["target"], "xds:///users");
    assert_eq!(page.problems(), [""; 0]);
}

/// Routes are a table, and each resource can be expanded to its JSON. Both are text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_and_routes_are_shown() {
    let Some(browser) = Browser::start().await else { return };
    let evil = "<img src=x onerror=\"window.broken=1\">";
    let weighted = json!({ "clusters": [{ "name": "pay", "weight": 3 }, { "name": "pay-v2", "weight": 1 }] });
    let routes = json!([
        {
            "match": { "path": "/pay.Pay/Refund", "headers": [{ "name": "x-user", "prefixMatch": "vip" }] },
            "route": { "weightedClusters": weighted },
        },
        { "match": { "prefix": "/pay.Pay/" }, "route": { "cluster": evil } },
        { "match": { "prefix": "" }, "nonForwardingAction": {} },
    ]);
    let resource = |kind: &str, name: &str, config: Value| json!({ "typeUrl": format!("type.googleapis.com/envoy.config.{kind}"), "name": name, "xdsConfig": config });
    let script = Script::start(busy_state(3)).await;
    script.provide(&json!({ "config": [{ "clientScope": "#default", "genericXdsConfigs": [
        resource("listener.v3.Listener", "orders", json!({ "name": "orders" })),
        resource("route.v3.RouteConfiguration", "routes", json!({
            "virtualHosts": [{ "domains": ["orders", "orders:80"], "routes": routes }],
        })),
        resource("cluster.v3.Cluster", "orders", json!({ "lbPolicy": evil })),
    ] }] }));
    for (width, height) in [(1280, 800), (390, 844)] {
        let page = open(&browser, script.url(), width, height, Theme::Dark).await;
        page.wait_for("!document.querySelector('#routes').hidden").await;
        let cells = "[...document.querySelectorAll('#route-list tr')].map((row) => [...row.children].map((cell) => cell.textContent))";
        assert_eq!(
            page.eval::<Vec<[String; 3]>>(cells).await,
            [
                [
                    "routes: orders, orders:80",
                    "/pay.Pay/Refund, header x-user prefix vip",
                    "pay 75.0%, pay-v2 25.0%"
                ],
                ["", "/pay.Pay/*", evil],
                ["", "all calls", "no cluster"],
            ]
        );
        let row = "[data-resource=orders][data-kind=Cluster]";
        let raw = format!("{row} .raw");
        assert!(page.eval::<bool>(&format!("document.querySelector('{raw}').hidden")).await);
        page.eval::<()>(&format!("void document.querySelector('{row} .name button').click()")).await;
        assert_eq!(
            text(&page, &raw).await,
            serde_json::to_string_pretty(&json!({ "lbPolicy": evil })).unwrap()
        );
        page.eval::<()>(
            "void document.querySelector('[data-kind=ClusterLoadAssignment] .name button').click()",
        )
        .await;
        let absent = text(&page, "[data-kind=ClusterLoadAssignment] .raw").await;
        assert_eq!(absent, "The client has no version of this resource.");
        assert!(!page.eval::<bool>("'broken' in window").await);
        assert_eq!(page.eval::<Vec<String>>(reading::FAINT).await, [""; 0]);
        assert_eq!(page.eval::<Vec<String>>(reading::WIDE).await, [""; 0]);
        assert_eq!(page.problems(), [""; 0]);
        let whole: u32 = page.eval("document.documentElement.scrollHeight").await;
        page.resize(width, whole).await;
        page.screenshot(picture(&format!("routes-{width}"))).await;
    }
}

/// A lower priority in use is named by its number. The name of the child counts generations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_named() {
    let Some(browser) = Browser::start().await else { return };
    let mut orders = channel(1, "xds:///orders", &fleet());
    let priority = &mut orders["tree"]["children"][0][1]["children"][0][1];
    priority["details"] =
        json!({ "priorities": ["orders/priority-7", "orders/priority-3"], "chosen": "orders/priority-3" });
    let child = priority["children"][0][1].clone();
    priority["children"] = json!([
        ["orders/priority-7", { "policy": "round_robin", "state": "TRANSIENT_FAILURE", "details": {} }],
        ["orders/priority-3", child],
    ]);
    let script = Script::start(state(1, &[orders])).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Dark).await;
    assert_eq!(text(&page, "#headline").await, "Failover to priority 1");
    let because = text(&page, "#because").await;
    assert_eq!(because, "Cluster \"orders\" has failed over to priority 1: priority 0 is not available.");
    assert_eq!(text(&page, "[data-policy=priority_experimental] .sum").await, "failover to priority 1");
    let edges: Vec<String> =
        page.eval("[...document.querySelectorAll('#tree .edge')].map((edge) => edge.textContent)").await;
    assert!(
        edges.contains(&"priority 0".to_owned()) && edges.contains(&"priority 1".to_owned()),
        "{edges:?}"
    );
    assert!(edges.iter().all(|edge| !edge.contains("priority-")), "{edges:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_server_is_reported_until_it_returns() {
    let Some(browser) = Browser::start().await else { return };
    let script = Script::start(busy_state(0)).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    assert!(page.eval::<bool>("document.querySelector('#banner').hidden").await);
    assert_eq!(page.problems(), [""; 0]);

    script.go(true);
    page.wait_for("document.body.dataset.connected === 'false' && !document.querySelector('#banner').hidden")
        .await;
    page.wait_for("/The data is \\d+ s old/.test(document.querySelector('#banner').innerText)").await;
    assert_eq!(
        page.eval::<String>("getComputedStyle(document.querySelector('main')).filter").await,
        "grayscale(1)"
    );
    assert_eq!(text(&page, "#live").await, "lost");
    assert_eq!(text(&page, "#calls").await, "600", "what was seen last stays");
    page.screenshot(picture("gone")).await;

    let mut endpoints = fleet();
    endpoints[4]["traffic"]["rate"] = json!(100.0);
    script.say(state(9, &[channel(1, "xds:///orders", &endpoints)]));
    script.remember(fleet_history(9));
    script.go(false);
    page.wait_for("document.body.dataset.connected === 'true' && document.querySelector('#banner').hidden")
        .await;
    page.wait_for("document.querySelector('#calls').textContent === '400'").await;
    // The gap was filled from the server's history.
    page.wait_for(
        "document.querySelector('[data-chart=rate] .area').getAttribute('d').split('L').length >= 19",
    )
    .await;
}

/// A65: a NACKed update is shown with all reasons, and the version in use stays visible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_resource_shows_the_reason() {
    let Some(browser) = Browser::start().await else { return };
    let mut state = busy_state(3);
    let cluster = &mut state["xds"][0]["resources"][2];
    cluster["status"] = json!("NACKED");
    cluster["error"] = json!({ "version": "4", "details": "cluster \"orders\": unknown policy \"fastest\"\nand more", "at": scripted::START + 1000 });
    state["xds"][0]["servers"][0]["connected"] = json!(false);
    let script = Script::start(state).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Dark).await;
    let row = "[data-resource=orders][data-kind=Cluster]";
    assert_eq!(text(&page, &format!("{row} .chip")).await, "nacked");
    assert_eq!(text(&page, &format!("{row} [data-field=version]")).await, "3");
    let told = "Version 4 was rejected 2 s ago: cluster \"orders\": unknown policy \"fastest\"\nand more";
    assert_eq!(text(&page, &format!("{row} .error")).await, told);
    assert_eq!(text(&page, "#config-age").await, "1 rejected");
    assert_eq!(text(&page, "#plane").await, "lost");
    assert!(
        text(&page, "#because")
            .await
            .ends_with("1 resource was rejected; the previous version stays in use.")
    );
    let level = "document.querySelector('#verdict').dataset.level";
    assert_eq!(page.eval::<String>(level).await, "warn", "no endpoint is affected yet");
}

/// An absent resource is not called rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_resource_is_missing() {
    let Some(browser) = Browser::start().await else { return };
    let mut state = busy_state(3);
    let cluster = &mut state["xds"][0]["resources"][2];
    (cluster["status"], cluster["version"]) = (json!("TIMEOUT"), json!(""));
    cluster["error"] = json!({ "version": "", "details": "no response within 15 s", "at": scripted::START });
    let script = Script::start(state).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    let row = "[data-resource=orders][data-kind=Cluster]";
    assert_eq!(text(&page, &format!("{row} .error")).await, "Not received 3 s ago: no response within 15 s");
    assert_eq!(text(&page, "#headline").await, "Resource missing");
    assert_eq!(text(&page, "#config-age").await, "1 missing");
    let whole: String = page.eval("document.body.innerText").await;
    assert!(!whole.contains("rejected"), "{whole}");
}

/// A channel whose calls fail without a config is not idle. The reason is shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_without_config_shows_the_reason() {
    let Some(browser) = Browser::start().await else { return };
    let mut order = without_config(1, "xds:///order", 50.0);
    let text_of_call = "deadline exceeded: waiting for listener \"order\" from 127.0.0.1:18000";
    fail(&mut order["traffic"], &[("DEADLINE_EXCEEDED", "no_config", 3000)], text_of_call);
    order["waiting"] = json!("waiting for listener \"order\" from 127.0.0.1:18000, stream open, for 12 s");
    let script = Script::start(state(2, &[order])).await;
    for theme in [Theme::Light, Theme::Dark] {
        for (width, height) in [(1280, 800), (390, 844)] {
            let page = open(&browser, script.url(), width, height, theme).await;
            assert_eq!(text(&page, "#headline").await, "No config");
            let because = text(&page, "#because").await;
            let expected = "100.0% of calls fail: the channel has no config: waiting for listener \"order\"";
            assert!(because.starts_with(expected), "{because}");
            assert_eq!(page.eval::<String>("document.querySelector('#verdict').dataset.level").await, "bad");
            assert_eq!(
                text(&page, "#codes tr").await.replace(['\n', '\t'], " "),
                "DEADLINE_EXCEEDED no config 3,000 100.0%"
            );
            assert_eq!(text(&page, "#last-error-text").await, text_of_call);
            assert_eq!(page.problems(), [""; 0]);
            page.screenshot(picture(&format!("no-config-{width}-{}", theme.name()))).await;
        }
    }
}

/// The page opens on the worst channel, and the verdict covers all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_opens_on_the_worst_channel() {
    let Some(browser) = Browser::start().await else { return };
    let mut endpoints = vec![
        endpoint("pay-1", "127.0.0.1:9", 12.0, 0.5, 0.1),
        endpoint("pay-2", "127.0.0.1:10", 12.0, 0.5, 0.1),
    ];
    fail(&mut endpoints[0]["traffic"], &[("UNAVAILABLE", "server", 720)], "the database is read-only");
    let mut pay = channel(2, "dns:///payments", &endpoints);
    fail(
        &mut pay["traffic"],
        &[("UNAVAILABLE", "server", 720), ("UNAVAILABLE", "dropped", 90), ("UNAVAILABLE", "no_route", 7)],
        "the database is read-only",
    );
    pay["drops"] = json!([{ "cluster": "pay", "category": "maintenance", "limit": null, "count": 90 }]);
    let users = without_config(3, "xds:///users", 0.0);
    let three = state(3, &[channel(1, "xds:///orders", &fleet()), pay, users]);
    let script = Script::start(three.clone()).await;
    script.remember(fleet_history(60));
    for theme in [Theme::Light, Theme::Dark] {
        for (width, height) in [(1280, 800), (390, 844)] {
            let page = open(&browser, script.url(), width, height, theme).await;
            assert_eq!(text(&page, "#target").await, "dns:///payments");
            assert_eq!(text(&page, "#headline").await, "Calls fail");
            let because = text(&page, "#because").await;
            for part in [
                "dns:///payments: 56.7% of calls fail. In the last minute: 720 × the server returned UNAVAILABLE, all on pay-1.",
                "90 × dropped by drop category \"maintenance\" of cluster \"pay\".",
                "7 × no route matched the call (UNAVAILABLE).",
            ] {
                assert!(because.contains(part), "{part} in {because}");
            }
            let strip: Vec<String> = page
                .eval("[...document.querySelectorAll('#channels button')].map((item) => item.innerText.replaceAll('\\n', ' '))")
                .await;
            assert_eq!(
                strip,
                [
                    "dns:///payments Calls fail · ready · 24.0 calls/s · 43.26% success",
                    "xds:///orders On an even keel · ready · 600 calls/s · 100.00% success",
                    "xds:///users Waiting for config · connecting · 0 calls/s",
                ]
            );
            assert_eq!(page.eval::<Vec<String>>(reading::FAINT).await, [""; 0]);
            assert_eq!(page.eval::<Vec<String>>(reading::WIDE).await, [""; 0]);
            let failed = text(&page, "[data-endpoint='127.0.0.1:9'] .failed").await;
            assert_eq!(
                failed,
                "720 × UNAVAILABLE in the last minute · last 3 s ago: the database is read-only"
            );
            page.screenshot(picture(&format!("worst-{width}-{}", theme.name()))).await;
            let whole: u32 = page.eval("document.documentElement.scrollHeight").await;
            page.resize(width, whole).await;
            page.screenshot(picture(&format!("worst-{width}-{}-whole", theme.name()))).await;
            // Another channel is selected: the verdict remains, and that of the channel is added.
            page.resize(width, height).await;
            page.eval::<()>("void document.querySelector('[data-channel=\"1\"]').click()").await;
            assert_eq!(text(&page, "#target").await, "xds:///orders");
            assert_eq!(text(&page, "#headline").await, "Calls fail");
            assert!(text(&page, "#own").await.starts_with("xds:///orders: On an even keel."));
            assert!(page.eval::<bool>("document.querySelector('#failures').hidden").await);
            page.screenshot(picture(&format!("worst-other-{width}-{}", theme.name()))).await;
            assert_eq!(page.problems(), [""; 0]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_stand_newest_first_and_marks_in_the_charts() {
    let Some(browser) = Browser::start().await else { return };
    let script = Script::start(busy_state(50)).await;
    script.remember(fleet_history(50));
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    let numbers = "[...document.querySelectorAll('[data-event]')].map((event) => event.dataset.event)";
    assert_eq!(page.eval::<Vec<String>>(numbers).await, ["5", "4", "3", "2", "1"]);
    let marks =
        "[...document.querySelectorAll('[data-chart=busy] .marks text')].map((mark) => mark.textContent)";
    page.wait_for(&format!("{marks}.join() === '1,2'")).await;
    assert_eq!(text(&page, "[data-event='5'] .number").await, "2");
    // Three charts with one line per endpoint, labelled at its end.
    for chart in ["rate", "busy", "latency"] {
        assert_eq!(
            page.eval::<u32>(&format!(
                "document.querySelectorAll('[data-chart={chart}] .lines path').length"
            ))
            .await,
            5
        );
        assert_eq!(
            page.eval::<u32>(&format!(
                "document.querySelectorAll('[data-chart={chart}] .labels text').length"
            ))
            .await,
            5
        );
    }
    assert_eq!(page.problems(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_channels_is_shown() {
    let Some(browser) = Browser::start().await else { return };
    let other = endpoint("pay", "127.0.0.1:9", 12.0, 1.0, 0.1);
    let both = |second| {
        state(
            second,
            &[
                channel(1, "xds:///orders", &fleet()),
                channel(2, "dns:///payments", std::slice::from_ref(&other)),
            ],
        )
    };
    let script = Script::start(both(0)).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    assert_eq!(page.eval::<u32>("document.querySelectorAll('[data-endpoint]').length").await, 5);
    page.eval::<()>("void document.querySelector('[data-channel=\"2\"]').click()").await;
    assert_eq!(text(&page, "#target").await, "dns:///payments");
    script.say(both(1));
    shown(&page, &both(1)).await;
    assert_eq!(
        page.eval::<Vec<String>>(
            "[...document.querySelectorAll('[data-endpoint] .name')].map((name) => name.textContent)"
        )
        .await,
        ["pay"]
    );
    // The channel is removed: the page shows the other one, without a selector.
    let one = state(2, &[channel(1, "xds:///orders", &fleet())]);
    script.say(one.clone());
    shown(&page, &one).await;
    assert_eq!(text(&page, "#target").await, "xds:///orders");
    assert!(page.eval::<bool>("document.querySelector('#strip').hidden").await);
}
