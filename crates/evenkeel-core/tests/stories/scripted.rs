//! Test policy with a configured state, whose picker fails every call with the configured name. It shows how
//! parent policies aggregate their children. Its description has the locality, the addresses and the number
//! of endpoint updates it received.

use evenkeel_core::{
    ConfigError, ConfigFields, ConnectivityState, Cx, DescribeCx, Description, Endpoints, LbState, PickArgs,
    PickResult, Picker, Policy, Registry, Status,
};
use serde_json::{Value, json};
use testkit::{CoreSim, Picked};

/// Policy registered as `scripted`.
#[derive(Default)]
pub(crate) struct Scripted {
    published: Option<(String, LbState)>,
    locality: Option<String>,
    endpoints: Option<Endpoints>,
    updates: usize,
}

impl Policy for Scripted {
    type Config = (String, ConnectivityState);

    fn parse(fields: &ConfigFields<'_>) -> Result<Self::Config, ConfigError> {
        let state = match fields.str("state")? {
            Some("READY") => ConnectivityState::Ready,
            Some("CONNECTING") => ConnectivityState::Connecting,
            Some("IDLE") => ConnectivityState::Idle,
            _ => ConnectivityState::TransientFailure,
        };
        Ok((fields.str("name")?.unwrap_or_default().to_owned(), state))
    }

    fn reconcile(&mut self, (name, state): &Self::Config, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.locality = cx.scope().locality().map(ToString::to_string);
        if self.endpoints.as_ref().is_none_or(|last| !last.is_same(endpoints)) {
            self.endpoints = Some(endpoints.clone());
            self.updates += 1;
        }
        match &self.published {
            Some((last, lb_state)) if last == name && lb_state.connectivity == *state => lb_state.clone(),
            _ => {
                let lb_state = LbState::new(*state, FailWithName(Status::unavailable(name.as_str())));
                self.published.insert((name.clone(), lb_state)).1.clone()
            }
        }
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        let endpoints = self.endpoints.iter().flat_map(Endpoints::iter);
        let addresses: Vec<String> = endpoints.map(|endpoint| endpoint.addresses()[0].to_string()).collect();
        Description::new()
            .detail("locality", self.locality.clone())
            .detail("addresses", addresses)
            .detail("updates", self.updates)
    }
}

struct FailWithName(Status);

impl Picker for FailWithName {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::Fail(self.0.clone())
    }
}

/// Returns a registry with all standard policies and this one.
pub(crate) fn registry() -> Registry {
    let mut registry = Registry::standard();
    registry.register::<Scripted>("scripted");
    registry
}

/// Returns a simulation whose registry has this policy.
pub(crate) fn sim(config: &Value, endpoints: Endpoints) -> CoreSim {
    let core = evenkeel_core::Core::builder(evenkeel_core::Rng::fixed(1)).build();
    CoreSim::with(core, registry(), config, endpoints)
}

/// Config of this policy with a name and a state.
pub(crate) fn scripted(name: &str, state: ConnectivityState) -> Value {
    json!([{"scripted": {"name": name, "state": state}}])
}

/// Returns the name of the child that failed the call, or the outcome such as `queue`.
pub(crate) fn picked_child(picked: &Picked) -> String {
    picked.status().map_or_else(|| picked.outcome(), |status| status.message().to_owned())
}
