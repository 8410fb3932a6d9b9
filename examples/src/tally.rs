//! Calls counted by serving backend.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel::Channel;
use tokio::task::JoinSet;
use tokio::time::interval;
use tonic::Status;

use crate::shop::orders_client::OrdersClient;
use crate::shop::{GetRequest, Order};

/// Number of calls by server, and of failed calls. It prints as `a 30 (75 %), b 10 (25 %); failed 0`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of successful calls by server name.
    pub answered: BTreeMap<String, usize>,
    /// Number of failed calls.
    pub failed: usize,
}

impl Tally {
    /// Makes sequential calls and counts them.
    pub async fn of(channel: &Channel, calls: usize) -> Tally {
        let mut orders = OrdersClient::new(channel.clone());
        let mut tally = Tally::default();
        for order in 0..calls {
            tally.add(orders.get(GetRequest { id: order.to_string() }).await);
        }
        tally
    }

    /// Counts the result of one call.
    pub fn add(&mut self, answer: Result<tonic::Response<Order>, Status>) {
        match answer {
            Ok(order) => *self.answered.entry(order.into_inner().backend).or_default() += 1,
            Err(_) => self.failed += 1,
        }
    }

    /// Returns the number of calls that this server served.
    pub fn by(&self, server: &str) -> usize {
        self.answered.get(server).copied().unwrap_or(0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.answered.values().sum::<usize>() + self.failed;
        let servers = self.answered.iter().map(|(name, calls)| {
            let share = *calls as f64 / all as f64 * 100.0;
            format!("{name} {calls} ({share:.0} %)")
        });
        let servers = servers.collect::<Vec<_>>().join(", ");
        write!(f, "{}; failed {}", if servers.is_empty() { "none" } else { &servers }, self.failed)
    }
}

/// Open-loop load that runs until dropped or stopped.
#[derive(Debug)]
pub struct Load {
    ended: Arc<Mutex<Tally>>,
    stop: tokio::sync::watch::Sender<()>,
    calling: tokio::task::JoinHandle<()>,
}

impl Load {
    /// Starts calls at a steady rate, independent of their outcome.
    pub fn start(channel: Channel, per_second: u32) -> Load {
        let ended = Arc::<Mutex<Tally>>::default();
        let (stop, stopped) = tokio::sync::watch::channel(());
        let calling = tokio::spawn(call_steadily(channel, per_second, ended.clone(), stopped));
        Load { ended, stop, calling }
    }

    /// Returns the calls that ended since the previous `take`.
    pub fn take(&self) -> Tally {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the calls that end within this time.
    pub async fn over(&self, time: Duration) -> Tally {
        self.take();
        tokio::time::sleep(time).await;
        self.take()
    }

    /// Starts no further call, waits for active ones, and returns the calls since the last [`Load::take`].
    pub async fn stop(self) -> Tally {
        let Load { ended, stop, calling } = self;
        drop(stop);
        // An error means that the task has ended too.
        let _ = calling.await;
        std::mem::take(&mut *ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn call_steadily(
    channel: Channel,
    per_second: u32,
    ended: Arc<Mutex<Tally>>,
    mut stopped: tokio::sync::watch::Receiver<()>,
) {
    let mut ticks = interval(Duration::from_secs(1) / per_second);
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let (mut orders, ended) = (OrdersClient::new(channel.clone()), ended.clone());
                calls.spawn(async move {
                    let answer = orders.get(GetRequest::default()).await;
                    ended.lock().unwrap_or_else(PoisonError::into_inner).add(answer);
                });
            }
            Some(_) = calls.join_next() => {}
            _ = stopped.changed() => break,
        }
    }
    while calls.join_next().await.is_some() {}
}
