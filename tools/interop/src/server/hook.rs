//! `grpc.testing.HookService`, which is called before the server is stopped, and the hook server: a separate
//! port for it that `XdsUpdateHealthService` starts, responds on and stops.
//!
//! A call of `Hook` waits for a status: the next of those returned individually, in order of the calls, or
//! else the one set for all.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use super::listen::{Addresses, listen};
use crate::proto::testing::hook_service_server::{HookService, HookServiceServer};
use crate::proto::testing::{Empty, SetReturnStatusRequest};
use crate::sync::lock;

/// Maximum time for calls to end after the hook server is stopped.
const GRACE: Duration = Duration::from_millis(500);

/// Waiting calls and their statuses. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Hooks(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: VecDeque<oneshot::Sender<Status>>,
    returned: VecDeque<Status>,
    for_all: Option<Status>,
}

impl State {
    /// Completes all calls that have a status. A cancelled call does not consume one.
    fn settle(&mut self) {
        while let Some(status) = self.returned.pop_front() {
            if let Err(status) = self.answer_first(status) {
                self.returned.push_front(status);
                break;
            }
        }
        if let Some(status) = &self.for_all {
            for waiting in self.waiting.drain(..) {
                let _ = waiting.send(status.clone());
            }
        }
    }

    /// Completes the first waiting call. Returns the status if there is none.
    fn answer_first(&mut self, mut status: Status) -> Result<(), Status> {
        while let Some(waiting) = self.waiting.pop_front() {
            match waiting.send(status) {
                Ok(()) => return Ok(()),
                Err(unsent) => status = unsent,
            }
        }
        Err(status)
    }
}

impl Hooks {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state: MutexGuard<'_, State> = lock(&self.0);
        change(&mut state);
        state.settle();
    }

    /// Completes the first waiting call, or the next one.
    fn give_back(&self, status: Status) {
        self.change(|state| state.returned.push_back(status));
    }

    /// Completes waiting and later calls with ABORTED, unless a status for all is set.
    fn end(&self) {
        self.change(|state| {
            state.for_all.get_or_insert_with(|| Status::aborted("the hook server is stopped"));
        });
    }
}

#[tonic::async_trait]
impl HookService for Hooks {
    async fn hook(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        let (waiting, status) = oneshot::channel();
        self.change(|state| state.waiting.push_back(waiting));
        let status = status.await.map_err(|_| Status::aborted("the server ends"))?;
        if status.code() == Code::Ok { Ok(Response::new(Empty {})) } else { Err(status) }
    }

    async fn set_return_status(
        &self,
        request: Request<SetReturnStatusRequest>,
    ) -> Result<Response<Empty>, Status> {
        let SetReturnStatusRequest { grpc_code_to_return, grpc_status_description } = request.into_inner();
        let status = Status::new(Code::from(grpc_code_to_return), grpc_status_description);
        self.change(|state| state.for_all = Some(status));
        Ok(Response::new(Empty {}))
    }

    async fn clear_return_status(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.change(|state| state.for_all = None);
        Ok(Response::new(Empty {}))
    }
}

/// Hook server, if it runs.
#[derive(Default)]
pub(super) struct HookServer(AsyncMutex<Option<Running>>);

struct Running {
    hooks: Hooks,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl HookServer {
    /// Starts it on this port. Port 0 selects a free one, which is logged.
    pub(super) async fn start(&self, port: i32) -> Result<(), Status> {
        let mut running = self.0.lock().await;
        if running.is_some() {
            return Err(Status::already_exists("the hook server is already running"));
        }
        let port = u16::try_from(port).map_err(|_| {
            Status::invalid_argument(format!("server_port: expected 0 to 65535, found {port}"))
        })?;
        let problem =
            |error| Status::unavailable(format!("the hook server cannot listen on port {port}: {error}"));
        let (incoming, address) = listen(port, Addresses::Any).map_err(problem)?;
        eprintln!("hook server listening on {}", address.port());
        let (stop, stopped) = oneshot::channel::<()>();
        let hooks = Hooks::default();
        let serving = Server::builder()
            .add_service(HookServiceServer::new(hooks.clone()))
            .serve_with_incoming_shutdown(incoming, async {
                // An error means that the handle was dropped: shut down too.
                let _ = stopped.await;
            });
        let served = tokio::spawn(async {
            if let Err(error) = serving.await {
                eprintln!("hook server: {error}");
            }
        });
        *running = Some(Running { hooks, stop, served });
        Ok(())
    }

    /// Stops it. Waiting calls are ABORTED.
    pub(super) async fn stop(&self) -> Result<(), Status> {
        let Running { hooks, stop, mut served } = self.0.lock().await.take().ok_or_else(not_running)?;
        hooks.end();
        let _ = stop.send(());
        if timeout(GRACE, &mut served).await.is_err() {
            served.abort();
        }
        Ok(())
    }

    /// Completes the first waiting call, or the next one.
    pub(super) async fn give_back(&self, status: Status) -> Result<(), Status> {
        let running = self.0.lock().await;
        running.as_ref().ok_or_else(not_running)?.hooks.give_back(status);
        Ok(())
    }
}

fn not_running() -> Status {
    Status::unavailable("the hook server is not running")
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    type Answer = Result<Response<Empty>, Status>;

    /// Returns a call that has arrived and waits.
    fn waiting(hooks: &Hooks) -> impl Future<Output = Answer> {
        let mut call = hooks.hook(Request::new(Empty {}));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        call
    }

    fn code(answer: Answer) -> Code {
        answer.map_or_else(|status| status.code(), |_| Code::Ok)
    }

    #[tokio::test]
    async fn statuses_go_to_calls_in_order_of_arrival() {
        let hooks = Hooks::default();
        let (first, gone, second) = (waiting(&hooks), waiting(&hooks), waiting(&hooks));
        drop(gone);
        hooks.give_back(Status::not_found(""));
        hooks.give_back(Status::aborted(""));
        hooks.give_back(Status::new(Code::Ok, ""));
        assert_eq!(code(first.await), Code::NotFound);
        assert_eq!(code(second.await), Code::Aborted);
        assert_eq!(code(hooks.hook(Request::new(Empty {})).await), Code::Ok);
    }

    #[tokio::test]
    async fn the_end_aborts_waiting_calls() {
        let hooks = Hooks::default();
        let waits = waiting(&hooks);
        hooks.end();
        assert_eq!(code(waits.await), Code::Aborted);
        assert_eq!(code(hooks.hook(Request::new(Empty {})).await), Code::Aborted);
    }
}
