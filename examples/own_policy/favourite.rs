//! A policy: a percentage of the calls to the first endpoint that can take them, the others to the rest at random.
//!
//! Its settings are `{"percent": 80}`. A pass looks at what is (endpoints, connections) and answers a state with a picker; the picker
//! is asked for every call, from any thread, and never waits. Policies with weights, load reports or children:
//! `crates/evenkeel-core/examples/custom_policy` and the policies of evenkeel-core itself.

use evenkeel_core::{
    CachedState, ConfigError, ConfigFields, ConnectMode, ConnectivityState, Cx, DescribeCx, Description,
    EndpointList, Endpoints, LbState, PickArgs, PickResult, Picker, Policy, Status, SubchannelId,
};

#[derive(Default)]
pub(crate) struct Favourite {
    /// A connection to every endpoint, kept for as long as the endpoint is there.
    fleet: EndpointList<()>,
    /// The last answer: while nothing changed for calls, the picker stays the same.
    shown: CachedState<PickerInputs>,
}

/// All that a picker depends on.
#[derive(PartialEq)]
struct PickerInputs {
    connectivity: ConnectivityState,
    ready: Vec<SubchannelId>,
    percent: u32,
    failure: Option<Status>,
}

impl Policy for Favourite {
    type Config = u32;

    fn parse(fields: &ConfigFields<'_>) -> Result<u32, ConfigError> {
        match fields.u32("percent")? {
            Some(percent) if percent <= 100 => Ok(percent),
            Some(percent) => Err(fields.error("percent", format!("expected 0 to 100, found {percent}"))),
            None => Err(fields.error("percent", "is required")),
        }
    }

    fn reconcile(&mut self, percent: &u32, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.fleet.reconcile(endpoints, ConnectMode::Eager, cx);
        let connectivity = self.fleet.connectivity();
        let seen = PickerInputs {
            connectivity,
            ready: self.fleet.ready().map(|(_, id)| id).collect(),
            percent: *percent,
            failure: (connectivity == ConnectivityState::TransientFailure).then(|| self.fleet.failure(cx)),
        };
        self.shown.get_or_build(seen, |seen| match &seen.failure {
            Some(failure) => LbState::failing(failure.clone()),
            None if seen.ready.is_empty() => LbState::connecting(),
            None => LbState::new(
                connectivity,
                FavouritePicker { ready: seen.ready.clone(), percent: seen.percent },
            ),
        })
    }

    fn describe(&self, look: &DescribeCx<'_>) -> Description {
        let mut description = Description::new();
        self.fleet.describe(&mut description, look, |_, _, _| {});
        description
    }
}

struct FavouritePicker {
    /// At least one.
    ready: Vec<SubchannelId>,
    percent: u32,
}

impl Picker for FavouritePicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        match self.ready.as_slice() {
            [] => PickResult::QUEUE,
            [only] => PickResult::complete(*only),
            [first, others @ ..] if call.random_below(100) >= u64::from(self.percent) => {
                let other = others.get(call.random_below(others.len() as u64) as usize);
                PickResult::complete(*other.unwrap_or(first))
            }
            [first, ..] => PickResult::complete(*first),
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::{Core, Endpoint, Instant, LbEffect, LbEvent, LbUpdate, Registry, Rng, RootPicker};

    use super::*;

    /// A core on virtual time with two endpoints that are connected, and its picker. No socket, no clock, no sleep.
    fn connected(config: &str) -> (Core, RootPicker) {
        let mut registry = Registry::standard();
        registry.register::<Favourite>("example.Favourite");
        let config = registry.parse_json(config).unwrap();
        let mut core = Core::builder(Rng::fixed(7)).build();
        let endpoints = ["10.0.0.1:443", "10.0.0.2:443"].map(Endpoint::at);
        core.update(LbUpdate::new(config, Endpoints::list(endpoints)));
        for effect in core.reconcile(Instant::ORIGIN).effects {
            if let LbEffect::Connect { id, .. } = effect {
                core.handle(LbEvent::Connected(id), Instant::ORIGIN);
            }
        }
        let picker = core.reconcile(Instant::ORIGIN).picker.unwrap();
        (core, picker)
    }

    #[test]
    fn the_favourite_gets_its_share() {
        let (core, picker) = connected(r#"[{"example.Favourite": {"percent": 80}}]"#);
        let favoured = (0..1_000).filter(|entropy| {
            let PickResult::Complete(id, _) = picker.pick(&PickArgs::new("/shop.Orders/Get", *entropy))
            else {
                return false;
            };
            core.subchannel(id).unwrap().address().to_string() == "10.0.0.1:443"
        });
        let favoured = favoured.count();
        assert!((750..850).contains(&favoured), "{favoured}");
    }

    /// What calls wait on is told of a change only if there is one.
    #[test]
    fn a_second_pass_changes_nothing() {
        let (mut core, _) = connected(r#"[{"example.Favourite": {"percent": 80}}]"#);
        let pass = core.reconcile(Instant::ORIGIN);
        assert!(pass.picker.is_none() && pass.effects.is_empty(), "{:?}", pass.effects);
    }

    #[test]
    fn bad_settings_are_refused_by_name() {
        let mut registry = Registry::standard();
        registry.register::<Favourite>("example.Favourite");
        let refused =
            registry.parse_json(r#"[{"example.Favourite": {"percent": 120}}]"#).unwrap_err().to_string();
        assert!(
            refused.contains("example.Favourite") && refused.contains("expected 0 to 100, found 120"),
            "{refused}"
        );
    }
}
