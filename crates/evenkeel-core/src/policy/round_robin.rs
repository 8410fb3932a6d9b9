//! `round_robin`: picks ready endpoints in turn, in list order (A61 for endpoints with several addresses).
//!
//! The first pick starts at a random endpoint. The sequence continues at its position when endpoints are
//! added or removed.

use crate::config::{ConfigError, ConfigFields};
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::weighted_scheduler::StaticWrr;
use crate::policy::{LbState, Policy};
use crate::{Cx, Endpoints};

/// Implementation of the `round_robin` policy.
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
