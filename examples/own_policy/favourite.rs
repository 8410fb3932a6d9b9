//! Policy that sends a percentage of calls to the first READY endpoint, and the others to random ones of the
//! rest.
//!
//! Its config is `{"percent": 80}`. A pass reads endpoints and subchannel states, and returns a state with a
//! picker. The picker runs for every call, on any thread, and never blocks. For weights, load reports or
//! child policies see `crates/evenkeel-core/examples/custom_policy` and the policies of evenkeel-core.

use evenkeel::lb::{
    CachedState, ConfigError, ConfigFields, ConnectMode, ConnectivityState, Cx, DescribeCx, Description,
    EndpointList, Endpoints, LbState, PickArgs, PickResult, Picker, Policy, Status, SubchannelId,
};

#[derive(Default)]
pub(crate) struct Favourite {
    /// Connections to all endpoints, kept while the endpoint is in the list.
    fleet: EndpointList<()>,
    /// State of the last pass. The picker is reused while its inputs are equal.
    shown: CachedState<PickerInputs>,
}

/// Inputs of the picker.
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
    /// READY subchannels; at least one.
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
    use evenkeel::lb::{Core, Endpoint, Instant, LbEffect, LbEvent, LbUpdate, Registry, Rng, RootPicker};

    use super::*;

    /// Returns a core on virtual time with two READY endpoints, and its picker. No socket, no clock, no
    /// sleep.
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

    /// A pass without changes returns no picker.
    #[test]
    fn a_second_pass_changes_nothing() {
        let (mut core, _) = connected(r#"[{"example.Favourite": {"percent": 80}}]"#);
        let pass = core.reconcile(Instant::ORIGIN);
        assert!(pass.picker.is_none() && pass.effects.is_empty(), "{:?}", pass.effects);
    }

    #[test]
    fn invalid_configs_are_rejected_with_the_field() {
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
