//! A call on its way through a server, from its request to its end.
//!
//! While a handler runs, or its stream is asked for the next message, the watch of its call is the thread's current one.
//! So a handler finds what to record with, and one that does not look costs nothing.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;

use http::header::Entry;
use http::{HeaderMap, HeaderValue};
use tonic::{Code, Status};

use crate::call::CallLoad;
use crate::report::TRAILER_NAME;
use crate::server::Shared;

thread_local! {
    /// Of the call whose work is done here, if there is one: what it records with, once its handler has asked.
    static CURRENT: Cell<Option<Option<CallLoad>>> = const { Cell::new(None) };
}

/// Watches a call to its end. One that is dropped before was given up by the client.
pub(crate) struct Watch {
    server: Arc<Shared>,
    /// What the call records with, once its handler has asked.
    load: Option<CallLoad>,
    is_over: bool,
}

impl Watch {
    pub(crate) fn new(server: Arc<Shared>) -> Watch {
        Watch { server, load: None, is_over: false }
    }

    /// The call ends with these trailers: reports in them.
    pub(crate) fn end(&mut self, trailers: &mut HeaderMap) {
        // Trailers are few, and a look at each is cheaper than the hash of a name.
        let code = trailers.iter().find(|(name, _)| **name == Status::GRPC_STATUS);
        let code = code.map(|(_, value)| Code::from_bytes(value.as_bytes()));
        if let Some(report) = self.report()
            // Trailers that are full have no place for it either.
            && let Ok(Entry::Vacant(place)) = trailers.try_entry(&TRAILER_NAME)
        {
            let _ = place.try_insert(report);
        }
        self.over(code);
    }

    fn report(&self) -> Option<HeaderValue> {
        match &self.load {
            Some(load) => self.server.trailer_with(load.take()),
            None => self.server.trailer(),
        }
    }

    /// The call has ended, with a code or without one. Only the first end counts.
    pub(crate) fn over(&mut self, code: Option<Code>) {
        if !self.is_over {
            self.is_over = true;
            self.server.ended(code);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over(thread::panicking().then_some(Code::Unknown));
    }
}

/// Does some of a call's work, with its watch as the current one.
#[inline]
pub(crate) fn within<T>(watch: &mut Option<Watch>, work: impl FnOnce() -> T) -> T {
    /// Puts everything back, also if the work panics.
    struct Within<'w> {
        watch: &'w mut Watch,
        outer: Option<Option<CallLoad>>,
    }

    impl Drop for Within<'_> {
        #[inline]
        fn drop(&mut self) {
            self.watch.load = CURRENT.replace(self.outer.take()).flatten();
        }
    }

    let Some(watch) = watch else { return work() };
    let outer = CURRENT.replace(Some(watch.load.take()));
    let _within = Within { watch, outer };
    work()
}

/// What the call records with whose work is done here.
pub(crate) fn current_load() -> Option<CallLoad> {
    let mut load = CURRENT.take()?;
    let found = load.get_or_insert_default().clone();
    CURRENT.set(Some(load));
    Some(found)
}
