//! The browser for page tests reports the content and the problems of a page as a user would see them.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use testkit::browser::{Browser, Theme};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

const PAGE: &str = r#"<!doctype html><link rel="icon" href="data:,"><meta name="viewport" content="width=device-width"><title>a page</title><h1>one</h1>
<button onclick="document.querySelector('h1').textContent = 'pressed'">press</button><input>"#;

#[tokio::test]
async fn a_page_is_opened_and_read() {
    let Some(browser) = Browser::start().await else { return };
    let url = serve(HashMap::from([("/", PAGE)]), "").await;
    let page = browser.page(800, 600, Theme::Dark).await;
    page.open(&url).await;
    assert_eq!(page.eval::<String>("document.title").await, "a page");
    assert_eq!(page.eval::<Vec<u32>>("Promise.resolve([innerWidth, innerHeight])").await, [800, 600]);
    assert!(page.eval::<bool>("matchMedia('(prefers-color-scheme: dark)').matches").await);
    assert_eq!(page.problems(), [""; 0]);

    page.eval::<()>("void setTimeout(() => { document.querySelector('h1').textContent = 'two'; }, 50)").await;
    page.wait_for("document.querySelector('h1').textContent === 'two'").await;

    page.resize(390, 844).await;
    page.prefer(&[("prefers-color-scheme", "light")]).await;
    page.wait_for("innerWidth === 390 && matchMedia('(prefers-color-scheme: light)').matches").await;
}

#[tokio::test]
async fn keys_go_to_the_focused_element() {
    let Some(browser) = Browser::start().await else { return };
    let url = serve(HashMap::from([("/", PAGE)]), "").await;
    let page = browser.page(800, 600, Theme::Light).await;
    page.open(&url).await;
    page.press("Tab").await;
    assert_eq!(page.eval::<String>("document.activeElement.tagName").await, "BUTTON");
    page.press("Enter").await;
    page.wait_for("document.querySelector('h1').textContent === 'pressed'").await;
    page.press("Tab").await;
    page.press("k").await;
    page.wait_for("document.querySelector('input').value === 'k'").await;
    page.press("Shift+Tab").await;
    page.wait_for("document.activeElement.tagName === 'BUTTON'").await;
}

#[tokio::test]
async fn errors_of_a_page_are_reported_as_problems() {
    let Some(browser) = Browser::start().await else { return };
    let elsewhere = serve(HashMap::from([("/x.png", "")]), "").await;
    let policy = "content-security-policy: default-src 'self'; img-src *; script-src 'self'\r\n";
    let page = r#"<!doctype html><link rel="icon" href="data:,"><script>inline()</script><script src="/bad.js"></script><script src="/none.js"></script>"#;
    let script =
        format!("console.warn('careful'); new Image().src = '{elsewhere}x.png'; throw new Error('too bad');");
    let url = serve(HashMap::from([("/", page), ("/bad.js", &script)]), policy).await;
    let page = browser.page(800, 600, Theme::Light).await;
    page.open(&url).await;
    let mut found: Vec<String> = Vec::new();
    let all = ["careful", "too bad", "404", "Content Security Policy", "another origin"];
    let complete = async {
        while !all.iter().all(|expected| found.iter().any(|problem| problem.contains(expected))) {
            // Another evaluation gives the events time to arrive.
            page.wait_for("document.readyState === 'complete'").await;
            found.extend(page.problems());
        }
    };
    let complete = tokio::time::timeout(Duration::from_secs(30), complete).await;
    assert!(complete.is_ok(), "{found:#?}");
    assert_eq!(page.problems(), [""; 0], "each problem is reported once");
}

#[tokio::test]
async fn screenshots_are_written_and_the_profile_is_removed() {
    let Some(browser) = Browser::start().await else { return };
    let page = browser.page(320, 200, Theme::Light).await;
    page.open("data:text/html,<p>hello").await;
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("deep/down/picture.png");
    page.screenshot(&picture).await;
    assert!(std::fs::read(&picture).unwrap().starts_with(b"\x89PNG"));
    let profile = browser.profile().to_owned();
    assert!(profile.exists());
    drop(browser);
    assert!(!profile.exists());
    assert!(!is_in_use(&profile), "a process of the browser is still running");
}

/// Returns true if a running process was started with this text as an argument.
fn is_in_use(profile: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let profile = profile.display().to_string();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(&profile))
}

/// Starts a server of these files, each with this header. Missing files are 404.
async fn serve(files: HashMap<&str, &str>, header: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let files: HashMap<String, String> =
        files.into_iter().map(|(path, body)| (path.to_owned(), body.to_owned())).collect();
    let header = header.to_owned();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut lines = BufReader::new(&mut stream).lines();
            let Ok(Some(request)) = lines.next_line().await else { continue };
            while lines.next_line().await.is_ok_and(|line| line.is_some_and(|line| !line.is_empty())) {}
            let path = request.split(' ').nth(1).unwrap_or_default();
            let kind = if path.contains(".js") { "text/javascript" } else { "text/html" };
            let (status, body) = files.get(path).map_or(("404 Not Found", ""), |body| ("200 OK", body));
            let response = format!(
                "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n{header}\r\n{body}",
                body.len()
            );
            stream.write_all(response.as_bytes()).await.ok();
        }
    });
    format!("http://{address}/")
}
