//! Deadline of a call.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Deadline of a call, with its timer once it is polled.
#[derive(Debug, Default)]
pub(crate) struct CallDeadline(Option<Pin<Box<Sleep>>>);

impl CallDeadline {
    pub(crate) fn at(at: Option<Instant>) -> CallDeadline {
        CallDeadline(at.map(|at| Box::pin(sleep_until(at))))
    }

    /// Returns the remaining time; `None` without a deadline.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.0.as_ref().map(|sleep| sleep.deadline().saturating_duration_since(Instant::now()))
    }

    /// Moves the deadline to an earlier time. Returns true if it changed.
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

    /// Ready when the deadline has passed.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    /// Returns the output of `work`, or `None` if the deadline passes first.
    pub(crate) async fn race<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        // A result that is ready wins over a deadline that has passed.
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_expired(cx).map(|()| None),
        })
        .await
    }
}

/// Returns the status of a call whose deadline passed.
pub(crate) fn deadline_exceeded(waiting_for: &str) -> tonic::Status {
    tonic::Status::deadline_exceeded(format!("deadline exceeded: {waiting_for}"))
}
