//! One pass of the core: its effects are applied, and a snapshot is published if calls should see a change.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use evenkeel_core::{ConnectivityState, Instant, LbEffect, PassResult, Status};

use crate::channel::driver::active::ActiveChannel;
use crate::channel::driver::connect_attempt::{ConnectAttempt, run_connect_attempt};
use crate::channel::driver::{ChannelDriver, DriverConfig};
use crate::channel::snapshot::{ChannelState, ConnectionMap};
use crate::clock;
use crate::credentials::ClusterTls;
use crate::transport::connect_queue::ConnectRequest;

/// Time for which calls fail after a policy panicked, before the policy runs again.
const PANIC_RESTART_DELAY: Duration = Duration::from_secs(1);

/// Minimum number of effects of a large pass. Its closes are deferred until its connection attempts have started.
const LARGE_CHANGE: usize = 512;

impl ChannelDriver {
    /// Runs a pass if one is due. Otherwise starts the connection attempts that the queue admits.
    pub(super) fn pass_if_due(&mut self) {
        let Some(active) = &mut self.active else { return };
        let now = clock::now();
        if active.pass_due_at(&self.published).is_some_and(|due| due <= now) {
            self.pass();
        } else {
            active.start_connects(now, &self.settings);
        }
    }

    /// Runs a pass, applies its effects and publishes a snapshot if calls should see a change.
    fn pass(&mut self) {
        let Some(active) = &mut self.active else { return };
        let began = clock::now();
        // The policy may be the application's own. If it panics, the channel restarts and its calls fail meanwhile.
        let Ok(pass) = catch_unwind(AssertUnwindSafe(|| active.core.reconcile(began))) else {
            tracing::error!("load balancing policy panicked in reconcile, policy tree rebuilt");
            let status = Status::new(evenkeel_core::Code::Internal, "a load balancing policy panicked");
            self.published.publish(ChannelState::Failed(status), ConnectionMap::default());
            let mut fresh = ActiveChannel::new(&self.settings, &self.calls);
            // The failure stays published until the first pass of the fresh policies.
            fresh.is_dirty = false;
            fresh.wake_at = Some(clock::now() + PANIC_RESTART_DELAY);
            self.active = Some(fresh);
            return;
        };
        let PassResult { effects, connectivity, picker, wake_at, released, .. } = pass;
        active.wake_at = wake_at;
        active.is_ready = connectivity == ConnectivityState::Ready;
        active.released_values.append(released);
        if let Some(picker) = picker {
            active.picker = Some(picker);
            active.is_dirty = true;
        }
        // Read again: a large pass takes long, and attempts are paced from its end.
        let now = clock::now();
        let is_large_change = effects.len() >= LARGE_CHANGE;
        for effect in effects {
            match effect {
                LbEffect::Close { id } if is_large_change => {
                    // Only the close is deferred: an attempt in progress would take a slot from the new endpoints.
                    active.connect_queue.cancel(id);
                    active.closes.push(id);
                }
                effect => active.apply_effect(effect, now, &self.settings),
            }
        }
        // After the effects, so that the snapshot contains no connection that was closed.
        if mem::take(&mut active.is_dirty) {
            self.published.publish(active.channel_state(), active.connections.clone());
        }
        // After the snapshot: a caller that sees READY must find its picker.
        let state = active.connectivity(connectivity);
        if let Some(before) = self.published.update_connectivity(state) {
            self.log.handle_connectivity(before, state, now);
        }
        active.resolver.handle_pass(&active.core);
        active.start_connects(now, &self.settings);
        active.pacer.finish_pass(began, clock::now());
    }
}

impl ActiveChannel {
    fn apply_effect(&mut self, effect: LbEffect, now: Instant, settings: &DriverConfig) {
        match effect {
            LbEffect::Connect { id, address, deadline } => {
                self.connect_queue.push(ConnectRequest { id, address, deadline });
                // The first attempts run while the remaining effects are applied.
                self.start_connects(now, settings);
            }
            LbEffect::Close { id } => self.close(id),
            LbEffect::WatchLoad { id, every } => self.load.watch(id, every, self.connections.get(id)),
            LbEffect::Reresolve => self.resolver.reresolve(),
            LbEffect::Measure(measurement) => self.metrics.record_measurement(&measurement),
            LbEffect::Warn(text) => tracing::warn!("{text}"),
            // A later version of the core may return effects that this driver does not know.
            other => tracing::warn!(effect = ?other, "unsupported effect ignored"),
        }
    }

    fn start_connects(&mut self, now: Instant, settings: &DriverConfig) {
        let calls_in_flight = self.calls_in_flight();
        while let Some(request) = self.connect_queue.next(now, calls_in_flight) {
            let id = request.id;
            // Without the subchannel, its cluster's security config is unknown, and the attempt must not run without
            // it.
            let Some(subchannel) = self.core.subchannel(id) else {
                self.connect_queue.cancel(id);
                continue;
            };
            let mut connecting = ConnectAttempt::new(settings, id, &self.reporter);
            if let (Some(means), Some(providers)) = (subchannel.transport(), &settings.providers) {
                connecting.cluster = Some(ClusterTls::new(means.clone(), providers.clone()));
            }
            let task = tokio::spawn(run_connect_attempt(request, connecting));
            self.connect_queue.handle_started(id, task.abort_handle(), now);
        }
    }
}
