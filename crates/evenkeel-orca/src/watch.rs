//! Tracks a call through the server, from its request to its end.
//!
//! While a handler is polled, its call is the current call of the thread. A handler finds its recorder through it.
//! The recorder is created on first use, so handlers that record nothing do not allocate.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;
use std::thread;

use http::HeaderMap;
use http::header::Entry;
use tonic::{Code, Status};

use crate::call::CallLoad;
use crate::report::TRAILER_NAME;
use crate::server::ServerLoadInner;

thread_local! {
    static CURRENT: Cell<CurrentCall> = const { Cell::new(CurrentCall::Idle) };
}

/// Call whose handler runs on the current thread.
#[derive(Default)]
enum CurrentCall {
    /// No call is being polled.
    #[default]
    Idle,
    /// A call is being polled. The recorder exists once its handler has requested it.
    Call(Option<CallLoad>),
}

/// Counts a call once, at its end. Dropping the guard earlier means that the client cancelled the call, or that the
/// handler panicked.
#[derive(Default)]
pub(crate) struct ServerCallGuard {
    /// `None` once the call has ended, and for calls that are not counted.
    server: Option<Arc<ServerLoadInner>>,
    /// Recorder of the call, once its handler has requested it.
    load: Option<CallLoad>,
}

impl ServerCallGuard {
    pub(crate) fn new(server: Arc<ServerLoadInner>) -> ServerCallGuard {
        ServerCallGuard { server: Some(server), load: None }
    }

    /// Ends the call and adds the report to its trailers.
    pub(crate) fn finish_with_trailers(&mut self, trailers: &mut HeaderMap) {
        let Some(server) = self.server.take() else { return };
        let report = match self.load.take() {
            Some(load) => server.trailer_with(load.take()),
            None => server.trailer(),
        };
        // There are few trailers, so comparing each is cheaper than hashing a name.
        let code = trailers.iter().find(|(name, _)| **name == Status::GRPC_STATUS);
        let code = code.map(|(_, value)| Code::from_bytes(value.as_bytes()));
        // A full header map has no room for the report, which is then dropped.
        if let Some(report) = report
            && let Ok(Entry::Vacant(place)) = trailers.try_entry(&TRAILER_NAME)
        {
            let _ = place.try_insert(report);
        }
        server.record_call(code);
    }

    /// Ends the call with a status code, or `None` for none. Only the first end is counted.
    pub(crate) fn finish(&mut self, code: Option<Code>) {
        if let Some(server) = self.server.take() {
            server.record_call(code);
        }
    }

    /// Runs `work` with this call as the thread's current call.
    #[inline]
    pub(crate) fn enter<T>(&mut self, work: impl FnOnce() -> T) -> T {
        /// Restores the outer call and keeps the recorder, also if the work panics.
        struct CurrentCallGuard<'w> {
            watch: &'w mut ServerCallGuard,
            outer: CurrentCall,
        }

        impl Drop for CurrentCallGuard<'_> {
            #[inline]
            fn drop(&mut self) {
                if let CurrentCall::Call(load) = CURRENT.replace(mem::take(&mut self.outer)) {
                    self.watch.load = load;
                }
            }
        }

        if self.server.is_none() {
            return work();
        }
        // The guard restores the call of an outer layer, also after a panic.
        let outer = CURRENT.replace(CurrentCall::Call(self.load.take()));
        let _guard = CurrentCallGuard { watch: self, outer };
        work()
    }
}

impl Drop for ServerCallGuard {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.finish(thread::panicking().then_some(Code::Unknown));
        }
    }
}

/// Returns the recorder of the thread's current call, and creates it on first use.
pub(crate) fn current_load() -> Option<CallLoad> {
    // A `Cell` lends no reference, so the value is taken out and put back.
    let CurrentCall::Call(mut load) = CURRENT.take() else { return None };
    let found = load.get_or_insert_default().clone();
    CURRENT.set(CurrentCall::Call(load));
    Some(found)
}
