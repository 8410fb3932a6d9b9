//! `round_robin`: every ready endpoint in turn, in the order of the list (A61 for endpoints with several addresses).
//!
//! The turn starts at a random endpoint, and goes on where it was when endpoints come and go.

use crate::config::{ConfigError, Fields};
use crate::describe::{Description, Look};
use crate::policy::rota::Rotation;
use crate::policy::{LbState, Policy};
use crate::{Cx, Endpoints};

/// The policy.
#[derive(Debug, Default)]
pub struct RoundRobin {
    rotation: Rotation,
}

impl Policy for RoundRobin {
    type Config = ();

    fn parse(_: &Fields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.rotation.reconcile(endpoints, |_| 1, cx)
    }

    fn describe(&self, look: &Look<'_>) -> Description {
        self.rotation.describe(look, |_, _| {})
    }
}
