//! `interop_client`: gRPC's published load report cases, `orca_per_rpc` and `orca_oob`, against any server of
//! `grpc.testing.TestService`. `empty_unary` and `large_unary` check that calls work at all.
//!
//! A case prints its result and exits with 0 or 1. Invalid flags exit with 2. Reports must equal those that the case
//! has set on the server, without additional values.

mod policy;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use evenkeel::Channel;
use evenkeel_core::LoadReport;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use self::policy::{NAME, Reports};
use crate::flags::{FlagError, Flags};
use crate::proto::testing::test_service_client::TestServiceClient;
use crate::proto::testing::{
    Empty, Payload, PayloadType, ResponseParameters, SimpleRequest, StreamingOutputCallRequest,
    StreamingOutputCallResponse, TestOrcaReport,
};

/// Maximum duration of a case. Out-of-band reports arrive every second.
const LIMIT: Duration = Duration::from_secs(30);

/// Polling interval of a case.
const PAUSE: Duration = Duration::from_millis(100);

/// Published sizes of `large_unary`.
const LARGE_REQUEST: usize = 271_828;
const LARGE_RESPONSE: i32 = 314_159;

/// Exit code for invalid flags.
const USAGE: u8 = 2;

/// Runs the program: parses its flags and runs one case.
pub async fn run(args: impl IntoIterator<Item = String>) -> ExitCode {
    let mut flags = Flags::of(args);
    let settings = Settings::read(&mut flags);
    flags.warn_of_unknown();
    let reports = Reports::default();
    let made = settings.and_then(|settings| Ok((settings.case, settings.channel(&reports)?)));
    let (case, channel) = match made {
        Ok(made) => made,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::from(USAGE);
        }
    };
    let mut world = CaseContext { client: TestServiceClient::new(channel), reports };
    let held = timeout(LIMIT, world.run(case)).await;
    let late =
        || format!("not over after {LIMIT:?}; last report out of band: {:?}", world.reports.out_of_band());
    match held.unwrap_or_else(|_| Err(late())) {
        Ok(()) => {
            println!("{}: passed", case.name());
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{}: failed: {problem}", case.name());
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy)]
enum Case {
    EmptyUnary,
    LargeUnary,
    OrcaPerRpc,
    OrcaOob,
}

impl Case {
    const ALL: [Case; 4] = [Case::EmptyUnary, Case::LargeUnary, Case::OrcaPerRpc, Case::OrcaOob];

    fn name(self) -> &'static str {
        match self {
            Case::EmptyUnary => "empty_unary",
            Case::LargeUnary => "large_unary",
            Case::OrcaPerRpc => "orca_per_rpc",
            Case::OrcaOob => "orca_oob",
        }
    }
}

struct Settings {
    case: Case,
    host: String,
    port: u16,
    authority: String,
    service_config: String,
}

impl Settings {
    /// Reads all flags before it rejects any, so that none of them counts as unknown.
    fn read(flags: &mut Flags) -> Result<Settings, String> {
        let told = |error: FlagError| error.to_string();
        let case = flags.read_if_there("test_case", |text| {
            let found = Case::ALL.into_iter().find(|case| case.name() == text);
            found.ok_or_else(|| format!("one of {}", Case::ALL.map(Case::name).join(", ")))
        });
        let host = flags.text("server_host", "localhost");
        let port = flags.number("server_port", 8080);
        let authority = flags.text("server_host_override", "");
        let service_config = flags.text("service_config_json", "");
        if flags.yes("use_tls").map_err(told)? {
            return Err(
                "flag --use_tls: this program uses plaintext only; run it with --use_tls=false".to_owned()
            );
        }
        Ok(Settings {
            case: case.map_err(told)?.unwrap_or(Case::EmptyUnary),
            host: host.map_err(told)?,
            port: port.map_err(told)?,
            authority: authority.map_err(told)?,
            service_config: service_config.map_err(told)?,
        })
    }

    fn channel(&self, reports: &Reports) -> Result<Channel, String> {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let mut builder =
            Channel::builder(format!("dns:///{host}:{}", self.port)).registry(reports.registry());
        if !self.authority.is_empty() {
            builder = builder.authority(&self.authority);
        }
        if !self.service_config.is_empty() {
            builder = builder.service_config(&self.service_config);
        }
        builder.build().map_err(|error| error.to_string())
    }
}

/// Client and observed load reports of a case.
struct CaseContext {
    client: TestServiceClient<Channel>,
    reports: Reports,
}

impl CaseContext {
    async fn run(&mut self, case: Case) -> Result<(), String> {
        match case {
            Case::EmptyUnary => self.empty_unary().await,
            Case::LargeUnary => self.large_unary().await,
            Case::OrcaPerRpc => self.orca_per_rpc().await,
            Case::OrcaOob => self.orca_oob().await,
        }
    }

    async fn empty_unary(&mut self) -> Result<(), String> {
        self.client.empty_call(Empty {}).await.map_err(|status| format!("EmptyCall: {status}"))?;
        Ok(())
    }

    async fn large_unary(&mut self) -> Result<(), String> {
        let kind = PayloadType::Compressable.into();
        let request = SimpleRequest {
            response_type: kind,
            response_size: LARGE_RESPONSE,
            payload: Some(Payload { r#type: kind, body: vec![0; LARGE_REQUEST] }),
            ..SimpleRequest::default()
        };
        let found = self.unary(request).await?.unwrap_or_default();
        let expected = Payload { r#type: kind, body: vec![0; LARGE_RESPONSE as usize] };
        if found == expected {
            return Ok(());
        }
        Err(format!(
            "UnaryCall: expected a payload of {LARGE_RESPONSE} zeros, found one of type {} with {} bytes",
            found.r#type,
            found.body.len()
        ))
    }

    /// A per-call report reaches the policy.
    async fn orca_per_rpc(&mut self) -> Result<(), String> {
        let report = TestOrcaReport {
            cpu_utilization: 0.8210,
            memory_utilization: 0.5847,
            request_cost: [("cost".to_owned(), 3456.32)].into(),
            utilization: [("util".to_owned(), 0.30499)].into(),
        };
        let expected = [Some(as_policies_see_it(&report))];
        self.unary(SimpleRequest { orca_per_query_report: Some(report), ..SimpleRequest::default() }).await?;
        let found = self.seen_calls()?;
        if found == expected {
            Ok(())
        } else {
            Err(format!("expected {expected:?} with the call, found {found:?}"))
        }
    }

    /// Out-of-band reports reach the policy, and later ones replace them.
    async fn orca_oob(&mut self) -> Result<(), String> {
        let first = shares(0.8210, 0.5847, 0.30499);
        let second = shares(0.29309, 0.2, 0.2039);
        let (requests, received) = mpsc::channel(1);
        // Send before the call: some servers send no headers before the first request.
        let _ = requests.send(to_report(&first)).await;
        let stream = self.client.full_duplex_call(ReceiverStream::new(received)).await;
        let mut answers = stream.map_err(|status| format!("FullDuplexCall: {status}"))?.into_inner();
        // The response confirms that the report is active.
        expect_answer(&mut answers).await?;
        self.await_out_of_band(&first).await?;
        // If the call has ended, the next response has the status.
        let _ = requests.send(to_report(&second)).await;
        expect_answer(&mut answers).await?;
        self.await_out_of_band(&second).await?;
        drop(requests);
        match answers.message().await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => {
                Err("FullDuplexCall: expected the end of the stream, found another response".to_owned())
            }
            Err(status) => Err(format!("FullDuplexCall: {status}")),
        }
    }

    /// Makes calls while it waits for the report, as the case requires.
    async fn await_out_of_band(&mut self, report: &TestOrcaReport) -> Result<(), String> {
        let expected = as_policies_see_it(report);
        while self.reports.out_of_band().as_ref() != Some(&expected) {
            self.unary(SimpleRequest::default()).await?;
            self.seen_calls()?;
            sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn unary(&mut self, request: SimpleRequest) -> Result<Option<Payload>, String> {
        let answer =
            self.client.unary_call(request).await.map_err(|status| format!("UnaryCall: {status}"))?;
        Ok(answer.into_inner().payload)
    }

    /// Returns the report of each call; there must be one. The policy sees the end of a call before the
    /// caller does.
    fn seen_calls(&self) -> Result<Vec<Option<LoadReport>>, String> {
        let calls = self.reports.of_calls();
        if calls.is_empty() {
            return Err(format!(
                "the call did not go through the policy {NAME:?}; name it with \
                 --service_config_json={{\"loadBalancingConfig\":[{{\"{NAME}\":{{}}}}]}}"
            ));
        }
        Ok(calls)
    }
}

fn shares(cpu_utilization: f64, memory_utilization: f64, util: f64) -> TestOrcaReport {
    let utilization = [("util".to_owned(), util)].into();
    TestOrcaReport { cpu_utilization, memory_utilization, utilization, ..TestOrcaReport::default() }
}

/// Returns a request to report this out of band, with a response.
fn to_report(report: &TestOrcaReport) -> StreamingOutputCallRequest {
    StreamingOutputCallRequest {
        orca_oob_report: Some(report.clone()),
        response_parameters: vec![ResponseParameters { size: 1, ..ResponseParameters::default() }],
        ..StreamingOutputCallRequest::default()
    }
}

async fn expect_answer(answers: &mut Streaming<StreamingOutputCallResponse>) -> Result<(), String> {
    match answers.message().await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("FullDuplexCall: expected a response, found the end of the stream".to_owned()),
        Err(status) => Err(format!("FullDuplexCall: {status}")),
    }
}

fn as_policies_see_it(report: &TestOrcaReport) -> LoadReport {
    let list = |map: &BTreeMap<String, f64>| map.iter().map(|(name, value)| (name.clone(), *value)).collect();
    LoadReport {
        cpu_utilization: report.cpu_utilization,
        mem_utilization: report.memory_utilization,
        utilization: list(&report.utilization),
        request_cost: list(&report.request_cost),
        ..LoadReport::default()
    }
}
