//! The process of the client: a channel through xDS, calls on it, and answers to whoever measures it.
//!
//! Its first line of stdout says when its first call was answered. Then a command is a line of stdin and its answer a line
//! of stdout; times are nanoseconds of the machine's clock.
//!
//! | command | answer |
//! |---|---|
//! | `connected COUNT` | when so many endpoints of the generation that is watched were seen to be connected |
//! | `watch GENERATION` | `watching`: from here on, endpoints of this generation are the new ones |
//! | `swapped` | when the first call on a new endpoint was answered, and when the channel was READY again, 0 if it always was |
//! | `since` | calls that began when the new ones were in force and went to old ones, and calls that failed |
//! | `call COUNT` | makes so many calls, one after the other: how many failed |
//! | `cpu` | the process's processor time, of all threads, the kernel's included |

use std::io::BufRead as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel::{Bootstrap, Channel, Connectivity, Description, Variant, XdsClient};
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio::sync::{Notify, mpsc};

use super::bed::{FIRST, LIMIT, generation};
use super::{nanos, now};
use crate::Error;
use crate::common::allocator::Totals;

/// Calls at a time when they go as fast as they can.
const CONCURRENCY: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Args {
    control: SocketAddr,
    #[arg(long)]
    delta: bool,
    /// Calls: none after the first, one each so many milliseconds, or (0) as fast as they can.
    #[arg(long)]
    every: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result<(), Error> {
    Totals::stop();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<(), Error> {
    let channel = channel(args)?;
    let first = EchoClient::new(channel.clone()).unary(EchoRequest::default()).await.map(|_| now());
    println!("{}", first?);
    let shared = Arc::new(Shared { channel, seen: Mutex::default(), changed: Notify::new() });
    match args.every {
        None => {}
        Some(0) => {
            for _ in 0..CONCURRENCY {
                tokio::spawn(calls_without_end(shared.clone()));
            }
        }
        Some(every) => drop(tokio::spawn(calls_each(shared.clone(), Duration::from_millis(every)))),
    }
    let mut commands = commands();
    while let Some(command) = commands.recv().await {
        println!("{}", shared.answer(&command?).await?);
    }
    Ok(())
}

fn channel(args: &Args) -> Result<Channel, Error> {
    let bootstrap = format!(
        r#"{{"xds_servers": [{{"server_uri": "{}", "channel_creds": [{{"type": "insecure"}}]}}], "node": {{"id": "bench"}}}}"#,
        args.control
    );
    let variant = if args.delta { Variant::Delta } else { Variant::StateOfTheWorld };
    let client = XdsClient::builder(Bootstrap::from_json(&bootstrap)?).variant(variant).build();
    Ok(Channel::builder("xds:///bench").xds_client(client).build()?)
}

/// The lines of stdin; it is read on a thread of its own, which ends with it.
fn commands() -> mpsc::UnboundedReceiver<std::io::Result<String>> {
    let (sender, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    commands
}

struct Shared {
    channel: Channel,
    seen: Mutex<Seen>,
    changed: Notify,
}

/// What is known of calls since `watch`.
struct Seen {
    generation: u8,
    /// When the channel was READY again.
    ready: Option<u64>,
    /// When the first call on a new endpoint was answered.
    first: Option<u64>,
    late: u32,
    failed: u32,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { generation: FIRST, ready: None, first: None, late: 0, failed: 0 }
    }
}

impl Seen {
    /// A call ended at an endpoint of this generation.
    fn add(&mut self, began: u64, ended: u64, generation: u8) {
        if generation == self.generation {
            self.first.get_or_insert(ended);
        } else if self.ready.or(self.first).is_some_and(|in_force| began > in_force) {
            self.late += 1;
        }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while it holds it.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self: &Arc<Self>, command: &str) -> Result<String, Error> {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["connected", count] => Ok(self.connected(count.parse()?).await?.to_string()),
            ["watch", generation] => {
                self.watch(generation.parse()?);
                Ok("watching".to_owned())
            }
            ["swapped"] => {
                let [first, ready] = tokio::time::timeout(LIMIT, self.swapped())
                    .await
                    .map_err(|_| "no call came to a new endpoint")?;
                Ok(format!("{first} {ready}"))
            }
            ["since"] => {
                let seen = self.seen();
                Ok(format!("{} {}", seen.late, seen.failed))
            }
            ["call", count] => {
                let before = self.seen().failed;
                for _ in 0..count.parse::<u32>()? {
                    self.call().await;
                }
                Ok((self.seen().failed - before).to_string())
            }
            ["cpu"] => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
                Ok(nanos(time).to_string())
            }
            _ => Err(format!("unknown command {command:?}").into()),
        }
    }

    async fn connected(&self, count: usize) -> Result<u64, Error> {
        let generation = self.seen().generation;
        let limit = now() + LIMIT.as_nanos() as u64;
        loop {
            let ready = self.channel.tree().await.map_or(0, |tree| ready(&tree, generation));
            let now = now();
            if ready >= count {
                return Ok(now);
            }
            if now > limit {
                return Err(format!("only {ready} of {count} endpoints are connected").into());
            }
            // A look at the tree is work for the channel.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn watch(self: &Arc<Self>, generation: u8) {
        *self.seen() = Seen { generation, ..Seen::default() };
        let mut connectivity = self.channel.watch_connectivity();
        connectivity.mark_unchanged();
        let shared = self.clone();
        tokio::spawn(async move {
            // CONNECTING may be too short to be seen.
            while connectivity.changed().await.is_ok() {
                if *connectivity.borrow() == Connectivity::Ready {
                    let mut seen = shared.seen();
                    if seen.generation == generation {
                        seen.ready = Some(now());
                    }
                    return;
                }
            }
        });
    }

    async fn swapped(&self) -> [u64; 2] {
        loop {
            {
                let seen = self.seen();
                if let Some(first) = seen.first {
                    return [first, seen.ready.unwrap_or(0)];
                }
            }
            self.changed.notified().await;
        }
    }

    async fn call(&self) {
        let began = now();
        let answer = EchoClient::new(self.channel.clone()).unary(EchoRequest::default()).await;
        let backend = answer.ok().and_then(|answer| answer.into_inner().backend.parse::<IpAddr>().ok());
        let ended = now();
        match backend.and_then(generation) {
            Some(generation) => self.seen().add(began, ended, generation),
            None => self.seen().failed += 1,
        }
        self.changed.notify_one();
    }
}

async fn calls_without_end(shared: Arc<Shared>) {
    loop {
        shared.call().await;
    }
}

/// Whether or not those before are answered.
async fn calls_each(shared: Arc<Shared>, every: Duration) {
    let mut turns = tokio::time::interval(every);
    loop {
        turns.tick().await;
        let shared = shared.clone();
        tokio::spawn(async move { shared.call().await });
    }
}

/// How many endpoints of a generation are connected.
fn ready(tree: &Description, wanted: u8) -> usize {
    let is_wanted = |address: &String| {
        address.parse().ok().and_then(|address: SocketAddr| generation(address.ip())) == Some(wanted)
    };
    let own = tree
        .endpoints
        .iter()
        .filter(|row| row.state == Connectivity::Ready && row.addresses.iter().any(is_wanted))
        .count();
    own + tree.children.iter().map(|(_, child)| ready(child, wanted)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_begin_when_new_endpoints_are_in_force_and_go_to_old_ones_are_late() {
        let mut seen = Seen { generation: 2, ..Seen::default() };
        seen.add(10, 20, 1);
        assert_eq!((seen.first, seen.late), (None, 0));
        seen.add(30, 40, 2);
        seen.add(35, 45, 1);
        assert_eq!((seen.first, seen.late), (Some(40), 0));
        seen.add(41, 50, 1);
        assert_eq!(seen.late, 1);
        seen.ready = Some(33);
        seen.add(34, 60, 1);
        seen.add(34, 60, 2);
        assert_eq!((seen.first, seen.late), (Some(40), 2));
    }
}
