//! Client program, observed through its services.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest};
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

use super::envoy::Envoy;
use super::process::Process;
use super::{Failure, LOOK_EVERY, PATIENCE, Program, Result};
use crate::proto::csds::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use crate::proto::testing::client_configure_request::{Metadata, RpcType};
use crate::proto::testing::load_balancer_stats_service_client::LoadBalancerStatsServiceClient;
use crate::proto::testing::xds_update_client_configure_service_client::XdsUpdateClientConfigureServiceClient;
use crate::proto::testing::{
    ClientConfigureRequest, LoadBalancerAccumulatedStatsRequest, LoadBalancerStatsRequest,
    LoadBalancerStatsResponse,
};

/// Calls that a client makes.
#[derive(Clone, Debug)]
pub struct Calls {
    qps: u32,
    kinds: &'static str,
    metadata: String,
    fail_on_failure: bool,
    secure: bool,
}

impl Calls {
    /// 100 unary calls per second.
    pub fn unary() -> Calls {
        Calls { qps: 100, kinds: "UnaryCall", metadata: String::new(), fail_on_failure: false, secure: false }
    }

    /// 100 calls per second of each method.
    pub fn both() -> Calls {
        Calls { kinds: "EmptyCall,UnaryCall", ..Calls::unary() }
    }

    /// Sets the calls per second.
    #[must_use]
    pub fn qps(self, qps: u32) -> Calls {
        Calls { qps, ..self }
    }

    /// Sets metadata, such as `UnaryCall:key:value,EmptyCall:key:value`.
    #[must_use]
    pub fn metadata(self, metadata: &str) -> Calls {
        Calls { metadata: metadata.to_owned(), ..self }
    }

    /// Makes the client use xDS credentials.
    #[must_use]
    pub fn secure(self) -> Calls {
        Calls { secure: true, ..self }
    }

    /// The client continues after failures.
    #[must_use]
    pub(super) fn some_may_fail(self) -> Calls {
        Calls { fail_on_failure: false, ..self }
    }

    /// The client exits when a call fails after one has succeeded.
    #[must_use]
    pub fn none_may_fail(self) -> Calls {
        Calls { fail_on_failure: true, ..self }
    }
}

/// Running client program with its services.
pub struct Client {
    process: Process,
    /// Stopped with the client.
    _proxy: Option<Envoy>,
    stats: LoadBalancerStatsServiceClient<Channel>,
    configure: XdsUpdateClientConfigureServiceClient<Channel>,
    status: ClientStatusDiscoveryServiceClient<Channel>,
}

/// Distribution of a block of calls.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Number of successful calls by server name.
    pub by_peer: BTreeMap<String, i32>,
    /// The same, by method.
    pub by_kind: BTreeMap<String, BTreeMap<String, i32>>,
    /// Number of failed calls.
    pub failures: i32,
}

/// Counters of a method since the client's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of started calls.
    pub started: i32,
    /// Number of ended calls by status code.
    pub results: BTreeMap<i32, i32>,
}

impl Totals {
    /// Returns the number of active calls.
    pub fn in_flight(&self) -> i32 {
        self.started - self.results.values().sum::<i32>()
    }
}

impl Stats {
    /// Returns the number of calls that this server served.
    pub fn of(&self, peer: &str) -> i32 {
        self.by_peer.get(peer).copied().unwrap_or(0)
    }

    /// Returns true if exactly these servers served calls, without failures.
    pub fn only(&self, peers: &[&str]) -> bool {
        self.failures == 0 && self.by_peer.len() == peers.len() && peers.iter().all(|peer| self.of(peer) > 0)
    }

    /// Returns true if all calls of each method reached the server beside it, without failures.
    pub fn went(&self, kinds: &[(&str, &str)]) -> bool {
        let to = |kind: &str| self.by_kind.get(kind).map(|peers| peers.keys().collect::<Vec<_>>());
        self.failures == 0 && kinds.iter().all(|(kind, peer)| to(kind) == Some(vec![&(*peer).to_owned()]))
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by server {:?}, by kind {:?}, {} failed", self.by_peer, self.by_kind, self.failures)
    }
}

impl From<LoadBalancerStatsResponse> for Stats {
    fn from(response: LoadBalancerStatsResponse) -> Stats {
        let by_kind = response.rpcs_by_method.into_iter().map(|(kind, peers)| (kind, peers.rpcs_by_peer));
        Stats { by_peer: response.rpcs_by_peer, by_kind: by_kind.collect(), failures: response.num_failures }
    }
}

impl Client {
    /// Starts a client and waits until its services respond.
    pub(super) async fn start(
        program: &Program,
        target: &str,
        calls: Calls,
        bootstrap: &str,
        proxy: Option<Envoy>,
    ) -> Result<Client> {
        let mut flags = vec![
            format!("--server={target}"),
            "--stats_port=0".to_owned(),
            "--num_channels=1".to_owned(),
            format!("--qps={}", calls.qps),
            format!("--rpc={}", calls.kinds),
            format!("--fail_on_failed_rpc={}", calls.fail_on_failure),
            format!("--secure_mode={}", calls.secure),
        ];
        if !calls.metadata.is_empty() {
            flags.push(format!("--metadata={}", calls.metadata));
        }
        let mut process = Process::start(program, &flags, &[("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap)])?;
        let port = process.port().await?;
        let endpoint = Endpoint::try_from(format!("http://127.0.0.1:{port}"))
            .map_err(|error| process.failure(&format!("cannot be queried on port {port}: {error}")))?;
        let channel = endpoint.connect_lazy();
        Ok(Client {
            process,
            _proxy: proxy,
            stats: LoadBalancerStatsServiceClient::new(channel.clone()),
            configure: XdsUpdateClientConfigureServiceClient::new(channel.clone()),
            status: ClientStatusDiscoveryServiceClient::new(channel),
        })
    }

    /// Returns the distribution of the next calls.
    pub async fn next(&mut self, calls: i32) -> Result<Stats> {
        let request = LoadBalancerStatsRequest {
            num_rpcs: calls,
            timeout_sec: PATIENCE.as_secs() as i32,
            ..LoadBalancerStatsRequest::default()
        };
        match self.stats.get_client_stats(request).await {
            Ok(response) => Ok(response.into_inner().into()),
            Err(status) => Err(self.process.failure(&format!("does not report where calls go: {status}"))),
        }
    }

    /// Waits for a block of calls that satisfies the condition, and returns it.
    pub async fn until(
        &mut self,
        calls: i32,
        expected: &str,
        good: impl Fn(&Stats) -> bool,
    ) -> Result<Stats> {
        let end = Instant::now() + PATIENCE;
        loop {
            let stats = self.next(calls).await?;
            if good(&stats) {
                return Ok(stats);
            }
            if Instant::now() > end {
                return Err(self.unexpected(calls, expected, &stats));
            }
        }
    }

    /// Fails unless the next block of calls satisfies the condition.
    pub async fn now(&mut self, calls: i32, expected: &str, good: impl Fn(&Stats) -> bool) -> Result<Stats> {
        let stats = self.next(calls).await?;
        if good(&stats) { Ok(stats) } else { Err(self.unexpected(calls, expected, &stats)) }
    }

    fn unexpected(&self, calls: i32, expected: &str, stats: &Stats) -> Failure {
        self.process.failure(&format!("was expected to have {expected}; of {calls} calls there were {stats}"))
    }

    /// Returns the counters since the start, by `EMPTY_CALL` and `UNARY_CALL`.
    pub async fn totals(&mut self) -> Result<BTreeMap<String, Totals>> {
        let told = self.stats.get_client_accumulated_stats(LoadBalancerAccumulatedStatsRequest {}).await;
        let told = told?.into_inner().stats_per_method.into_iter();
        Ok(told
            .map(|(kind, stats)| (kind, Totals { started: stats.rpcs_started, results: stats.result }))
            .collect())
    }

    /// Waits until three consecutive samples of the counters satisfy the condition.
    pub async fn until_totals(
        &mut self,
        expected: &str,
        mut good: impl FnMut(&BTreeMap<String, Totals>) -> bool,
    ) -> Result {
        let end = Instant::now() + PATIENCE;
        let mut looks = 0;
        loop {
            let totals = self.totals().await?;
            looks = if good(&totals) { looks + 1 } else { 0 };
            if looks == 3 {
                return Ok(());
            }
            if Instant::now() > end {
                let words = format!("was expected to have {expected}; it counts {totals:?}");
                return Err(self.process.failure(&words));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until 20 consecutive calls of a method end with this code.
    pub async fn until_results(&mut self, kind: &str, code: i32) -> Result {
        let mut from = Totals::default();
        let expected = format!("{kind} end with code {code} and no other");
        let mut first = true;
        self.until_totals(&expected, |totals| {
            let Some(now) = totals.get(kind) else { return false };
            let since = |of: i32| now.results.get(&of).unwrap_or(&0) - from.results.get(&of).unwrap_or(&0);
            let others = now.results.keys().any(|of| *of != code && since(*of) > 0);
            if others || first {
                first = false;
                from.clone_from(now);
                return false;
            }
            since(code) >= 20
        })
        .await
    }

    /// Changes the calls of the client.
    pub async fn configure(
        &mut self,
        kinds: &[RpcType],
        metadata: &[(RpcType, &str, &str)],
        timeout: i32,
    ) -> Result {
        let metadata = metadata.iter().map(|(kind, key, value)| Metadata {
            r#type: (*kind).into(),
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        });
        let request = ClientConfigureRequest {
            types: kinds.iter().map(|kind| (*kind).into()).collect(),
            metadata: metadata.collect(),
            timeout_sec: timeout,
        };
        self.configure.configure(request).await?;
        Ok(())
    }

    /// Returns the client's xDS resources (CSDS).
    pub async fn xds_config(&mut self) -> Result<Vec<ClientConfig>> {
        let answer = self.status.fetch_client_status(ClientStatusRequest::default()).await?;
        Ok(answer.into_inner().config)
    }

    /// Fails if the client has exited, as it does after a failure that is not allowed.
    pub fn still_runs(&mut self) -> Result {
        if self.process.runs() { Ok(()) } else { Err(self.process.failure("has ended")) }
    }

    /// Returns a failure with the program's output.
    pub fn failure(&self, words: &str) -> Failure {
        self.process.failure(words)
    }
}
