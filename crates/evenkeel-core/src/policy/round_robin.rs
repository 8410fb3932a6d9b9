//! `round_robin`: every ready endpoint in turn, in the order of the list (A61 for endpoints with several addresses).
//!
//! The turn starts at a random endpoint, and goes on where it was when endpoints come and go.

use crate::config::{ConfigError, ConfigFields};
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::weighted_scheduler::StaticWrr;
use crate::policy::{LbState, Policy};
use crate::{Cx, Endpoints};

/// The policy.
#[derive(Debug, Default)]
pub struct RoundRobin {
    wrr: StaticWrr,
}

impl Policy for RoundRobin {
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.wrr.reconcile(endpoints, |_| 1, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        self.wrr.describe(cx, |_, _| {})
    }
}
