//! A call on its way through a server, from its request to its end.
//!
//! While a handler runs, its call is the thread's current one. So a handler finds what to record with, and one that does not
//! look costs nothing.

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

/// Whose work is done on a thread.
#[derive(Default)]
enum CurrentCall {
    /// That of no call.
    #[default]
    Idle,
    /// That of a call, with what it records with once its handler has asked.
    Call(Option<CallLoad>),
}

/// Watches a call to its end. One that is dropped before was given up by the client.
#[derive(Default)]
pub(crate) struct ServerCallGuard {
    /// `None` if the call is over, or none that counts.
    server: Option<Arc<ServerLoadInner>>,
    /// What the call records with, once its handler has asked.
    load: Option<CallLoad>,
}

impl ServerCallGuard {
    pub(crate) fn new(server: Arc<ServerLoadInner>) -> ServerCallGuard {
        ServerCallGuard { server: Some(server), load: None }
    }

    /// The call ends with these trailers: reports in them.
    pub(crate) fn finish_with_trailers(&mut self, trailers: &mut HeaderMap) {
        let Some(server) = self.server.take() else { return };
        let report = match self.load.take() {
            Some(load) => server.trailer_with(load.take()),
            None => server.trailer(),
        };
        // Trailers are few, and a look at each is cheaper than the hash of a name.
        let code = trailers.iter().find(|(name, _)| **name == Status::GRPC_STATUS);
        let code = code.map(|(_, value)| Code::from_bytes(value.as_bytes()));
        // Trailers that are full have no place for it either.
        if let Some(report) = report
            && let Ok(Entry::Vacant(place)) = trailers.try_entry(&TRAILER_NAME)
        {
            let _ = place.try_insert(report);
        }
        server.record_call(code);
    }

    /// The call has ended, with a code or without one. Only the first end counts.
    pub(crate) fn finish(&mut self, code: Option<Code>) {
        if let Some(server) = self.server.take() {
            server.record_call(code);
        }
    }

    /// Does some of the call's work; its handler finds what to record with.
    #[inline]
    pub(crate) fn enter<T>(&mut self, work: impl FnOnce() -> T) -> T {
        /// Puts everything back, also if the work panics.
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

/// What the call records with whose work is done here.
pub(crate) fn current_load() -> Option<CallLoad> {
    let CurrentCall::Call(mut load) = CURRENT.take() else { return None };
    let found = load.get_or_insert_default().clone();
    CURRENT.set(CurrentCall::Call(load));
    Some(found)
}
