//! Headless Chromium for tests, driven by the DevTools protocol.
//!
//! The protocol uses two pipes (`--remote-debugging-pipe`) with zero-terminated JSON messages: commands with
//! an id, responses with the same id, and events. Each page has a session. [`Page::problems`] collects
//! console errors and failed requests. Waits poll the page, and fail after 30 s.
//!
//! Failures panic with the page's own error. One browser runs at a time per process. Dropping it kills its
//! process group and removes its profile.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::time::timeout;

use crate::lock;

/// Maximum wait. Only a failing test reaches it.
const BOUND: Duration = Duration::from_secs(30);

/// Environment variable that makes a missing browser a failure. Without it such tests are skipped.
pub const NEEDED: &str = "EVENKEEL_NEEDS_BROWSER";

/// A browser is a dozen processes: two at once would starve each other.
static TURN: Semaphore = Semaphore::const_new(1);

/// Running Chromium process with its profile.
#[derive(Debug)]
pub struct Browser {
    link: Arc<BrowserPipe>,
    child: Child,
    /// Profile directory, removed on drop.
    profile: TempDir,
    _turn: SemaphorePermit<'static>,
}

/// Value of the media feature `prefers-color-scheme`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Dark text on a light background.
    Light,
    /// Light text on a dark background.
    Dark,
}

impl Theme {
    /// Returns the CSS value.
    pub fn name(self) -> &'static str {
        match self {
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }
}

impl Browser {
    /// Starts a browser. Without Chromium it returns `None` and prints a line on stderr, or panics if
    /// [`NEEDED`] is set.
    pub async fn start() -> Option<Browser> {
        let Some(program) = find() else {
            assert!(
                std::env::var_os(NEEDED).is_none(),
                "{NEEDED} is set and there is no chromium on the path"
            );
            eprintln!(
                "SKIPPED: there is no chromium on the path, so pages are not tested; {NEEDED}=1 makes this a failure"
            );
            return None;
        };
        let turn = TURN.acquire().await.expect("it is never closed");
        let profile = TempDir::with_prefix("browser").expect("a directory for the profile");
        let mut child = spawn(&program, profile.path());
        let link = Arc::new(BrowserPipe::default());
        let (commands, outbox) = mpsc::unbounded_channel();
        *lock(&link.commands) = Some(commands);
        let input = ChildStdin::from_std(child.stdin.take().expect("it is piped")).expect("a pipe");
        let output = ChildStdout::from_std(child.stdout.take().expect("it is piped")).expect("a pipe");
        tokio::spawn(write(outbox, input));
        tokio::spawn(read(output, Arc::clone(&link)));
        let browser = Browser { link, child, profile, _turn: turn };
        if let Err(error) = browser.link.call(None, "Browser.getVersion", json!({})).await {
            panic!("chromium does not start: {error}\n{}", browser.log());
        }
        Some(browser)
    }

    /// Opens an empty page of this size in CSS pixels. A width below 500 emulates a phone.
    pub async fn page(&self, width: u32, height: u32, theme: Theme) -> Page {
        let made = self.call("Target.createTarget", json!({ "url": "about:blank" })).await;
        let target = json!({ "targetId": made["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", target).await["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        let seen = Arc::new(Mutex::new(PageLog::default()));
        lock(&self.link.pages).insert(session.clone(), Arc::clone(&seen));
        let page = Page { link: Arc::clone(&self.link), session, seen };
        for domain in ["Page", "Runtime", "Log", "Network", "Performance"] {
            // Thread time instead of wall time: other load of the machine does not count.
            page.call(&format!("{domain}.enable"), json!({ "timeDomain": "threadTicks" })).await;
        }
        page.resize(width, height).await;
        page.prefer(&[("prefers-color-scheme", theme.name())]).await;
        page
    }

    /// Returns the profile directory, which is removed on drop.
    pub fn profile(&self) -> &Path {
        self.profile.path()
    }

    async fn call(&self, method: &str, params: Value) -> Value {
        match self.link.call(None, method, params).await {
            Ok(result) => result,
            Err(error) => panic!("{method}: {error}\n{}", self.log()),
        }
    }

    /// Returns the stderr of Chromium.
    fn log(&self) -> String {
        fs::read_to_string(self.profile.path().join(LOG)).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Kill the whole group: otherwise the children live on for a while and write into the profile.
        let group = format!("-{}", self.child.id());
        let killed = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        if !killed.is_ok_and(|status| status.success()) {
            self.child.kill().ok();
        }
        self.child.wait().ok();
    }
}

/// Page in a [`Browser`].
#[derive(Debug)]
pub struct Page {
    link: Arc<BrowserPipe>,
    session: String,
    seen: Arc<Mutex<PageLog>>,
}

impl Page {
    /// Navigates to the URL and waits until the page and its resources are loaded.
    pub async fn open(&self, url: &str) {
        lock(&self.seen).origin = Some(origin(url).to_owned());
        let answer = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(answer["errorText"].is_null(), "{url}: {}", answer["errorText"]);
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'").await;
    }

    /// Evaluates a JavaScript expression. A promise is awaited.
    pub async fn eval<T: DeserializeOwned>(&self, script: &str) -> T {
        match self.try_eval(script).await {
            Ok(value) => serde_json::from_value(value.clone())
                .unwrap_or_else(|error| panic!("{script}: {error}: {value}")),
            Err(error) => panic!("{script}: {error}"),
        }
    }

    /// Waits until a JavaScript expression is true. It is evaluated on every animation frame.
    pub async fn wait_for(&self, condition: &str) {
        let script = format!(
            "new Promise((done) => {{
                const look = () => {{
                    let is;
                    try {{ is = Boolean({condition}); }} catch {{ is = false; }}
                    if (is) return done(true);
                    // A page in the background has no frames.
                    let next = () => {{ next = () => {{}}; look(); }};
                    requestAnimationFrame(() => next());
                    setTimeout(() => next(), 100);
                }};
                look();
            }})"
        );
        let waited = timeout(BOUND, async {
            // A navigation discards the pending evaluation, so it is repeated.
            while self.try_eval(&script).await.is_err() {
                tokio::task::yield_now().await;
            }
        });
        if waited.await.is_err() {
            let text = self.try_eval("document.body.innerText.slice(0, 3000)").await.unwrap_or_default();
            panic!(
                "never came true: {condition}\nproblems: {:#?}\nthe page: {}",
                self.problems(),
                text.as_str().unwrap_or_default()
            );
        }
    }

    /// Returns the problems since the previous call: console errors and warnings, exceptions, failed
    /// requests, violations of the content security policy, and requests to other origins.
    pub fn problems(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.seen).problems)
    }

    /// Presses a key: a letter, or a name such as `Tab`, `Enter`, `Escape`, `ArrowDown` or `Shift+Tab`.
    pub async fn press(&self, key: &str) {
        let (modifiers, key) = key.strip_prefix("Shift+").map_or((0, key), |key| (8, key));
        let (name, code, number, text) = match key {
            "Tab" => ("Tab", "Tab", 9, ""),
            "Enter" => ("Enter", "Enter", 13, "\r"),
            "Escape" => ("Escape", "Escape", 27, ""),
            "Space" => (" ", "Space", 32, " "),
            "PageUp" => (key, key, 33, ""),
            "PageDown" => (key, key, 34, ""),
            "End" => (key, key, 35, ""),
            "Home" => (key, key, 36, ""),
            "ArrowLeft" => (key, key, 37, ""),
            "ArrowUp" => (key, key, 38, ""),
            "ArrowRight" => (key, key, 39, ""),
            "ArrowDown" => (key, key, 40, ""),
            letter => (letter, "", 0, letter),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({
                "type": kind, "modifiers": modifiers, "key": name, "code": code,
                "windowsVirtualKeyCode": number, "text": text,
            });
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Writes a PNG of the viewport. Creates the directory if needed.
    pub async fn screenshot(&self, path: impl AsRef<Path>) {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" })).await;
        let data = answer["data"].as_str().expect("a picture");
        let png = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
        let path = path.as_ref();
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).expect("a directory for pictures");
        }
        fs::write(path, png).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Resizes the page, in CSS pixels.
    pub async fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Replaces the emulated media features.
    pub async fn prefer(&self, features: &[(&str, &str)]) {
        let features: Vec<Value> =
            features.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        self.call("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Returns the thread time that the page has spent on scripts, styles and layout.
    pub async fn busy(&self) -> Duration {
        let answer = self.call("Performance.getMetrics", json!({})).await;
        let metrics = answer["metrics"].as_array().cloned().unwrap_or_default();
        let spent = |name: &str| {
            let metric = metrics.iter().find(|metric| metric["name"] == name);
            metric.and_then(|metric| metric["value"].as_f64()).unwrap_or_default()
        };
        Duration::from_secs_f64(
            ["ScriptDuration", "RecalcStyleDuration", "LayoutDuration"].map(spent).iter().sum(),
        )
    }

    async fn try_eval(&self, script: &str) -> Result<Value, String> {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let answer = self.link.call(Some(&self.session), "Runtime.evaluate", params).await?;
        match answer.get("exceptionDetails") {
            None => Ok(answer["result"]["value"].clone()),
            Some(details) => Err(thrown(details)),
        }
    }

    async fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.link.call(Some(&self.session), method, params).await;
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }
}

const LOG: &str = "stderr";

/// Returns the path of Chromium.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path);
    let names = ["chromium", "chromium-browser", "google-chrome"];
    places.flat_map(|place| names.map(|name| place.join(name))).find(|file| file.is_file())
}

/// Starts Chromium through a shell, which maps the pipes to the expected descriptors: commands on 3,
/// responses on 4.
fn spawn(program: &Path, profile: &Path) -> Child {
    let log = fs::File::create(profile.join(LOG)).expect("a file for its log");
    Command::new("sh")
        .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>&2"#])
        .arg(program)
        // Tests often run as root, in containers without user namespaces.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        // No requests except those of the page.
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-breakpad",
        ])
        .args(["--no-first-run", "--remote-debugging-pipe"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg("about:blank")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .spawn()
        .expect("a shell")
}

async fn write(mut outbox: mpsc::UnboundedReceiver<Vec<u8>>, mut input: ChildStdin) {
    while let Some(message) = outbox.recv().await {
        if input.write_all(&message).await.is_err() {
            return;
        }
    }
}

async fn read(output: ChildStdout, link: Arc<BrowserPipe>) {
    let mut output = BufReader::new(output);
    let mut message = Vec::new();
    while output.read_until(0, &mut message).await.is_ok_and(|length| length > 0) {
        let end = message.len() - 1;
        match serde_json::from_slice(&message[..end]) {
            Ok(message) => link.handle(message),
            Err(error) => eprintln!("chromium says what is no JSON: {error}"),
        }
        message.clear();
    }
    // Dropping the senders ends all pending calls with an error.
    lock(&link.commands).take();
    lock(&link.waiting).clear();
}

type CommandResult = Result<Value, String>;

/// The two pipes, as calls and events.
#[derive(Debug, Default)]
struct BrowserPipe {
    commands: Mutex<Option<mpsc::UnboundedSender<Vec<u8>>>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<CommandResult>>>,
    pages: Mutex<HashMap<String, Arc<Mutex<PageLog>>>>,
    last: AtomicU64,
}

impl BrowserPipe {
    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> CommandResult {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(id, answer);
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let sent = lock(&self.commands).as_ref().is_some_and(|commands| commands.send(bytes).is_ok());
        if !sent {
            return Err("chromium has ended".to_owned());
        }
        // Longer than the waits inside the page, so that those report their condition first.
        match timeout(BOUND * 2, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err("chromium has ended".to_owned()),
            Err(_) => Err("chromium does not answer".to_owned()),
        }
    }

    fn handle(&self, mut message: Value) {
        if let Some(id) = message["id"].as_u64() {
            let Some(waiting) = lock(&self.waiting).remove(&id) else { return };
            let answer = match message.get("error") {
                Some(error) => {
                    Err(error["message"].as_str().unwrap_or("an error without a message").to_owned())
                }
                None => Ok(message["result"].take()),
            };
            waiting.send(answer).ok();
            return;
        }
        let page = message["sessionId"].as_str().and_then(|session| lock(&self.pages).get(session).cloned());
        if let (Some(page), Some(method)) = (page, message["method"].as_str()) {
            lock(&page).note(method, &message["params"]);
        }
    }
}

/// Requests and errors of one page.
#[derive(Debug, Default)]
struct PageLog {
    /// The only origin that the page may request.
    origin: Option<String>,
    /// Requested URLs by request id.
    requests: HashMap<String, String>,
    problems: Vec<String>,
}

impl PageLog {
    fn note(&mut self, method: &str, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match method {
            "Runtime.consoleAPICalled"
                if ["error", "warning", "assert"].contains(&event["type"].as_str().unwrap_or_default()) =>
            {
                let words = event["args"].as_array().into_iter().flatten();
                let words: Vec<String> = words
                    .map(|word| {
                        word["value"].as_str().map_or_else(|| text(&word["description"]), str::to_owned)
                    })
                    .collect();
                self.problems.push(format!("console {}: {}", text(&event["type"]), words.join(" ")));
            }
            "Runtime.exceptionThrown" => {
                self.problems.push(format!("exception: {}", thrown(&event["exceptionDetails"])));
            }
            "Log.entryAdded"
                if ["error", "warning"].contains(&event["entry"]["level"].as_str().unwrap_or_default()) =>
            {
                let entry = &event["entry"];
                self.problems.push(format!(
                    "{} {}: {} {}",
                    text(&entry["source"]),
                    text(&entry["level"]),
                    text(&entry["text"]),
                    text(&entry["url"])
                ));
            }
            "Network.requestWillBeSent" => {
                let url = text(&event["request"]["url"]);
                let stays = ["data:", "about:", "blob:"].iter().any(|scheme| url.starts_with(scheme));
                if !stays && self.origin.as_deref().is_some_and(|own| own != origin(&url)) {
                    self.problems.push(format!("a request to another origin: {url}"));
                }
                self.requests.insert(text(&event["requestId"]), url);
            }
            "Network.loadingFailed" if event["canceled"] != true => {
                let url = self
                    .requests
                    .get(event["requestId"].as_str().unwrap_or_default())
                    .cloned()
                    .unwrap_or_default();
                self.problems.push(format!(
                    "a request failed: {url}: {} {}",
                    text(&event["errorText"]),
                    text(&event["blockedReason"])
                ));
            }
            _ => {}
        }
    }
}

fn thrown(details: &Value) -> String {
    let exception = &details["exception"]["description"];
    exception.as_str().or(details["text"].as_str()).unwrap_or("an exception without words").to_owned()
}

/// Returns scheme, host and port of a URL.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    url[start..].find(['/', '?', '#']).map_or(url, |end| &url[..start + end])
}
