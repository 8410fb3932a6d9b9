//! `grpc.testing.XdsUpdateHealthService`: drivers set the health status of the server and control its hook
//! server.

use tonic::{Code, Request, Response, Status};

use super::health::Serving;
use super::hook::HookServer;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::testing::hook_request::HookRequestCommand;
use crate::proto::testing::xds_update_health_service_server::XdsUpdateHealthService;
use crate::proto::testing::{Empty, HookRequest, HookResponse};

/// State that drivers can change.
pub(super) struct Updating {
    pub(super) serving: Serving,
    pub(super) hook_server: HookServer,
}

#[tonic::async_trait]
impl XdsUpdateHealthService for Updating {
    async fn set_serving(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.serving.set(ServingStatus::Serving);
        Ok(Response::new(Empty {}))
    }

    async fn set_not_serving(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.serving.set(ServingStatus::NotServing);
        Ok(Response::new(Empty {}))
    }

    async fn send_hook_request(
        &self,
        request: Request<HookRequest>,
    ) -> Result<Response<HookResponse>, Status> {
        let request = request.into_inner();
        match HookRequestCommand::try_from(request.command) {
            Ok(HookRequestCommand::Start) => self.hook_server.start(request.server_port).await?,
            Ok(HookRequestCommand::Stop) => self.hook_server.stop().await?,
            Ok(HookRequestCommand::Return) => {
                let code = Code::from(request.grpc_code_to_return);
                self.hook_server.give_back(Status::new(code, request.grpc_status_description)).await?;
            }
            Ok(HookRequestCommand::Unspecified) | Err(_) => {
                let expected = "expected START (1), STOP (2) or RETURN (3)";
                return Err(Status::invalid_argument(format!(
                    "command: {expected}, found {}",
                    request.command
                )));
            }
        }
        Ok(Response::new(HookResponse {}))
    }
}
