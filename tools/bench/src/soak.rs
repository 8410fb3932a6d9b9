//! Soak test: calls at a steady rate for twenty minutes while endpoints change, backends are killed and the
//! control plane restarts.
//!
//! The client is this process, so that its memory, descriptors and tasks are its own. Backends and the
//! control plane are a second process with a line-based command interface. The criteria are those of the
//! short soak among the tests. No call fails outside the windows with a killed backend, and descriptors,
//! tasks and threads return to their initial numbers. A long run also limits the growth of resident memory.

use std::io::BufRead as _;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::{Bootstrap, Channel};
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::soak::{FailedCall, KillWindow, ProcessUsage, SoakLoad, resident_bytes, slope};
use testkit::net::{Backend, ControlPlane};
use tokio::task::block_in_place;
use tokio::time::{Instant, interval};
use tonic::{Request, Status};

use crate::Error;
use crate::common::process::{WorkerProcess, runtime};
use crate::table::Table;
use crate::thresholds::Measured;

/// Deadline of a call. Only a failure reaches it.
const DEADLINE: Duration = Duration::from_secs(30);

/// Number of callers that share the rate.
const CALLERS: u32 = 50;

/// Maximum growth of resident memory after the warm-up, in MiB per minute.
const MAX_GROWTH: f64 = 1.0;

/// Minimum duration in seconds for checking the growth of memory.
const SECONDS_FOR_GROWTH: u32 = 240;

/// Make calls for twenty minutes while endpoints, backends and the control plane change. No call may fail, and
/// nothing may leak.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Duration of the soak, in seconds.
    #[arg(long, default_value_t = 1_200, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Number of calls per second.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Number of backends. One of them is omitted from the endpoints at a time.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(3..=1_000))]
    backends: u32,
    /// Interval between two killed backends, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    kill_every: u32,
    /// Interval between two restarts of the control plane, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    restart_every: u32,
}

/// Worker process with the backends and the control plane.
#[derive(clap::Args)]
pub(crate) struct Worker {
    /// Number of backends to start.
    backends: u32,
}

/// Executes commands from standard input until it closes, with one line in return for each.
pub(crate) fn work(worker: &Worker) -> Result<(), Error> {
    let runtime = runtime()?;
    let (backends, control) = runtime.block_on(async {
        let mut backends = Vec::new();
        for _ in 0..worker.backends {
            backends.push(Backend::start().await);
        }
        (backends, ControlPlane::start().await)
    });
    let addresses: Vec<SocketAddr> = backends.iter().map(Backend::address).collect();
    control.serve("soak", "backends", &addresses);
    println!("{}", control.address());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (order, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let index: usize = number.parse()?;
        let backend = backends.get(index).ok_or_else(|| format!("no backend {index}"))?;
        match order {
            "leave-out" => {
                let others = addresses.iter().filter(|address| **address != backend.address());
                control.set_endpoints("backends", &others.copied().collect::<Vec<_>>());
            }
            "kill" => backend.kill(),
            "restart" => runtime.block_on(backend.restart()),
            "restart-control" => {
                control.kill();
                runtime.block_on(control.restart());
            }
            other => return Err(format!("unknown order {other:?}").into()),
        }
        println!("done");
    }
    Ok(())
}

/// Sends one command and waits for its completion.
fn order(servers: &mut WorkerProcess, order: &str, backend: u32) -> Result<(), Error> {
    let reply = block_in_place(|| servers.ask(&format!("{order} {backend}")))?;
    if reply == "done" { Ok(()) } else { Err(format!("{order}: expected \"done\", found {reply:?}").into()) }
}

/// Figures of a soak.
struct SoakResult {
    ok: u64,
    failed: usize,
    windows: usize,
    outside: Vec<FailedCall>,
    took: Duration,
    /// Resident memory in MiB at the end, and its growth in MiB per minute after the warm-up.
    resident: f64,
    growth: Option<f64>,
    before: ProcessUsage,
    after: ProcessUsage,
}

pub(crate) fn run(args: &Args) -> Result<Measured, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(soak(args))?;
    let is_long = args.seconds >= SECONDS_FOR_GROWTH;
    let problems = problems(&result, is_long);
    let table = table(args, &result, is_long);
    if problems.is_empty() {
        return Ok(Measured::tables(vec![table]));
    }
    println!("{}", table.text());
    Err(format!("the soak failed: {}", problems.join("; ")).into())
}

async fn soak(args: &Args) -> Result<SoakResult, Error> {
    let mut servers = WorkerProcess::start(["soak-worker", &args.backends.to_string()])?;
    let before = ProcessUsage::now()?;
    let bootstrap = format!(
        r#"{{"xds_servers": [{{"server_uri": "{}", "channel_creds": [{{"type": "insecure"}}]}}], "node": {{"id": "soak"}}}}"#,
        servers.addresses.first().ok_or("the control plane printed no address")?
    );
    let channel = Channel::builder("xds:///soak").bootstrap(Bootstrap::from_json(&bootstrap)?).build()?;
    call(channel.clone()).await.map_err(|status| format!("the first call failed: {status}"))?;
    let load = {
        let channel = channel.clone();
        let period = Duration::from_secs(1) * CALLERS / args.rate;
        SoakLoad::start(CALLERS as usize, period, move || call(channel.clone()))
    };

    let begun = Instant::now();
    let warm_up = (args.seconds / 4).min(120);
    let (mut windows, mut memory) = (Vec::new(), Vec::new());
    let mut seconds = interval(Duration::from_secs(1));
    seconds.tick().await;
    for second in 1..=args.seconds {
        seconds.tick().await;
        let left_out = second % args.backends;
        order(&mut servers, "leave-out", left_out)?;
        if second % args.kill_every == 0 {
            let victim = (left_out + 1) % args.backends;
            let begun = Instant::now();
            order(&mut servers, "kill", victim)?;
            if !load.further(0).await {
                return Err("calls do not finish after a backend was killed".into());
            }
            windows.push(KillWindow { begun, ended: Instant::now() });
            order(&mut servers, "restart", victim)?;
        }
        if second % args.restart_every == 0 {
            order(&mut servers, "restart-control", 0)?;
        }
        let resident = resident_bytes()? as f64 / f64::from(1 << 20);
        if second > warm_up {
            memory.push((begun.elapsed().as_secs_f64() / 60.0, resident));
        }
        if second % 30 == 0 {
            eprintln!("{second} s: {} ok, {} failed, {resident:.1} MiB resident", load.ok(), load.failed());
        }
    }
    let took = begun.elapsed();
    let outcome = load.stop().await;
    let resident = resident_bytes()? as f64 / f64::from(1 << 20);
    channel.close().await;
    let (Ok(after) | Err(after)) = before.wait_until_restored().await;
    Ok(SoakResult {
        ok: outcome.ok,
        failed: outcome.failed.len(),
        windows: windows.len(),
        outside: outcome.failed_outside(&windows).into_iter().cloned().collect(),
        took,
        resident,
        growth: slope(&memory),
        before,
        after,
    })
}

async fn call(channel: Channel) -> Result<(), Status> {
    let mut request =
        Request::new(EchoRequest { payload: b"sixteen bytes...".to_vec(), ..EchoRequest::default() });
    request.set_timeout(DEADLINE);
    EchoClient::new(channel).unary(request).await.map(drop)
}

/// Returns the criteria that a run does not meet.
fn problems(result: &SoakResult, is_long: bool) -> Vec<String> {
    let mut problems = Vec::new();
    if result.ok == 0 {
        problems.push("no call succeeded".to_owned());
    }
    if let Some(first) = result.outside.first() {
        let count = result.outside.len();
        problems.push(format!("{count} calls failed outside kill windows, the first with {}", first.status));
    }
    if !result.after.is_at_most(&result.before) {
        problems.push(format!("{:?} before, {:?} after", result.before, result.after));
    }
    if is_long && result.growth.is_none_or(|growth| growth > MAX_GROWTH) {
        problems.push(format!("memory grows by {:?} MiB per minute", result.growth));
    }
    problems
}

fn table(args: &Args, result: &SoakResult, is_long: bool) -> Table {
    let SoakResult { before, after, .. } = result;
    let mut table = Table::new("Soak", &["figure", "value", "criterion"]).note(format!(
        "{} calls per second over {} backends, an EDS edit each second, a killed backend each {} s, a restart of the control \
         plane each {} s.",
        args.rate, args.backends, args.kill_every, args.restart_every
    ));
    let growth = result.growth.map_or_else(|| "-".to_owned(), |growth| format!("{growth:.3}"));
    let growth_criterion =
        if is_long { format!("at most {MAX_GROWTH}") } else { format!("none below {SECONDS_FOR_GROWTH} s") };
    for (figure, value, criterion) in [
        ("seconds", format!("{:.0}", result.took.as_secs_f64()), ""),
        ("calls that succeeded", result.ok.to_string(), "more than 0"),
        ("calls per second", format!("{:.0}", result.ok as f64 / result.took.as_secs_f64()), ""),
        ("calls that failed in kill windows", (result.failed - result.outside.len()).to_string(), ""),
        ("calls that failed outside", result.outside.len().to_string(), "0"),
        ("kill windows", result.windows.to_string(), ""),
        ("resident memory at the end, MiB", format!("{:.1}", result.resident), ""),
        ("its growth after the warm-up, MiB per minute", growth, growth_criterion.as_str()),
        ("descriptors before, after", format!("{}, {}", before.descriptors, after.descriptors), "no more"),
        ("tasks before, after", format!("{}, {}", before.tasks, after.tasks), "no more"),
        ("xDS threads before, after", format!("{}, {}", before.xds_threads, after.xds_threads), "no more"),
    ] {
        table.row(vec![figure.to_owned(), value, criterion.to_owned()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> SoakResult {
        let usage = ProcessUsage { descriptors: 10, tasks: 0, xds_threads: 0 };
        SoakResult {
            ok: 1,
            failed: 0,
            windows: 0,
            outside: Vec::new(),
            took: Duration::from_secs(1),
            resident: 1.0,
            growth: Some(0.1),
            before: usage,
            after: usage,
        }
    }

    #[test]
    fn each_criterion_can_fail() {
        let now = Instant::now();
        let failed = FailedCall { begun: now, ended: now, status: Status::unavailable("gone") };
        let leaked = ProcessUsage { descriptors: 11, ..result().after };
        let cases = [
            (result(), 0),
            (SoakResult { ok: 0, ..result() }, 1),
            (SoakResult { outside: vec![failed], failed: 1, ..result() }, 1),
            (SoakResult { after: leaked, ..result() }, 1),
            (SoakResult { growth: Some(1.5), ..result() }, 1),
            (SoakResult { growth: None, ..result() }, 1),
        ];
        for (result, count) in cases {
            assert_eq!(problems(&result, true).len(), count, "{:?}", problems(&result, true));
        }
        assert!(problems(&SoakResult { growth: Some(1.5), ..result() }, false).is_empty());
    }
}
