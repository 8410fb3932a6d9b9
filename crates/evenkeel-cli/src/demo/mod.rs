//! `evenkeel demo`: a complete mesh on this machine, driven through six acts.
//!
//! It starts a control plane with a mesh file, five backend processes, a client channel under steady load,
//! and the status page. The acts edit the file and kill processes. The client learns of changes only through
//! xDS, its connections and load reports. With `--stay`, all parts run on after the acts, and the file is the user's.
//! All processes and files are removed when the demo ends.

mod acts;
pub(crate) mod backend;
mod fleet;
mod load;
mod report;
mod screen;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel::admin::{AdminServer, AdminState, AdminWatch};
use evenkeel::{Backoff, Bootstrap, Channel, ConnectivityState};
use evenkeel_control::{ControlPlane, Mesh, MeshErrors, MeshFileChange, MeshWatchGuard};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};

use self::acts::{ACTS, DemoAct, DemoEvent};
use self::fleet::{BACKENDS, DemoBackend};
use self::load::{FinishedCall, LoadGenerator, RATE};
use self::report::{ActReport, DemoReport};
use self::screen::{DemoScreen, ScreenFrame};
use crate::ends::ShutdownSignals;
use crate::explain::known::LocalResources;
use crate::ui::{self, CliError, CliExit, TerminalOutput, TextStyle};
use crate::validate::mesh_summary;

/// Interval between two samples of the client's state.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which the control plane polls the mesh file for edits.
const MESH_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum time until all backends are connected. They are on the same machine, so this is only a safeguard.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Width of the report in a pipe.
const PIPE_COLUMNS: usize = 200;

/// Fraction of an act excluded from its figures while the change takes effect.
const WARMUP_FRACTION: f64 = 0.25;

/// Run a demo on this machine: five backends, a control plane, a client and a status page.
///
/// The six acts are round robin, weights from the control plane, weights from reported load, a backend that is killed
/// and restarted, failover to another priority, and live edits of weights. Processes, sockets, xDS and gRPC are real.
/// The backends' capacities are simulated, since they share one machine. The demo exits after the last act and stops
/// all its processes. With --stay it keeps them, the page and the calls until Ctrl-C: edit the mesh file, whose path is
/// printed, and watch the page.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel demo                    on the terminal, and on the page whose address is printed
  evenkeel demo --seconds 120      longer acts
  evenkeel demo --stay             everything runs on after the acts, for your own edits of the mesh
  evenkeel demo --json | jq .      the figures of each act, for scripts")]
pub(crate) struct DemoArgs {
    /// Total duration of the demo, in seconds.
    #[arg(long, default_value_t = 42, value_parser = clap::value_parser!(u32).range(12..=3600))]
    seconds: u32,
    /// Keep the page, the calls and all processes after the last act, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    stay: bool,
    /// Do not serve the status page.
    #[arg(long)]
    no_page: bool,
    /// Address of the status page. The default is a free port of 127.0.0.1.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_page")]
    page: Option<SocketAddr>,
    /// Print only one JSON object, at the end.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: DemoArgs, terminal: &TerminalOutput) -> Result<CliExit, CliError> {
    let mut signals = ShutdownSignals::new()?;
    let environment = DemoEnvironment::start(&args).await?;
    let show = if args.json {
        OutputMode::Silent
    } else if terminal.is_interactive {
        OutputMode::Live(DemoScreen::new(terminal))
    } else {
        OutputMode::Lines
    };
    let mut runner = DemoRunner { environment, show, terminal, last: String::new() };
    let played = tokio::select! {
        played = runner.run_acts(Duration::from_secs(args.seconds.into())) => played?,
        () = signals.wait() => {
            runner.show.close()?;
            return Ok(CliExit::Success);
        }
    };
    let DemoRunner { mut show, mut environment, .. } = runner;
    let calls = environment.finish_acts(args.stay).await;
    let acts = played.iter().enumerate().map(|(number, act)| act.report(number, &calls)).collect();
    let report = DemoReport { calls_per_second: RATE, seconds: args.seconds.into(), acts };
    if args.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|error| CliError::usage(format!("the report cannot be written: {error}")))?;
        terminal.print_json(json)?;
    } else {
        show.close()?;
        let title = format!("{} backends, {RATE} calls per second, {} s", BACKENDS.len(), args.seconds);
        let columns = if terminal.is_interactive { ui::size().columns } else { PIPE_COLUMNS };
        terminal.print(format!(
            "{}\n{}",
            terminal.paint(TextStyle::Title, title),
            report.text(terminal, columns)
        ))?;
    }
    if args.stay {
        environment.stay(&mut signals, terminal).await?;
    }
    Ok(CliExit::Success)
}

/// The running parts of the demo.
struct DemoEnvironment {
    backends: Vec<DemoBackend>,
    /// Path in `_folder`, which is removed on drop.
    mesh: PathBuf,
    _folder: tempfile::TempDir,
    _mesh_watch: MeshWatchGuard,
    _control: ControlPlane,
    watch: AdminWatch,
    admin: Option<AdminServer>,
    channel: Channel,
    load: LoadGenerator,
    /// Result of each edit of the mesh file: a summary, or its errors.
    edits: UnboundedReceiver<Result<String, MeshErrors>>,
}

impl DemoEnvironment {
    async fn start(args: &DemoArgs) -> Result<DemoEnvironment, CliError> {
        let mut backends = Vec::new();
        for (name, capacity) in BACKENDS {
            backends.push(DemoBackend::start(name, capacity).await?);
        }
        let folder = tempfile::Builder::new()
            .prefix("evenkeel-demo-")
            .tempdir()
            .map_err(|error| CliError::usage(format!("no folder for the mesh file: {error}")))?;
        let mesh = folder.path().join("mesh.yaml");
        let Some((_, DemoEvent::Mesh(first))) = ACTS[0].events.first() else {
            return Err(CliError::usage("the first act has no mesh"));
        };
        write_mesh(&mesh, &acts::mesh(first, &backends))?;
        let watch = AdminWatch::start("evenkeel demo", SAMPLE_INTERVAL).await;
        let control = ControlPlane::builder()
            .serve()
            .await
            .map_err(|error| CliError::usage(format!("the control plane cannot listen: {error}")))?;
        let page_watch = watch.clone();
        let (edited, edits) = unbounded_channel();
        let on_change = move |change: MeshFileChange<'_>| {
            let edit = match change {
                MeshFileChange::Served(mesh) | MeshFileChange::Resolved(mesh) => Ok(mesh),
                MeshFileChange::Rejected(errors) => Err(errors),
                MeshFileChange::Unresolved(errors) => {
                    page_watch.mark(errors.to_string());
                    return;
                }
            };
            if let Err(errors) = edit {
                page_watch.mark(format!("rejected: {errors}"));
            }
            let summary = |mesh: &Mesh| mesh_summary(&LocalResources::parse(mesh.resources().iter()));
            // The receiver is gone when the demo ends.
            let _ = edited.send(edit.map(summary).map_err(Clone::clone));
        };
        let mesh_watch = control
            .cache()
            .watch_file(&mesh, MESH_POLL_INTERVAL, on_change)
            .await
            .map_err(|errors| CliError::usage(errors.to_string()))?;
        let bootstrap = Bootstrap::from_json(&control.bootstrap("evenkeel-demo"))
            .map_err(|error| CliError::usage(format!("the bootstrap: {error}")))?;
        let channel = Channel::builder("xds:///orders")
            .bootstrap(bootstrap)
            .backoff(backoff())
            .build()
            .map_err(|error| CliError::usage(error.to_string()))?;
        let admin = if args.no_page { None } else { Some(serve_page(args.page, watch.clone()).await?) };
        Ok(DemoEnvironment {
            backends,
            mesh,
            _folder: folder,
            _mesh_watch: mesh_watch,
            _control: control,
            watch,
            admin,
            load: LoadGenerator::start(channel.clone()),
            channel,
            edits,
        })
    }

    /// Waits until the channel is connected to every backend. Until then, shares are not those of the policy.
    async fn wait_until_connected(&mut self) {
        let connected = async {
            loop {
                let state = self.watch.changed().await;
                let endpoints = state.channels.iter().flat_map(|channel| &channel.endpoints);
                let ready = endpoints.filter(|endpoint| endpoint.state == ConnectivityState::Ready).count();
                if ready >= BACKENDS.len() {
                    break;
                }
            }
        };
        // The acts run in any case: they show which backends are not connected.
        let _ = timeout(CONNECT_TIMEOUT, connected).await;
    }

    /// Returns the calls of the acts. With `stay`, another load follows without a gap.
    async fn finish_acts(&mut self, stay: bool) -> Vec<FinishedCall> {
        if !stay {
            return self.load.finish().await;
        }
        let mut next = LoadGenerator::start(self.channel.clone());
        next.stop_recording();
        std::mem::replace(&mut self.load, next).finish().await
    }

    /// Keeps everything running until a signal, and prints the result of each edit of the mesh file.
    async fn stay(
        &mut self,
        signals: &mut ShutdownSignals,
        terminal: &TerminalOutput,
    ) -> Result<(), CliError> {
        // Edits of the acts.
        while self.edits.try_recv().is_ok() {}
        let page = self.page().map(|page| format!("  page: {page}\n")).unwrap_or_default();
        let title = terminal.paint(TextStyle::Title, "Running until Ctrl-C. Edit the mesh file:");
        terminal
            .print(format!("\n{title}\n{page}  mesh: {}\n", ui::safe(&self.mesh.display().to_string())))?;
        loop {
            let edit = tokio::select! {
                () = signals.wait() => return Ok(()),
                Some(edit) = self.edits.recv() => edit,
            };
            match edit {
                Ok(summary) => {
                    let text = terminal.paint(TextStyle::Good, format!("read again: {summary}"));
                    terminal.print(format!("mesh.yaml  {text}\n"))?;
                }
                Err(errors) => {
                    for error in errors.iter() {
                        let text = terminal.paint(TextStyle::Bad, ui::safe(&error.to_string())).to_string();
                        terminal.print(format!("{text}\n"))?;
                    }
                    terminal
                        .print("mesh.yaml  the edit is rejected; the previous version is still served\n")?;
                }
            }
        }
    }

    fn page(&self) -> Option<String> {
        self.admin.as_ref().map(|admin| format!("http://{}/", admin.address()))
    }

    /// Performs an event and returns its line for the event log.
    async fn play(&mut self, event: &DemoEvent) -> Result<String, CliError> {
        match event {
            DemoEvent::Mesh(edit) => {
                write_mesh(&self.mesh, &acts::mesh(edit, &self.backends))?;
                Ok(edit.summary())
            }
            DemoEvent::Kill(i) => {
                self.backends[*i].kill().await;
                Ok(format!("{} killed", BACKENDS[*i].0))
            }
            DemoEvent::Return(i) => {
                self.backends[*i].restart().await?;
                Ok(format!("{} started again", BACKENDS[*i].0))
            }
        }
    }
}

/// Short backoff: gRPC's default maximum of two minutes exceeds the duration of an act.
fn backoff() -> Backoff {
    let mut backoff = Backoff::default();
    (backoff.initial, backoff.max) = (Duration::from_millis(250), Duration::from_millis(500));
    backoff
}

async fn serve_page(address: Option<SocketAddr>, watch: AdminWatch) -> Result<AdminServer, CliError> {
    let mut admin = AdminServer::builder().watch(watch);
    if let Some(address) = address {
        admin = admin.listen(address);
    }
    admin.start().await.map_err(|error| CliError::usage(error.to_string()))
}

/// Writes a temporary file and renames it over `path`, so that a reader never sees a partial file.
fn write_mesh(path: &Path, text: &str) -> Result<(), CliError> {
    let beside = path.with_extension("new");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| CliError::usage(format!("{}: {error}", path.display())))
}

/// An act that has been played. Its calls are counted after the last act: some finish later than their act.
struct PlayedAct {
    act: &'static DemoAct,
    /// The act without its warm-up.
    measured: Range<std::time::Instant>,
    /// Utilization that each backend reported.
    utilization_samples: Vec<Vec<f64>>,
}

impl PlayedAct {
    fn report(&self, number: usize, calls: &[FinishedCall]) -> ActReport {
        ActReport::new(number, self.act, &self.measured, calls, &self.utilization_samples)
    }
}

/// Runs the acts in order.
struct DemoRunner<'t> {
    environment: DemoEnvironment,
    show: OutputMode<'t>,
    terminal: &'t TerminalOutput,
    /// Log line of the latest event.
    last: String,
}

/// Output while the acts run.
enum OutputMode<'t> {
    Silent,
    Lines,
    Live(DemoScreen<'t>),
}

impl OutputMode<'_> {
    fn close(&mut self) -> Result<(), CliError> {
        match self {
            OutputMode::Live(screen) => screen.close(),
            OutputMode::Silent | OutputMode::Lines => Ok(()),
        }
    }
}

impl DemoRunner<'_> {
    async fn run_acts(&mut self, duration: Duration) -> Result<Vec<PlayedAct>, CliError> {
        if let OutputMode::Lines = self.show {
            let page = self.environment.page().map(|page| format!("page: {page}\n")).unwrap_or_default();
            let mesh = ui::safe(&self.environment.mesh.display().to_string());
            self.terminal.print(format!("{page}mesh: {mesh}\n"))?;
        }
        self.environment.wait_until_connected().await;
        let mut played = Vec::new();
        for (number, act) in ACTS.iter().enumerate() {
            self.environment.watch.mark(format!("act {}: {}", number + 1, act.title));
            if let OutputMode::Lines = self.show {
                self.terminal.print(format!("act {}: {}: {}\n", number + 1, act.title, act.caption))?;
            }
            played.push(self.play(number, act, duration / ACTS.len() as u32).await?);
        }
        Ok(played)
    }

    async fn play(
        &mut self,
        number: usize,
        act: &'static DemoAct,
        duration: Duration,
    ) -> Result<PlayedAct, CliError> {
        let started = Instant::now();
        let measure_from = started + duration.mul_f64(WARMUP_FRACTION);
        let mut events = act.events.iter().peekable();
        let mut utilization_samples = vec![Vec::new(); BACKENDS.len()];
        while started.elapsed() < duration {
            let next = events.peek().map(|(at, _)| started + duration.mul_f64(*at));
            if next.is_some_and(|at| at <= Instant::now())
                && let Some((_, event)) = events.next()
            {
                self.last = self.environment.play(event).await?;
                self.environment.watch.mark(self.last.clone());
                if let OutputMode::Lines = self.show {
                    self.terminal.print(format!("  {}\n", self.last))?;
                }
                continue;
            }
            let until = next.unwrap_or(started + duration).min(started + duration);
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                state = self.environment.watch.changed() => {
                    if Instant::now() >= measure_from {
                        self.record_utilization(&state, &mut utilization_samples);
                    }
                    self.draw(number, started.elapsed().div_duration_f64(duration), &state)?;
                }
            }
        }
        Ok(PlayedAct {
            act,
            measured: measure_from.into_std()..Instant::now().into_std(),
            utilization_samples,
        })
    }

    /// Records the utilization that each READY backend reports.
    fn record_utilization(&self, state: &AdminState, utilization_samples: &mut [Vec<f64>]) {
        let Some(channel) = state.channels.first() else { return };
        for (backend, utilization_samples) in self.environment.backends.iter().zip(utilization_samples) {
            let address = backend.address.to_string();
            let endpoint = channel.endpoints.iter().find(|endpoint| endpoint.address == address);
            let ready = endpoint.filter(|endpoint| endpoint.state == ConnectivityState::Ready);
            utilization_samples.extend(ready.and_then(|endpoint| endpoint.utilization));
        }
    }

    fn draw(&mut self, act: usize, progress: f64, state: &AdminState) -> Result<(), CliError> {
        let page = self.environment.page();
        let mesh = self.environment.mesh.display().to_string();
        let OutputMode::Live(screen) = &mut self.show else { return Ok(()) };
        let frame = ScreenFrame { act, progress, last: &self.last, page: page.as_deref(), mesh: &mesh };
        screen.draw(&frame, state, &self.environment.backends)
    }
}
