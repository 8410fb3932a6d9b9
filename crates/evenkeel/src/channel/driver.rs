//! The driver: one task per channel that runs the core's passes and performs their effects.
//!
//! The driver collects all pending events, runs one pass and publishes one snapshot, so a burst of events costs one
//! pass. It waits for nothing but the next event. Connections are tasks of their own that report here.
//!
//! A pass may open and close thousands of connections. The driver does this in batches, so that calls and events are
//! served in between. Passes, connection attempts and closing share the threads with calls, and each has a bounded
//! share of the time ([`PassPacer`](crate::channel::pass_pacer::PassPacer),
//! [`ConnectQueue`](crate::transport::connect_queue::ConnectQueue), [`CLOSE_PAUSE`]).
//!
//! After the idle timeout without calls, the driver drops policies, connections and subscriptions. The next call
//! starts them again (A62).
//!
//! | file | content |
//! |---|---|
//! | `driver.rs` | the event loop, activation and IDLE |
//! | `active.rs` | state of a channel that is not IDLE, its timers and its state for the next snapshot |
//! | `pass.rs` | a pass of the core, its effects, publishing |
//! | `connection_events.rs` | events that connections report |
//! | `connect_attempt.rs` | task of one connection, from the attempt to its end |
//! | `load_watches.rs` | streams of out-of-band load reports |
//! | `closing.rs` | deferred closes and drops |
//! | `channel_log.rs` | log events of the channel |

mod active;
mod channel_log;
mod closing;
mod connect_attempt;
mod connection_events;
mod load_watches;
mod pass;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use std::{future, mem};

use evenkeel_core::{Backoff, CallCounters, ConnectivityState, LbEvent};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::sleep_until;

use self::active::ActiveChannel;
use self::channel_log::ChannelLog;
use self::closing::CLOSE_PAUSE;
use self::connection_events::ConnectionEvent;
use crate::call::InFlightCalls;
use crate::channel::pass_pacer::PassUrgency;
use crate::channel::snapshot::{ChannelState, ConnectionMap, SnapshotPublisher};
use crate::channel::{ChannelCommand, DefaultHeaders};
use crate::clock;
use crate::credentials::{CertificateProviders, Credentials};
use crate::resolver::{ResolverConfig, ResolverUpdate};
use crate::telemetry::metrics::ChannelMetrics;
use crate::transport::Connector;
use crate::transport::connection::Http2Config;

/// Settings that are constant for the lifetime of a channel, except for the keepalive time, which may grow (A8).
pub(crate) struct DriverConfig {
    /// Target of the channel, for log events.
    pub(crate) target: Arc<str>,
    pub(crate) source: ResolverConfig,
    pub(crate) credentials: Credentials,
    /// Certificate providers for clusters with a security config; `None` if the credentials ignore such configs.
    pub(crate) providers: Option<Arc<CertificateProviders>>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) default_headers: DefaultHeaders,
    pub(crate) metrics: ChannelMetrics,
    /// Name that certificates must be valid for.
    pub(crate) host: Arc<str>,
    pub(crate) http2: Http2Config,
    pub(crate) backoff: Backoff,
    pub(crate) attempt_delay: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) counters: Arc<CallCounters>,
    /// Makes runs reproducible if set.
    pub(crate) seed: Option<u64>,
}

/// The driver of one channel.
pub(crate) struct ChannelDriver {
    settings: DriverConfig,
    published: Arc<SnapshotPublisher>,
    calls: Arc<InFlightCalls>,
    commands: mpsc::UnboundedReceiver<ChannelCommand>,
    active: Option<ActiveChannel>,
    log: ChannelLog,
}

/// Event that the driver waits for.
enum DriverEvent {
    ChannelCommand(Option<ChannelCommand>),
    Connection(ConnectionEvent),
    Resolver(ResolverUpdate),
    /// A call started to wait for the next snapshot.
    CallWaiting,
    Time,
}

impl ChannelDriver {
    pub(crate) fn new(
        settings: DriverConfig,
        published: Arc<SnapshotPublisher>,
        calls: Arc<InFlightCalls>,
        commands: mpsc::UnboundedReceiver<ChannelCommand>,
    ) -> ChannelDriver {
        let log = ChannelLog::new(settings.target.clone());
        ChannelDriver { settings, published, calls, commands, active: None, log }
    }

    /// Runs until the channel is closed or its last handle is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let Some(event) = self.next().await else {
                self.release_some();
                continue;
            };
            if !self.handle_event(event) {
                return;
            }
            // All pending events share one pass.
            while let Some(event) = self.try_next() {
                if !self.handle_event(event) {
                    return;
                }
            }
            self.pass_if_due();
            if let Some(progress) = self.active.as_ref().and_then(ActiveChannel::connect_progress) {
                self.published.update_connecting(progress);
            }
        }
    }

    /// Returns the next event. Returns `None` after yielding once while deferred work is left and no event is
    /// pending.
    async fn next(&mut self) -> Option<DriverEvent> {
        // Every future below is cancel-safe: `select!` drops the losers without losing an event.
        let wake_at = self.active.as_ref().map(|active| active.wake_at(&self.published));
        // Connection attempts come before deferred drops. A pause of the closes ends with the timer, not with a
        // yield.
        let is_busy = self.active.as_ref().is_some_and(|active| {
            active.has_deferred_work() && active.connect_queue.due().is_none() && active.close_at.is_none()
        });
        let is_deferring = self.active.as_ref().is_some_and(|active| active.pacer.is_deferring());
        // Borrowed apart, since the futures below need different parts of `active`.
        let (reports, resolver) = match &mut self.active {
            Some(active) => (Some(&mut active.reports), Some(&mut active.resolver)),
            None => (None, None),
        };
        let report = async {
            match reports {
                Some(reports) => reports.recv().await,
                None => future::pending().await,
            }
        };
        let resolver = async {
            match resolver {
                Some(resolver) => resolver.next().await,
                None => future::pending().await,
            }
        };
        let due = async {
            match wake_at {
                Some(at) => sleep_until(clock::sleep_until(at)).await,
                None => future::pending().await,
            }
        };
        Some(tokio::select! {
            command = self.commands.recv() => DriverEvent::ChannelCommand(command),
            // `ActiveChannel` holds a sender, so `recv` never returns `None` here.
            Some(report) = report => DriverEvent::Connection(report),
            update = resolver => DriverEvent::Resolver(update),
            () = self.published.wait_for_waiter(), if is_deferring => DriverEvent::CallWaiting,
            () = due => DriverEvent::Time,
            // Pending once, so an event that is ready comes first.
            () = yield_now(), if is_busy => return None,
        })
    }

    /// Returns an event that is pending already, without waiting.
    fn try_next(&mut self) -> Option<DriverEvent> {
        if let Some(report) = self.active.as_mut().and_then(|active| active.reports.try_recv().ok()) {
            return Some(DriverEvent::Connection(report));
        }
        self.commands.try_recv().ok().map(|command| DriverEvent::ChannelCommand(Some(command)))
    }

    /// Applies an event. Returns false if the channel is closed.
    fn handle_event(&mut self, event: DriverEvent) -> bool {
        match event {
            DriverEvent::ChannelCommand(None | Some(ChannelCommand::Close)) => return false,
            DriverEvent::ChannelCommand(Some(ChannelCommand::Describe(answer))) => {
                let describe = || self.active.as_ref().and_then(|active| active.core.describe());
                // The policy may be the application's own. If it panics, there is no description.
                let tree = catch_unwind(AssertUnwindSafe(describe)).unwrap_or_else(|_| {
                    tracing::error!("load balancing policy panicked in describe");
                    None
                });
                // The requester may have dropped its receiver.
                let _ = answer.send(tree);
            }
            DriverEvent::ChannelCommand(Some(ChannelCommand::Wake)) => {
                self.activate().pacer.record(PassUrgency::Immediate);
            }
            DriverEvent::ChannelCommand(Some(ChannelCommand::ExitIdle)) => {
                let active = self.activate();
                active.core.handle(LbEvent::ExitIdle, clock::now());
                active.pacer.record(PassUrgency::Immediate);
            }
            DriverEvent::ChannelCommand(Some(ChannelCommand::Connect(id))) => {
                if let Some(active) = &mut self.active {
                    active.core.handle(LbEvent::Connect(id), clock::now());
                    active.pacer.record(PassUrgency::Prompt);
                }
            }
            DriverEvent::Connection(report) => {
                if let Some(active) = &mut self.active {
                    let too_many_pings = active.handle_event(report);
                    if too_many_pings && let Some(keepalive) = &mut self.settings.http2.keepalive {
                        // Applies to later connections only: each attempt copies the settings (A8).
                        keepalive.time = keepalive.time.saturating_mul(2);
                        tracing::warn!(time = ?keepalive.time, "received GOAWAY with too_many_pings, keepalive time doubled");
                    }
                }
            }
            DriverEvent::Resolver(update) => {
                if let Some(active) = &mut self.active {
                    active.handle_resolver_update(update, &mut self.log);
                    active.pacer.record(PassUrgency::Immediate);
                }
            }
            // Nothing to do: `pass_due_at` takes waiting calls into account.
            DriverEvent::CallWaiting => {}
            DriverEvent::Time => {
                // Continue work that is in progress before dropping what has been closed.
                let now = clock::now();
                let has_pending_work = |active: &ActiveChannel| {
                    active.wake_at.is_some_and(|at| at <= now)
                        || active.connect_queue.is_paced()
                        || active.close_at.is_some_and(|at| at > now)
                };
                if !self.active.as_ref().is_some_and(has_pending_work) {
                    self.release_some();
                } else if let Some(active) = &mut self.active {
                    active.close_at =
                        active.close_at.map(|at| if at <= now { now + CLOSE_PAUSE } else { at });
                }
                self.enter_idle_if_due();
            }
        }
        true
    }

    /// Starts the policies and the resolver, unless they run already.
    fn activate(&mut self) -> &mut ActiveChannel {
        self.active.get_or_insert_with(|| ActiveChannel::new(&self.settings, &self.calls))
    }

    /// Enters IDLE if there were no calls for the idle timeout.
    fn enter_idle_if_due(&mut self) {
        let (Some(active), Some(timeout)) = (&mut self.active, self.settings.idle_timeout) else { return };
        if clock::now() < active.idle_at {
            return;
        }
        let calls_started = self.calls.started();
        if self.calls.in_flight() > 0
            // A call may have started and ended since the last check. Only the number of started calls shows it.
            || mem::replace(&mut active.calls_started, calls_started) != calls_started
        {
            active.idle_at = clock::now() + timeout;
            return;
        }
        tracing::info!(idle_timeout = ?timeout, "channel entering IDLE");
        self.active = None;
        self.published.publish(ChannelState::Idle, ConnectionMap::default());
        self.published.update_connectivity(ConnectivityState::Idle);
        // A call may have started since the check above. It then uses the earlier snapshot or sees `Idle` and wakes
        // the channel.
    }
}

impl Drop for ChannelDriver {
    /// Also runs when the runtime shuts down: calls must not wait for a driver that no longer exists.
    fn drop(&mut self) {
        // In this order: `Channel::ready` wakes on the connectivity and then checks for the closed state.
        self.published.publish(ChannelState::Closed, ConnectionMap::default());
        // Not `update_connectivity`: waiters must wake even if the state was IDLE before.
        self.published.connectivity().send_replace(ConnectivityState::Idle);
    }
}
