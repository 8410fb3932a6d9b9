//! Services for drivers: statistics, and reconfiguration of the calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::plan::{self, Planned};
use super::stats::Stats;
use crate::proto::testing::load_balancer_stats_service_server::LoadBalancerStatsService;
use crate::proto::testing::xds_update_client_configure_service_server::XdsUpdateClientConfigureService;
use crate::proto::testing::{
    ClientConfigureRequest, ClientConfigureResponse, LoadBalancerAccumulatedStatsRequest,
    LoadBalancerAccumulatedStatsResponse, LoadBalancerStatsRequest, LoadBalancerStatsResponse,
};

/// Reports the distribution of calls.
pub(crate) struct StatsService(pub(crate) Arc<Stats>);

/// Changes the calls to make.
pub(crate) struct ConfigureService {
    pub(crate) plan: watch::Sender<Vec<Arc<Planned>>>,
    /// Timeout of calls without one in the request.
    pub(crate) default_timeout: Duration,
}

#[tonic::async_trait]
impl LoadBalancerStatsService for StatsService {
    async fn get_client_stats(
        &self,
        request: Request<LoadBalancerStatsRequest>,
    ) -> Result<Response<LoadBalancerStatsResponse>, Status> {
        let told = self.0.next_calls(request.into_inner()).await;
        told.map(Response::new).map_err(Status::invalid_argument)
    }

    async fn get_client_accumulated_stats(
        &self,
        _: Request<LoadBalancerAccumulatedStatsRequest>,
    ) -> Result<Response<LoadBalancerAccumulatedStatsResponse>, Status> {
        Ok(Response::new(self.0.accumulated()))
    }
}

#[tonic::async_trait]
impl XdsUpdateClientConfigureService for ConfigureService {
    async fn configure(
        &self,
        request: Request<ClientConfigureRequest>,
    ) -> Result<Response<ClientConfigureResponse>, Status> {
        let plan =
            plan::configured(request.get_ref(), self.default_timeout).map_err(Status::invalid_argument)?;
        self.plan.send_replace(plan.into_iter().map(Arc::new).collect());
        Ok(Response::new(ClientConfigureResponse {}))
    }
}
