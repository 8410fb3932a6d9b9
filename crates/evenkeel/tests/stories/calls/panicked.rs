//! The panics of this process. Those on purpose are kept quiet; the others can be asked for.

use std::sync::{LazyLock, Mutex, PoisonError};

static NOTED: LazyLock<Mutex<Vec<String>>> = LazyLock::new(|| {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.to_string();
        if !text.contains("on purpose") {
            NOTED.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            before(info);
        }
    }));
    Mutex::default()
});

/// Notes panics from here on.
pub(super) fn note() {
    LazyLock::force(&NOTED);
}

/// Those in our code and in h2's, of all tests: none is anybody's intent.
pub(super) fn in_ours() -> Vec<String> {
    let noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_ours = |text: &&String| ["crates/evenkeel", "/h2-"].iter().any(|place| text.contains(place));
    noted.iter().filter(is_ours).filter(|text| !text.contains("/tests/")).cloned().collect()
}
