//! `test.RpcBehaviorLoadBalancer`: round_robin that adds the header `rpc-behavior` to calls. With it a driver
//! verifies that the control plane selected a custom policy (A52).
//!
//! Its config is `{"rpcBehavior": "error-code-15"}`.

use std::sync::Arc;

use evenkeel_core::policy::RoundRobin;
use evenkeel_core::{
    CachedState, ChildPolicy, ConfigError, ConfigFields, Cx, DescribeCx, Description, Endpoints, LbConfig,
    LbState, PickArgs, PickHeaders, PickResult, Picker, Policy,
};

/// Policy name in configs.
pub(crate) const NAME: &str = "test.RpcBehaviorLoadBalancer";

/// Header that the policy adds.
const HEADER: &str = "rpc-behavior";

/// The policy and its round_robin child.
#[derive(Default)]
pub(crate) struct RpcBehavior {
    child: ChildPolicy,
    shown: CachedState<PickerInputs>,
}

/// Parsed config of the policy.
pub(crate) struct RpcBehaviorConfig {
    headers: PickHeaders,
    round_robin: LbConfig,
}

/// Inputs of the picker.
struct PickerInputs {
    child: LbState,
    headers: PickHeaders,
}

impl Policy for RpcBehavior {
    type Config = RpcBehaviorConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<RpcBehaviorConfig, ConfigError> {
        const FIELD: &str = "rpcBehavior";
        let behavior =
            fields.str(FIELD)?.ok_or_else(|| fields.error(FIELD, "is required: the header's value"))?;
        let headers =
            PickHeaders::new([(HEADER, behavior)]).map_err(|problem| fields.error(FIELD, problem))?;
        Ok(RpcBehaviorConfig { headers, round_robin: LbConfig::new::<RoundRobin>("round_robin", ()) })
    }

    fn reconcile(&mut self, config: &RpcBehaviorConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let child = self.child.reconcile(&config.round_robin, endpoints, cx);
        self.shown.get_or_build(PickerInputs { child, headers: config.headers.clone() }, |seen| {
            let picker =
                PickHeadersPicker { child: seen.child.picker.clone(), headers: seen.headers.clone() };
            LbState::new(seen.child.connectivity, picker)
        })
    }

    fn describe(&self, look: &DescribeCx<'_>) -> Description {
        Description::new().child("round_robin", self.child.describe(look))
    }
}

impl PartialEq for PickerInputs {
    fn eq(&self, other: &PickerInputs) -> bool {
        self.child.is_same(&other.child) && self.headers == other.headers
    }
}

struct PickHeadersPicker {
    child: Arc<dyn Picker>,
    headers: PickHeaders,
}

impl Picker for PickHeadersPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        match self.child.pick(call) {
            PickResult::Complete(id, mut trackers) => {
                trackers.add_headers(&self.headers);
                PickResult::Complete(id, trackers)
            }
            other => other,
        }
    }
}
