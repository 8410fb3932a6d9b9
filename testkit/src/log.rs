//! Recorder of log lines.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use crate::lock;

/// Subscriber that records the events of our crates, as lines of level, message and fields: `ERROR it broke
/// address=127.0.0.1:1`. Clones share the lines.
///
/// It is meant for `tracing::subscriber::with_default`, which covers one thread: events of tasks are recorded
/// only if they run on that thread.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Returns all lines so far.
    pub fn lines(&self) -> Vec<String> {
        lock(&self.0).clone()
    }

    /// Returns the lines of this level, such as `ERROR`.
    pub fn at(&self, level: &str) -> Vec<String> {
        self.lines().into_iter().filter(|line| line.split(' ').next() == Some(level)).collect()
    }
}

/// One event, formatted as a line.
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a `String` cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("evenkeel")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        let Line { message, fields } = line;
        let line = format!("{} {message}{fields}", event.metadata().level());
        lock(&self.0).push(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
