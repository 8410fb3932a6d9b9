//! The live page in a real browser: what it shows, how it bears trouble, and whether everybody can read it.
//!
//! Without Chromium these tests pass over, loudly; `EVENKEEL_NEEDS_BROWSER=1` makes that a failure. Pictures for people to look at are
//! written to `target/page/`.

mod live;
mod reading;
mod scripted;
mod showing;

use std::path::PathBuf;

use testkit::browser::{Browser, Page, Theme};

/// A page with something to show.
async fn open(browser: &Browser, url: &str, width: u32, height: u32, theme: Theme) -> Page {
    let page = browser.page(width, height, theme).await;
    page.open(url).await;
    page.wait_for("document.body.dataset.connected === 'true' && document.body.dataset.at").await;
    page
}

/// Waits until this moment is shown.
async fn shown(page: &Page, state: &serde_json::Value) {
    page.wait_for(&format!("document.body.dataset.at === '{}'", state["at"])).await;
}

/// Where pictures are kept.
fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("page").join(format!("{name}.png"))
}

/// The text of the first element that a selector finds.
async fn text(page: &Page, selector: &str) -> String {
    page.eval(&format!("document.querySelector({}).innerText.trim()", serde_json::json!(selector))).await
}
