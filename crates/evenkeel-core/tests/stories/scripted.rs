//! A policy that does what its config says: its state is given, and every call that is picked fails with its name. Shows
//! what the policies above make of their children. Its description says what it was given, and how many times other
//! endpoints came.

use evenkeel_core::{
    ConfigError, ConfigFields, ConnectivityState, Cx, DescribeCx, Description, Endpoints, LbState, PickArgs,
    PickResult, Picker, Policy, Registry, Status,
};
use serde_json::{Value, json};
use testkit::{CoreSim, Picked};

/// The policy; registered as `scripted`.
#[derive(Default)]
pub(crate) struct Scripted {
    shown: Option<(String, LbState)>,
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
        match &self.shown {
            Some((last, shown)) if last == name && shown.connectivity == *state => shown.clone(),
            _ => {
                let shown = LbState::new(*state, Saying(Status::unavailable(name.as_str())));
                self.shown.insert((name.clone(), shown)).1.clone()
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

struct Saying(Status);

impl Picker for Saying {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        PickResult::Fail(self.0.clone())
    }
}

/// All policies, and this one.
pub(crate) fn registry() -> Registry {
    let mut registry = Registry::standard();
    registry.register::<Scripted>("scripted");
    registry
}

/// A world with this one among its policies.
pub(crate) fn sim(config: &Value, endpoints: Endpoints) -> CoreSim {
    let core = evenkeel_core::Core::builder(evenkeel_core::Rng::fixed(1)).build();
    CoreSim::with(core, registry(), config, endpoints)
}

/// The policy in a state.
pub(crate) fn scripted(name: &str, state: ConnectivityState) -> Value {
    json!([{"scripted": {"name": name, "state": state}}])
}

/// Which child answered a call: its name, or `queue`.
pub(crate) fn said(picked: &Picked) -> String {
    picked.status().map_or_else(|| picked.outcome(), |status| status.message().to_owned())
}
