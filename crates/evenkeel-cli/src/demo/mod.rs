//! `evenkeel demo`: a whole mesh on this machine, and a story told with it.
//!
//! A control plane with its mesh file, five backends as processes of their own, a client channel with a steady load, and the page. The
//! acts edit the file and kill processes; nothing is told to the client but by its control plane, its connections and the backends'
//! load reports. When it ends, nothing is left.

mod acts;
pub(crate) mod backend;
mod fleet;
mod load;
mod report;
mod screen;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel::admin::{Admin, State, Watch};
use evenkeel::{Backoff, Bootstrap, Channel, Connectivity};
use evenkeel_control::{ControlPlane, Followed, Mesh, MeshErrors};
use tokio::time::Instant;

use self::acts::{ACTS, Act, Scene};
use self::fleet::{BACKENDS, Backend};
use self::load::{Load, RATE};
use self::report::{ActReport, Report};
use self::screen::{Moment, Screen};
use crate::ends::Ends;
use crate::ui::{Exit, Failure, Style, Terminal};

/// How often the stage is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// How often the control plane looks at its mesh file.
const EDITS: Duration = Duration::from_millis(100);

/// The share of an act in which what was changed settles: its calls are not in the act's figures.
const SETTLES: f64 = 0.25;

/// Show it: five backends, a control plane, a client and a page, on this machine.
///
/// Six acts: round robin, weights from the control plane, weights from the load that backends report, a backend that dies and
/// returns, a priority that fails over, weights edited live. All of it is real: processes, sockets, xDS, gRPC; only the
/// backends' capacities are made up, since they share one machine. It ends by itself and leaves nothing running.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel demo                    watch it here, or on the page whose address it prints
  evenkeel demo --seconds 120      slower
  evenkeel demo --json | jq .      the figures of each act, for scripts")]
pub(crate) struct Args {
    /// How long the story takes in all.
    #[arg(long, default_value_t = 42, value_parser = clap::value_parser!(u32).range(12..=3600))]
    seconds: u32,
    /// Serve no page.
    #[arg(long)]
    no_page: bool,
    /// Where the page is served; by default on a free port of 127.0.0.1.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_page")]
    page: Option<SocketAddr>,
    /// Print one JSON object at the end, and nothing else.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, terminal: &Terminal) -> Result<Exit, Failure> {
    let mut ends = Ends::new()?;
    let stage = Stage::set(&args).await?;
    let show = if args.json {
        Show::Nothing
    } else if terminal.is_interactive {
        Show::Picture(Screen::new(terminal))
    } else {
        Show::Lines
    };
    let mut story = Story { stage, show, terminal, last: String::new() };
    let acts = tokio::select! {
        acts = story.tell(Duration::from_secs(args.seconds.into())) => acts?,
        () = ends.wait() => {
            story.show.clear()?;
            return Ok(Exit::Fine);
        }
    };
    let report = Report { calls_per_second: RATE, seconds: args.seconds.into(), acts };
    if args.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::usage(format!("the report cannot be written: {error}")))?;
        terminal.print_json(json)?;
    } else {
        story.show.clear()?;
        let title = format!("{} backends, {RATE} calls per second, {} s", BACKENDS.len(), args.seconds);
        terminal.print(format!(
            "{}\n{}\n{}\n",
            terminal.paint(Style::Title, title),
            report.tables(terminal),
            report.verdict()
        ))?;
    }
    Ok(Exit::Fine)
}

/// Everything that the story is told with.
struct Stage {
    backends: Vec<Backend>,
    /// In a folder of its own, which goes away with it.
    mesh: PathBuf,
    _folder: tempfile::TempDir,
    _followed: Followed,
    _control: ControlPlane,
    watch: Watch,
    admin: Option<Admin>,
    load: Load,
}

impl Stage {
    async fn set(args: &Args) -> Result<Stage, Failure> {
        let mut backends = Vec::new();
        for (name, capacity) in BACKENDS {
            backends.push(Backend::start(name, capacity).await?);
        }
        let folder = tempfile::Builder::new()
            .prefix("evenkeel-demo-")
            .tempdir()
            .map_err(|error| Failure::usage(format!("no folder for the mesh file: {error}")))?;
        let mesh = folder.path().join("mesh.yaml");
        let Some((_, Scene::Mesh(first))) = ACTS[0].scenes.first() else {
            return Err(Failure::usage("the story begins without a mesh"));
        };
        write_mesh(&mesh, &acts::mesh(first, &backends))?;
        let watch = Watch::start("evenkeel demo", LOOK).await;
        let control = ControlPlane::builder()
            .serve()
            .await
            .map_err(|error| Failure::usage(format!("the control plane cannot listen: {error}")))?;
        let told = watch.clone();
        let tell = move |edit: Result<&Mesh, &MeshErrors>| {
            if let Err(errors) = edit {
                told.mark(format!("not taken: {errors}"));
            }
        };
        let followed = control
            .plane()
            .follow(&mesh, EDITS, tell)
            .await
            .map_err(|errors| Failure::usage(errors.to_string()))?;
        let bootstrap = Bootstrap::from_json(&control.bootstrap("evenkeel-demo"))
            .map_err(|error| Failure::usage(format!("the bootstrap: {error}")))?;
        let channel = Channel::builder("xds:///orders")
            .bootstrap(bootstrap)
            .backoff(backoff())
            .build()
            .map_err(|error| Failure::usage(error.to_string()))?;
        let admin = if args.no_page { None } else { Some(serve_page(args.page, watch.clone()).await?) };
        Ok(Stage {
            backends,
            mesh,
            _folder: folder,
            _followed: followed,
            _control: control,
            watch,
            admin,
            load: Load::start(channel),
        })
    }

    /// Something happens; answers what, in a few words.
    async fn play(&mut self, scene: &Scene) -> Result<String, Failure> {
        match scene {
            Scene::Mesh(plan) => {
                write_mesh(&self.mesh, &acts::mesh(plan, &self.backends))?;
                Ok(plan.says())
            }
            Scene::Kill(i) => {
                self.backends[*i].kill().await;
                Ok(format!("{} killed", BACKENDS[*i].0))
            }
            Scene::Return(i) => {
                self.backends[*i].restart().await?;
                Ok(format!("{} started again", BACKENDS[*i].0))
            }
        }
    }
}

/// Backends that are back are found soon: a story has no time for gRPC's two minutes.
fn backoff() -> Backoff {
    let mut backoff = Backoff::default();
    (backoff.initial, backoff.max) = (Duration::from_millis(250), Duration::from_millis(500));
    backoff
}

async fn serve_page(address: Option<SocketAddr>, watch: Watch) -> Result<Admin, Failure> {
    let mut admin = Admin::builder().watch(watch);
    if let Some(address) = address {
        admin = admin.listen(address);
    }
    admin.start().await.map_err(|error| Failure::usage(error.to_string()))
}

/// Writes beside the file and puts it in place, as careful editors do: nobody reads half of it.
fn write_mesh(path: &Path, text: &str) -> Result<(), Failure> {
    let beside = path.with_extension("new");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// The acts, one after the other.
struct Story<'t> {
    stage: Stage,
    show: Show<'t>,
    terminal: &'t Terminal,
    /// What happened last.
    last: String,
}

/// What is seen while the story is told.
enum Show<'t> {
    Nothing,
    Lines,
    Picture(Screen<'t>),
}

impl Show<'_> {
    fn clear(&mut self) -> Result<(), Failure> {
        match self {
            Show::Picture(screen) => screen.clear(),
            Show::Nothing | Show::Lines => Ok(()),
        }
    }
}

impl Story<'_> {
    async fn tell(&mut self, takes: Duration) -> Result<Vec<ActReport>, Failure> {
        if let (Show::Lines, Some(page)) = (&self.show, self.page()) {
            self.terminal.print(format!("page: {page}\n"))?;
        }
        let mut reports = Vec::new();
        for (number, act) in ACTS.iter().enumerate() {
            self.stage.watch.mark(format!("act {}: {}", number + 1, act.title));
            if let Show::Lines = self.show {
                self.terminal.print(format!("act {}: {}: {}\n", number + 1, act.title, act.says))?;
            }
            reports.push(self.play(number, act, takes / ACTS.len() as u32).await?);
        }
        Ok(reports)
    }

    async fn play(&mut self, number: usize, act: &Act, takes: Duration) -> Result<ActReport, Failure> {
        let begins = Instant::now();
        let counts = begins + takes.mul_f64(SETTLES);
        let mut scenes = act.scenes.iter().peekable();
        let mut said = vec![Vec::new(); BACKENDS.len()];
        // What ends now began in the act before.
        self.stage.load.take();
        while begins.elapsed() < takes {
            let next = scenes.peek().map(|(at, _)| begins + takes.mul_f64(*at));
            if next.is_some_and(|at| at <= Instant::now())
                && let Some((_, scene)) = scenes.next()
            {
                self.last = self.stage.play(scene).await?;
                self.stage.watch.mark(self.last.clone());
                if let Show::Lines = self.show {
                    self.terminal.print(format!("  {}\n", self.last))?;
                }
                continue;
            }
            let until = next.unwrap_or(begins + takes).min(begins + takes);
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                state = self.stage.watch.changed() => {
                    if Instant::now() >= counts {
                        self.note(&state, &mut said);
                    }
                    self.draw(number, begins.elapsed().div_duration_f64(takes), &state)?;
                }
            }
        }
        let ended = self.stage.load.take();
        Ok(ActReport::new(number, act, counts.into_std(), &ended, &said))
    }

    /// Notes how busy the backends that are there say they are.
    fn note(&self, state: &State, said: &mut [Vec<f64>]) {
        let Some(channel) = state.channels.first() else { return };
        for (backend, said) in self.stage.backends.iter().zip(said) {
            let address = backend.address.to_string();
            let endpoint = channel.endpoints.iter().find(|endpoint| endpoint.address == address);
            let ready = endpoint.filter(|endpoint| endpoint.state == Connectivity::Ready);
            said.extend(ready.and_then(|endpoint| endpoint.utilization));
        }
    }

    fn draw(&mut self, act: usize, over: f64, state: &State) -> Result<(), Failure> {
        let page = self.page();
        let Show::Picture(screen) = &mut self.show else { return Ok(()) };
        let moment = Moment { act, over, last: &self.last, page: page.as_deref() };
        screen.draw(&moment, state, &self.stage.backends)
    }

    fn page(&self) -> Option<String> {
        self.stage.admin.as_ref().map(|admin| format!("http://{}/", admin.address()))
    }
}
