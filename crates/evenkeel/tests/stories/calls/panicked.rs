//! Records the panics of the test process. Intended panics are neither recorded nor printed.

use std::sync::{LazyLock, Mutex};

use testkit::lock;

static NOTED: LazyLock<Mutex<Vec<String>>> = LazyLock::new(|| {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.to_string();
        if !text.contains("on purpose") {
            lock(&NOTED).push(text);
            before(info);
        }
    }));
    Mutex::default()
});

/// Installs the panic hook, if it is not installed.
pub(super) fn note() {
    LazyLock::force(&NOTED);
}

/// Returns the panics in this workspace's code and in h2, of all tests. None of them is intended.
pub(super) fn in_ours() -> Vec<String> {
    let noted = lock(&NOTED);
    let is_ours = |text: &&String| ["crates/evenkeel", "/h2-"].iter().any(|place| text.contains(place));
    noted.iter().filter(is_ours).filter(|text| !text.contains("/tests/")).cloned().collect()
}
