//! Policy of a test, written as a closure.

use evenkeel_core::{
    CachedState, ConfigError, ConfigFields, Cx, DescribeCx, Description, Endpoints, LbState, Policy, Registry,
};

/// Policy without settings. Each run calls the closure, and keeps the state of the first run.
struct FnPolicy<F> {
    run: F,
    state: CachedState<()>,
}

impl<F> Policy for FnPolicy<F>
where
    F: FnMut(&Endpoints, &mut Cx<'_>) -> LbState + Send + 'static,
{
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let state = (self.run)(endpoints, cx);
        self.state.get_or_build((), |()| state)
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        Description::new()
    }
}

/// Registers a policy whose runs call this closure.
pub(crate) fn register<F>(registry: &mut Registry, name: &str, run: F)
where
    F: FnMut(&Endpoints, &mut Cx<'_>) -> LbState + Clone + Send + Sync + 'static,
{
    registry.register_with(name, move || FnPolicy { run: run.clone(), state: CachedState::default() });
}
