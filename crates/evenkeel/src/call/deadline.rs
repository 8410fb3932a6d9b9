//! Deadline of a call.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Until when a call may take.
#[derive(Debug, Default)]
pub(crate) struct CallDeadline(Option<Pin<Box<Sleep>>>);

impl CallDeadline {
    pub(crate) fn at(at: Option<Instant>) -> CallDeadline {
        CallDeadline(at.map(|at| Box::pin(sleep_until(at))))
    }

    /// How much time is left; `None` is without end.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.0.as_ref().map(|sleep| sleep.deadline().saturating_duration_since(Instant::now()))
    }

    /// Moves the deadline up, never back; answers whether it moved.
    pub(crate) fn tighten(&mut self, at: Instant) -> bool {
        match &mut self.0 {
            Some(sleep) if sleep.deadline() <= at => return false,
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.0 = Some(Box::pin(sleep_until(at))),
        }
        true
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.remaining().is_some_and(|left| left.is_zero())
    }

    /// Ready when it has passed.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    /// What `work` comes to, or `None` if the deadline passes before.
    pub(crate) async fn race<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_expired(cx).map(|()| None),
        })
        .await
    }
}

/// What a call says whose time is over.
pub(crate) fn deadline_exceeded(waiting_for: &str) -> tonic::Status {
    tonic::Status::deadline_exceeded(format!("the deadline passed: {waiting_for}"))
}
