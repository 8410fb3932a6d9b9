//! Environment of the clients: backends and a control plane as processes, and one client process at a time.

use std::fmt;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::Error;
use crate::calls::backends::ServerKind;
use crate::calls::bench_clients::{BenchClient, Program, Target};
use crate::calls::clients::Kind;
use crate::calls::peers::{Peers, bootstrap};
use crate::calls::scenario::Payload;
use crate::common::process::WorkerProcess;

/// Maximum time of a client for start, connect and exit, beyond its task.
const GRACE: Duration = Duration::from_secs(20);

/// Backends and a control plane that serves every policy over them.
pub(crate) struct CallHarness {
    backends: WorkerProcess,
    control: WorkerProcess,
}

/// Task of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) payload: Payload,
    pub(crate) concurrency: usize,
    pub(crate) warm_up: Duration,
    pub(crate) span: Span,
    pub(crate) threads: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Time(Duration),
    Calls(u64),
}

/// Figures of a client. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) calls: f64,
    pub(crate) elapsed: f64,
    pub(crate) cpu: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

impl CallHarness {
    pub(crate) fn start(servers: ServerKind, backends: usize) -> Result<CallHarness, Error> {
        let backends = WorkerProcess::start(["backends", &servers.to_string(), &backends.to_string()])?;
        let addresses = backends.addresses.iter().map(String::as_str);
        let control = WorkerProcess::start(["control"].into_iter().chain(addresses))?;
        Ok(CallHarness { backends, control })
    }

    /// Runs one client to completion. Returns its figures and the number of measured calls of each backend.
    pub(crate) fn run(
        &mut self,
        client: &BenchClient,
        task: Task,
        peers: &Peers,
    ) -> Result<(Figures, Vec<u64>), Error> {
        let span = match task.span {
            Span::Time(span) => span,
            // Assumes at least a thousand calls per second.
            Span::Calls(calls) => Duration::from_millis(calls),
        };
        let mut command = self.command(client, task, peers)?;
        let limit = task.warm_up + span + GRACE;
        self.attend(&mut command, limit).map_err(|error| format!("{}: {error}", client.name).into())
    }

    fn command(&self, client: &BenchClient, task: Task, peers: &Peers) -> Result<Command, Error> {
        let mut command = match client.program {
            Program::Own(kind) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["client", name(kind)]);
                command
            }
            Program::Peer(peer) => Command::new(peers.client(peer)?),
        };
        let target = match client.target {
            Target::AllBackends => self.backends.addresses.join(","),
            Target::FirstBackend => self.backends.addresses.first().ok_or("no backend")?.clone(),
            Target::Xds(name) => format!("xds:///{name}"),
        };
        command.args(["--target", &target]);
        let mut number = |name: &str, value: &dyn fmt::Display| {
            command.arg(name).arg(value.to_string());
        };
        number("--size", &task.payload.size());
        number("--messages", &task.payload.messages());
        number("--concurrency", &task.concurrency);
        number("--warm-up", &task.warm_up.as_millis());
        match task.span {
            Span::Time(span) => number("--span", &span.as_millis()),
            Span::Calls(calls) => number("--calls", &calls),
        }
        number("--threads", &task.threads);
        let control = self.control.addresses.first().ok_or("no control plane")?;
        let bootstrap = bootstrap(client.program, control);
        command.env_remove("GRPC_XDS_BOOTSTRAP").env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap);
        Ok(command)
    }

    /// Drives a client from its `ready` to its figures.
    fn attend(&mut self, command: &mut Command, limit: Duration) -> Result<(Figures, Vec<u64>), Error> {
        let mut client = WorkerProcess::run_within(command, limit)?;
        if client.addresses != ["ready"] {
            return Err(format!("expected \"ready\", found {:?}", client.addresses.join(" ")).into());
        }
        // A line makes the backends print their counts.
        let before = self.backends.list("")?;
        let figures = Figures::parse(&client.ask_within("go", limit)?)?;
        let after = self.backends.list("")?;
        client.finish()?;
        Ok((figures, after.iter().zip(&before).map(|(after, before)| after - before).collect()))
    }
}

/// Returns the name of the command line.
fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Hyper => "hyper",
        Kind::H2 => "h2",
        Kind::Tonic => "tonic",
        Kind::TonicBalance => "tonic-balance",
        Kind::Evenkeel => "evenkeel",
    }
}

impl Figures {
    fn parse(line: &str) -> Result<Figures, Error> {
        let value: Value = serde_json::from_str(line)
            .map_err(|error| format!("expected figures as JSON, found {line:?}: {error}"))?;
        let figure = |name: &str| {
            value[name].as_f64().ok_or_else(|| format!("expected a number {name:?}, found {line:?}"))
        };
        let figures = Figures {
            calls: figure("calls")?,
            elapsed: figure("elapsed")?,
            cpu: figure("cpu")?,
            p50: figure("p50")?,
            p99: figure("p99")?,
            p999: figure("p999")?,
        };
        if figures.calls > 0.0 && figures.elapsed > 0.0 {
            Ok(figures)
        } else {
            Err(format!("no call was measured: {line:?}").into())
        }
    }

    /// Returns the calls per second.
    pub(crate) fn throughput(&self) -> f64 {
        self.calls / self.elapsed
    }

    /// Returns the processor time per call, in seconds.
    pub(crate) fn cpu_per_call(&self) -> f64 {
        self.cpu / self.calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let line = r#"{"calls": 200, "elapsed": 0.5, "cpu": 0.1, "p50": 1e-4, "p99": 2e-4, "p999": 3e-4}"#;
        let figures = Figures::parse(line).expect("figures");
        assert!(
            (figures.throughput() - 400.0).abs() < 1e-9 && (figures.cpu_per_call() - 0.0005).abs() < 1e-9
        );
        assert!((figures.p999 - 3e-4).abs() < 1e-12);
    }

    #[test]
    fn invalid_figures_are_reported_with_the_reason() {
        for (line, why) in [
            ("ready", "expected figures as JSON"),
            (r#"{"calls": 1}"#, r#"expected a number "elapsed""#),
            (
                r#"{"calls": 0, "elapsed": 1, "cpu": 0, "p50": 0, "p99": 0, "p999": 0}"#,
                "no call was measured",
            ),
        ] {
            let error = Figures::parse(line).expect_err("no figures").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
