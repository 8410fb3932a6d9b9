//! `edf_weighted_round_robin`: picks ready endpoints in turn, in proportion to their EDS weights.
//!
//! Follows the EDF proposal for EDS endpoint weights (grpc/proposal#202), and A61 for endpoints with several
//! addresses. The schedule is earliest deadline first: an endpoint of weight `w` is due for the k-th time at
//! `k/w`. Ties are broken by list position. An endpoint without a weight has weight 1; equal weights give
//! round robin. Only endpoint weights count; the parent policy splits calls among localities.
//!
//! The schedule starts at a random position. A changed weight applies from the next pick; the other endpoints
//! keep their deadlines.

use crate::config::{ConfigError, ConfigFields};
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::weighted_scheduler::StaticWrr;
use crate::policy::{LbState, Policy};
use crate::{Cx, Endpoint, Endpoints};

/// Implementation of the `edf_weighted_round_robin` policy.
#[derive(Debug, Default)]
pub(crate) struct EdfWeightedRoundRobin {
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

/// Returns the EDS weight of an endpoint; 1 if it has none.
pub(super) fn eds_weight(endpoint: &Endpoint) -> u32 {
    endpoint.weight().unwrap_or(1)
}
