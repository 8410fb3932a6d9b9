//! `grpc.health.v1.Health` of the server and of its two services by name. All have the same status, which
//! `XdsUpdateHealthService` sets.

use std::pin::Pin;

use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _, once, pending};
use tonic::{Request, Response, Status};

use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_server::Health;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};

/// Supported service names. The empty name is the whole server.
const SERVICES: [&str; 3] = ["", "grpc.testing.TestService", "grpc.testing.XdsUpdateHealthService"];

/// Serving status of the server. Clones share it.
#[derive(Clone)]
pub(super) struct Serving(watch::Sender<ServingStatus>);

impl Default for Serving {
    fn default() -> Serving {
        Serving(watch::Sender::new(ServingStatus::Serving))
    }
}

impl Serving {
    /// Sets the status. Watchers are notified of changes only.
    pub(super) fn set(&self, status: ServingStatus) {
        self.0.send_if_modified(|current| std::mem::replace(current, status) != status);
    }
}

#[tonic::async_trait]
impl Health for Serving {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.into_inner().service;
        if !SERVICES.contains(&name.as_str()) {
            return Err(Status::not_found(format!("unknown service {name:?}")));
        }
        Ok(Response::new(answer(*self.0.borrow())))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        if SERVICES.contains(&request.into_inner().service.as_str()) {
            let states = WatchStream::new(self.0.subscribe());
            return Ok(Response::new(Box::pin(states.map(|state| Ok(answer(state))))));
        }
        // By the protocol an unknown service may appear later. Here it never does.
        let unknown = once(Ok(answer(ServingStatus::ServiceUnknown)));
        Ok(Response::new(Box::pin(unknown.chain(pending()))))
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
