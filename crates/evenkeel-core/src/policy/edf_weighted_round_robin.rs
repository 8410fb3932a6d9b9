//! `edf_weighted_round_robin`: every ready endpoint in turn, as often as the control plane's weight says (the EDF
//! proposal for EDS endpoint weights, grpc/proposal#202; A61 for endpoints with several addresses).
//!
//! The order is the earliest deadline first: with weight `w` an endpoint's k-th turn is due at `k/w`, ties go by
//! position in the list. An endpoint without a weight has weight 1; equal weights are round robin. Only weights inside
//! the list count: how calls are split among localities is decided above.
//!
//! The order starts at a random place. A new weight acts on the next pick, and the others keep their turns.

use crate::config::{ConfigError, ConfigFields};
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::weighted_scheduler::StaticWrr;
use crate::policy::{LbState, Policy};
use crate::{Cx, Endpoint, Endpoints};

/// The policy.
#[derive(Debug, Default)]
pub struct EdfWeightedRoundRobin {
    wrr: StaticWrr,
}

impl Policy for EdfWeightedRoundRobin {
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.wrr.reconcile(endpoints, eds_weight, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        self.wrr.describe(cx, |endpoint, row| row.weight = Some(f64::from(eds_weight(endpoint))))
    }
}

/// The weight that the control plane gave an endpoint; without one it counts as 1.
pub(super) fn eds_weight(endpoint: &Endpoint) -> u32 {
    endpoint.weight().unwrap_or(1)
}
