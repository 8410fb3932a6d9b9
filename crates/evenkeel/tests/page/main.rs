//! Status page in a real browser: content, error handling and accessibility.
//!
//! Without Chromium these tests are skipped with a message; `EVENKEEL_NEEDS_BROWSER=1` makes that a failure.
//! Screenshots are written to `target/page/`.

mod live;
mod reading;
mod scripted;
mod showing;

use std::path::PathBuf;

use testkit::browser::{Browser, Page, Theme};

/// Opens the page and waits for its first state.
async fn open(browser: &Browser, url: &str, width: u32, height: u32, theme: Theme) -> Page {
    let page = browser.page(width, height, theme).await;
    page.open(url).await;
    page.wait_for("document.body.dataset.connected === 'true' && document.body.dataset.at").await;
    page
}

/// Waits until the page shows this state.
async fn shown(page: &Page, state: &serde_json::Value) {
    page.wait_for(&format!("document.body.dataset.at === '{}'", state["at"])).await;
}

/// Returns the path of a screenshot.
fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("page").join(format!("{name}.png"))
}

/// Returns the text of the first element that matches a selector.
async fn text(page: &Page, selector: &str) -> String {
    page.eval(&format!("document.querySelector({}).innerText.trim()", serde_json::json!(selector))).await
}
