//! Accessibility of the page: keyboard, small screens, both themes, no reliance on colour, reduced motion.

use serde_json::json;
use testkit::browser::{Browser, Page, Theme};

use crate::scripted::{Script, busy_state, channel, fail, fleet, fleet_history, state};
use crate::{open, picture, shown, text};

/// Texts with a contrast below 4.5:1, as `text: ratio`.
pub(crate) const FAINT: &str = r"(() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const seen = new Map();
    const colour = (text) => {
        if (!seen.has(text)) {
            canvas.clearRect(0, 0, 1, 1);
            canvas.fillStyle = text;
            canvas.fillRect(0, 0, 1, 1);
            seen.set(text, [...canvas.getImageData(0, 0, 1, 1).data]);
        }
        return seen.get(text);
    };
    const light = ([r, g, b]) => {
        const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const behind = (node) => {
        if (node.closest('.marks')) return colour(getComputedStyle(node.previousElementSibling).fill);
        for (let at = node; at; at = at.parentElement) {
            const found = colour(getComputedStyle(at).backgroundColor);
            if (found[3] === 255) return found;
        }
        return [255, 255, 255, 255];
    };
    const faint = [];
    const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let count = 0;
    while (words.nextNode()) {
        const node = words.currentNode.parentElement;
        if (!words.currentNode.data.trim() || !node.checkVisibility({ visibilityProperty: true }) || node.closest('.unseen, option, .skip')) continue;
        const style = getComputedStyle(node);
        const ink = light(colour(node instanceof SVGElement ? style.fill : style.color));
        const ground = light(behind(node));
        const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
        count += 1;
        if (ratio < 4.5) faint.push(`${words.currentNode.data}: ${ratio.toFixed(2)}`);
    }
    if (count < 100) faint.push(`only ${count} texts were seen`);
    return faint;
})()";

/// Elements that overflow the viewport horizontally.
pub(crate) const WIDE: &str = r"[...document.querySelectorAll('main *, header *')].filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width > 1 && !node.closest('.unseen, svg, thead') && box.right > innerWidth + 1;
}).map((node) => `${node.tagName} ${node.className} ${node.id}`)";

/// UX 7: readable at 1280 and 390 px, dark and light. The screenshots are for manual review.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_readable_in_both_themes_and_on_a_phone() {
    let Some(browser) = Browser::start().await else { return };
    let mut trouble = busy_state(60);
    trouble["channels"][0]["endpoints"][0]["utilization"] = json!(1.2);
    trouble["channels"][0]["endpoints"][1]["utilization"] = json!(0.9);
    trouble["channels"][0]["endpoints"][2]["traffic"]["failures"] = json!(7);
    trouble["channels"][0]["endpoints"][3]["state"] = json!("TRANSIENT_FAILURE");
    trouble["channels"][0]["endpoints"][3]["unused"] = json!("connection refused; next attempt in 3.2s");
    trouble["channels"][0]["tree"]["warnings"] = json!(["cluster orders-canary: no such resource"]);
    trouble["xds"][0]["resources"][2]["status"] = json!("NACKED");
    trouble["xds"][0]["resources"][3]["status"] = json!("DOES_NOT_EXIST");
    let codes = [("RESOURCE_EXHAUSTED", "server", 420), ("UNAVAILABLE", "connection", 12)];
    fail(&mut trouble["channels"][0]["traffic"], &codes, "the quota of tenant \"acme\" is used up");
    fail(
        &mut trouble["channels"][0]["endpoints"][2]["traffic"],
        &codes[..1],
        "the quota of tenant \"acme\" is used up",
    );
    trouble["xds"][0]["resources"][2]["error"] =
        json!({ "version": "4", "details": "unknown policy \"fastest\"", "at": null });
    for (what, state) in [("even", busy_state(60)), ("trouble", trouble)] {
        let script = Script::start(state).await;
        script.remember(fleet_history(60));
        for theme in [Theme::Light, Theme::Dark] {
            for (width, height) in [(1280, 800), (390, 844)] {
                let name = format!("{what}-{width}-{}", theme.name());
                let page = open(&browser, script.url(), width, height, theme).await;
                page.eval::<()>(
                    "void document.querySelector('#tree [data-policy=weighted_round_robin] .row').click()",
                )
                .await;
                assert_eq!(page.eval::<Vec<String>>(FAINT).await, [""; 0], "{name}");
                assert_eq!(page.eval::<Vec<String>>(WIDE).await, [""; 0], "{name}");
                let (inner, scroll) =
                    page.eval::<(u32, u32)>("[innerWidth, document.documentElement.scrollWidth]").await;
                assert!(inner == width && scroll <= width, "{name}: {inner} {scroll}");
                assert_eq!(page.problems(), [""; 0]);
                page.screenshot(picture(&name)).await;
                let whole: u32 = page.eval("document.documentElement.scrollHeight").await;
                page.resize(width, whole).await;
                page.screenshot(picture(&format!("{name}-whole"))).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_reaches_everything() {
    let Some(browser) = Browser::start().await else { return };
    let mut two = busy_state(0);
    two["channels"].as_array_mut().unwrap().push(channel(2, "dns:///other", &[]));
    let script = Script::start(two).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    page.eval::<()>(
        "void (window.stops = [...document.querySelectorAll('a[href], button, select, input, [tabindex=\"0\"]')]
            .filter((node) => node.checkVisibility({ visibilityProperty: true })))",
    )
    .await;
    let stops: usize = page.eval("window.stops.length").await;
    assert!(stops >= 16, "{stops}");
    for stop in 0..stops {
        page.press("Tab").await;
        let at = format!("window.stops.indexOf(document.activeElement) === {stop}");
        let found: String = page.eval("document.activeElement.outerHTML.slice(0, 100)").await;
        assert!(page.eval::<bool>(&at).await, "stop {stop} is not where Tab leads: {found}");
        // A policy shows the focus ring on its own row, not around its subtree.
        let ring = "getComputedStyle(document.activeElement.querySelector(':scope > .own > .row') ?? document.activeElement).outlineStyle";
        assert_eq!(page.eval::<String>(ring).await, "solid", "no focus to be seen: {found}");
    }
    page.press("Shift+Tab").await;
    assert!(
        page.eval::<bool>("window.stops.indexOf(document.activeElement) < window.stops.length - 1").await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_sort_the_table_walk_the_tree_and_read_the_charts() {
    let Some(browser) = Browser::start().await else { return };
    let script = Script::start(busy_state(9)).await;
    script.remember(fleet_history(9));
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;

    let names =
        "[...document.querySelectorAll('[data-endpoint] .name')].map((name) => name.textContent).join(' ')";
    assert_eq!(page.eval::<String>(names).await, "small-1 small-2 medium large huge");
    page.eval::<()>("document.querySelector('[data-sort=rate]').focus()").await;
    page.press("Enter").await;
    // Groups stay together, and each is sorted.
    page.wait_for(&format!("{names} === 'small-1 small-2 huge large medium'")).await;
    let sorted = "document.querySelector('[data-sort=rate]').parentElement.getAttribute('aria-sort')";
    assert_eq!(page.eval::<String>(sorted).await, "descending");
    page.press("Enter").await;
    page.wait_for(&format!("{names} === 'small-1 small-2 medium large huge' && {sorted} === 'ascending'"))
        .await;

    let policy = "document.activeElement.dataset.policy";
    page.eval::<()>("document.querySelector('[role=treeitem]').focus()").await;
    for (key, expected) in [
        ("ArrowDown", "cds_experimental"),
        ("ArrowRight", "priority_experimental"),
        ("ArrowRight", "weighted_target_experimental"),
        ("End", "weighted_round_robin"),
        ("ArrowLeft", "weighted_target_experimental"),
        ("Home", "xds_cluster_manager_experimental"),
        ("ArrowUp", "xds_cluster_manager_experimental"),
    ] {
        page.press(key).await;
        assert_eq!(page.eval::<String>(policy).await, expected, "{key}");
    }
    page.press("End").await;
    page.press("Enter").await;
    page.wait_for("document.activeElement.getAttribute('aria-selected') === 'true'").await;
    assert!(text(&page, "[aria-selected=true] .details").await.contains("blackoutPeriod"));
    page.press("Space").await;
    page.wait_for("document.querySelector('[aria-selected=true]') === null").await;

    page.eval::<()>("document.querySelector('[data-chart=rate] svg').focus()").await;
    let value = "document.activeElement.getAttribute('aria-valuetext')";
    let now: String = page.eval(value).await;
    assert!(now.starts_with("0 seconds ago") && now.contains("huge 300"), "{now}");
    page.press("ArrowLeft").await;
    page.wait_for(&format!("{value}.startsWith('1 seconds ago')")).await;
    assert!(text(&page, "[data-chart=rate] .tip").await.contains("huge"));
    page.press("Escape").await;
    page.wait_for("document.querySelector('[data-chart=rate] .tip').hidden").await;
}

/// Screen reader support: language, names of all controls, unique ids, table semantics, heading levels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_has_a_name_and_a_role() {
    let Some(browser) = Browser::start().await else { return };
    let script = Script::start(busy_state(0)).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    let wrong: Vec<String> = page
        .eval(
            r"(() => {
            const wrong = [];
            const check = (selector, is, why) => { for (const node of document.querySelectorAll(selector)) if (!is(node)) wrong.push(`${why}: ${node.outerHTML.slice(0, 90)}`); };
            const all = [...document.querySelectorAll('[id]')].map((node) => node.id);
            if (new Set(all).size !== all.length) wrong.push('an id stands twice');
            if (!document.documentElement.lang) wrong.push('no language');
            if (document.querySelectorAll('h1').length !== 1 || document.querySelectorAll('main').length !== 1) wrong.push('one h1, one main');
            check('button', (node) => node.innerText.trim() || node.getAttribute('aria-label') || !node.checkVisibility(), 'a button without a name');
            check('select, input', (node) => node.labels.length === 1 && node.labels[0].textContent.trim(), 'a control without a label');
            check('[aria-labelledby]', (node) => document.getElementById(node.getAttribute('aria-labelledby'))?.textContent.trim(), 'a label that is not there');
            check('svg', (node) => node.getAttribute('aria-hidden') === 'true' || node.getAttribute('aria-label'), 'a picture without words');
            check('table', (node) => node.getAttribute('role') === 'table' && node.querySelector('[role=columnheader]'), 'a table without heads');
            check('tbody tr', (node) => node.getAttribute('role') === 'row' && node.querySelector('[role=rowheader]'), 'a row without a head');
            check('tbody td', (node) => node.getAttribute('role') === 'cell', 'a cell without its role');
            check('[role=treeitem]', (node) => node.getAttribute('aria-label') && node.getAttribute('aria-level'), 'a policy without a name');
            check('section', (node) => node.getAttribute('aria-label') || node.getAttribute('aria-labelledby') || node.className === 'client', 'a section without a name');
            check('[style]:not(i):not(.tip)', () => false, 'a style in the markup');
            return wrong;
        })()",
        )
        .await;
    assert_eq!(wrong, [""; 0]);
    assert_eq!(
        page.eval::<String>("document.querySelector('#spoken').getAttribute('aria-live')").await,
        "polite"
    );
    assert!(
        page.eval::<String>("document.querySelector('#spoken').textContent")
            .await
            .starts_with("On an even keel.")
    );
    // States have a shape and a word, not only a colour.
    assert_eq!(text(&page, "[data-endpoint] .state").await, "ready");
    assert_eq!(
        page.eval::<String>("document.querySelector('[data-endpoint] .state use').getAttribute('href')")
            .await,
        "#good"
    );
}

/// Positions below the summary, relative to the first element: the summary may wrap to another line.
const PLACES: &str = r"(() => {
    const first = document.querySelector('#balance').getBoundingClientRect().top;
    const all = document.querySelectorAll('main > :not(#summary):not(#hints), main > :not(#summary):not(#hints) *');
    return [...all].filter((node) => node.checkVisibility() && !node.closest('svg, .bars, .gauge, .why')).map((node) => {
        const box = node.getBoundingClientRect();
        return `${node.tagName}.${node.className}#${node.id}: ${Math.round(box.top - first)} ${Math.round(box.height)}`;
    });
})()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_jumps_when_numbers_change() {
    let Some(browser) = Browser::start().await else { return };
    let mut next = busy_state(1);
    for endpoint in next["channels"][0]["endpoints"].as_array_mut().unwrap() {
        for (field, value) in [("rate", 98_765.4), ("p50_ms", 123.4), ("p99_ms", 2345.6), ("failures", 123.4)]
        {
            endpoint["traffic"][field] = json!(value);
        }
        (endpoint["utilization"], endpoint["weight"]) = (json!(1.5), json!(123_456.7));
    }
    let dead = &mut next["channels"][0]["endpoints"][3];
    dead["state"] = json!("TRANSIENT_FAILURE");
    dead["unused"] = json!("connection refused (os error 111); next attempt in 3.2s");
    for (width, height) in [(1280, 3000), (390, 6000)] {
        let script = Script::start(busy_state(0)).await;
        let page = open(&browser, script.url(), width, height, Theme::Light).await;
        page.wait_for("document.querySelectorAll('.lines path').length === 15").await;
        let before: Vec<String> = page.eval(PLACES).await;
        script.say(next.clone());
        shown(&page, &next).await;
        let after: Vec<String> = page.eval(PLACES).await;
        let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
        assert!(before.len() == after.len() && moved.is_empty(), "{width}: {moved:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_theme_can_be_chosen_and_is_kept() {
    let Some(browser) = Browser::start().await else { return };
    let script = Script::start(state(0, &[channel(1, "xds:///orders", &fleet())])).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Dark).await;
    let ground = |page: Page| async move {
        let ground = page.eval::<String>("getComputedStyle(document.body).backgroundColor").await;
        (page, ground)
    };
    let (page, dark) = ground(page).await;
    page.eval::<()>("document.querySelector('#theme').focus()").await;
    page.press("Enter").await;
    page.wait_for("document.documentElement.dataset.theme === 'light'").await;
    assert_eq!(text(&page, "#theme").await, "Theme: light");
    let (page, light) = ground(page).await;
    assert_ne!(light, dark);
    page.open(script.url()).await;
    page.wait_for("document.documentElement.dataset.theme === 'light'").await;
    assert_eq!(ground(page).await.1, light);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reduced_motion_is_respected() {
    let Some(browser) = Browser::start().await else { return };
    let script = Script::start(state(0, &[channel(1, "xds:///orders", &fleet())])).await;
    let page = open(&browser, script.url(), 1280, 800, Theme::Light).await;
    let moving = "[...document.querySelectorAll('*')].filter((node) => parseFloat(getComputedStyle(node).transitionDuration) > 0).length";
    assert!(page.eval::<u32>(moving).await > 0);
    page.prefer(&[("prefers-reduced-motion", "reduce")]).await;
    page.wait_for(&format!("{moving} === 0")).await;
}
