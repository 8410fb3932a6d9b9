//! Application code inside the channel: policies and connectors that fail, misbehave and panic.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evenkeel::{Address, Channel, Connector, Io, Registry};
use evenkeel_core::{
    CachedState, CallOutcome, CallTracker, CallTrackers, Code as CoreCode, ConfigError, ConfigFields,
    ConnectMode, ConnectivityState, Cx, DescribeCx, Description, EndpointList, Endpoints, LbState, PickArgs,
    PickResult, Picker, Policy, Status, SubchannelId,
};
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use tokio::net::TcpStream;
use tonic::Code;

use super::{panicked, policy, request, to, within};

/// Switches for the faults of the policy.
#[derive(Default)]
pub(super) struct PanicSwitches {
    pass: AtomicBool,
    describe: AtomicBool,
    pick: AtomicBool,
    finish: AtomicBool,
    /// Status code with which picks fail, unless it is OK.
    code: AtomicUsize,
    picks: AtomicUsize,
    ends: AtomicUsize,
}

impl PanicSwitches {
    /// Makes picks fail: 5 with a reserved status, 7 as drops, 0 not at all.
    pub(super) fn fail_picks(&self, code: usize) {
        self.code.store(code, Ordering::SeqCst);
    }

    /// Asserts that every tracker of every pick was finished once.
    fn all_were_told(&self) {
        assert_eq!(self.ends.load(Ordering::SeqCst), TRACKERS * self.picks.load(Ordering::SeqCst));
    }
}

fn panic_if(wrong: &AtomicBool, place: &str) {
    assert!(!wrong.load(Ordering::SeqCst), "{place} goes wrong, on purpose");
}

/// Custom policy: picks the first READY endpoint.
struct PanickingPolicy {
    wrongs: Arc<PanicSwitches>,
    fleet: EndpointList<()>,
    shown: CachedState<Option<SubchannelId>>,
}

impl Policy for PanickingPolicy {
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        panic_if(&self.wrongs.pass, "a pass");
        self.fleet.reconcile(endpoints, ConnectMode::Eager, cx);
        let ready = self.fleet.ready().map(|(_, id)| id).next();
        let wrongs = &self.wrongs;
        self.shown.get_or_build(ready, |ready| match ready {
            None => LbState::connecting(),
            Some(id) => {
                LbState::new(ConnectivityState::Ready, PanickingPicker { wrongs: wrongs.clone(), id: *id })
            }
        })
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        panic_if(&self.wrongs.describe, "a description");
        Description::new()
    }
}

/// Several trackers per pick: if one panics, the others must still be finished.
const TRACKERS: usize = 5;

struct PanickingPicker {
    wrongs: Arc<PanicSwitches>,
    id: SubchannelId,
}

impl Picker for PanickingPicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        panic_if(&self.wrongs.pick, "a pick");
        match self.wrongs.code.load(Ordering::SeqCst) {
            0 => {
                self.wrongs.picks.fetch_add(1, Ordering::SeqCst);
                let mut trackers = CallTrackers::none();
                for _ in 0..TRACKERS {
                    trackers.push(Arc::new(PanickingTracker(self.wrongs.clone())));
                }
                PickResult::Complete(self.id, trackers)
            }
            5 => PickResult::Fail(Status::new(CoreCode::NotFound, "no such shard")),
            7 => PickResult::Drop(Status::new(CoreCode::PermissionDenied, "not for you")),
            code => panic!("no code for {code}"),
        }
    }
}

struct PanickingTracker(Arc<PanicSwitches>);

impl CallTracker for PanickingTracker {
    fn finished(&self, _: &CallOutcome<'_>) {
        self.0.ends.fetch_add(1, Ordering::SeqCst);
        panic_if(&self.0.finish, "a tracker");
    }
}

pub(super) fn channel(backend: &Backend) -> (Channel, Arc<PanicSwitches>) {
    let wrongs = Arc::<PanicSwitches>::default();
    let mut registry = Registry::standard();
    let given = wrongs.clone();
    registry.register_with("own", move || PanickingPolicy {
        wrongs: given.clone(),
        fleet: EndpointList::default(),
        shown: CachedState::default(),
    });
    (to([backend]).registry(registry).service_config(policy("own")).build().unwrap(), wrongs)
}

/// LBX-8: status codes that are reserved for servers become INTERNAL, with the original in the message.
/// LBX-10: drops also apply to wait-for-ready calls.
#[tokio::test]
async fn policies_do_not_speak_for_servers() {
    let backend = Backend::start().await;
    let (channel, wrongs) = channel(&backend);
    let mut client = EchoClient::new(channel);
    within(client.unary(request(""))).await.unwrap();
    wrongs.code.store(5, Ordering::SeqCst);
    let status = within(client.unary(request(""))).await.unwrap_err();
    let text = "the load balancing policy returned the reserved status NotFound: no such shard";
    assert_eq!((status.code(), status.message()), (Code::Internal, text));
    wrongs.code.store(7, Ordering::SeqCst);
    let mut patient = tonic::Request::new(request(""));
    patient.extensions_mut().insert(evenkeel::WaitForReady(true));
    let status = within(client.unary(patient)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not for you"));
}

/// fault 75: a panic in a policy fails its call with INTERNAL, or has no effect once the call has completed,
/// and the channel survives. A thousand panics in picks, trackers and descriptions, and a few in passes.
#[tokio::test]
async fn policies_may_panic() {
    panicked::note();
    let backend = Backend::start().await;
    let (channel, wrongs) = channel(&backend);
    let mut client = EchoClient::new(channel.clone());
    let set = |wrong: &AtomicBool, on| wrong.store(on, Ordering::SeqCst);

    within(client.unary(request(""))).await.unwrap();
    set(&wrongs.pick, true);
    for _ in 0..1000 {
        let status = within(client.unary(request(""))).await.unwrap_err();
        let text = "the load balancing policy panicked in pick";
        assert_eq!((status.code(), status.message()), (Code::Internal, text));
    }
    set(&wrongs.pick, false);
    within(client.unary(request(""))).await.unwrap();

    // The response has arrived. A panic while finishing a tracker must not fail the call.
    set(&wrongs.finish, true);
    for i in 0..1000 {
        if i % 2 == 0 {
            within(client.unary(request(""))).await.unwrap();
        } else {
            let answers = within(client.server_stream(super::endless(1))).await.unwrap();
            drop(answers);
        }
    }
    set(&wrongs.finish, false);
    wrongs.all_were_told();
    backend.wait_until(|backend| backend.in_flight() == 0).await;

    set(&wrongs.describe, true);
    for _ in 0..1000 {
        assert!(within(channel.tree()).await.is_none());
    }
    set(&wrongs.describe, false);
    assert_eq!(within(channel.tree()).await.unwrap().policy, "own");

    for restarts in 1..=2 {
        // An active stream is unaffected, and its end does not affect the restarted policy.
        let mut under_way = within(client.server_stream(super::endless(1))).await.unwrap().into_inner();
        set(&wrongs.pass, true);
        // An event, which triggers a pass.
        channel.connect();
        let status = within(async {
            loop {
                match client.unary(request("")).await {
                    Err(status) => return status,
                    Ok(_) => tokio::task::yield_now().await,
                }
            }
        });
        let status = status.await;
        assert_eq!((status.code(), status.message()), (Code::Internal, "a load balancing policy panicked"));
        set(&wrongs.pass, false);
        let mut patient = tonic::Request::new(request(""));
        patient.extensions_mut().insert(evenkeel::WaitForReady(true));
        within(client.unary(patient)).await.unwrap();
        within(under_way.message()).await.unwrap().unwrap();
        assert_eq!(backend.open_connections(), 2);
        drop(under_way);
        backend.wait_until(|backend| backend.open_connections() == 1).await;
        for _ in 0..10 {
            within(client.unary(request(""))).await.unwrap();
        }
        assert_eq!((channel.connectivity(), backend.connections()), (ConnectivityState::Ready, restarts + 1));
    }
    wrongs.all_were_told();
    within(channel.close()).await;
}

/// Connector that panics, before it returns a future or inside it.
struct PanickingConnector {
    attempts: Arc<AtomicUsize>,
    bad: usize,
}

impl Connector for PanickingConnector {
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst);
        assert!(attempt >= self.bad || attempt.is_multiple_of(2), "no way, on purpose");
        let Address::Ip(address) = *address else { panic!("{address}") };
        Box::pin(async move {
            assert!(attempt >= self.bad, "no way through, on purpose");
            Ok(Box::new(TcpStream::connect(address).await?) as Box<dyn Io>)
        })
    }
}

/// fault 75: a connector that panics a thousand times counts as an unreachable endpoint, until it succeeds.
#[tokio::test]
async fn connectors_may_panic() {
    const BAD: usize = 1000;
    panicked::note();
    let backend = Backend::start().await;
    let attempts = Arc::<AtomicUsize>::default();
    let wait = std::time::Duration::from_micros(10);
    let channel = to([&backend])
        .connector(PanickingConnector { attempts: attempts.clone(), bad: BAD })
        .backoff(evenkeel::Backoff { initial: wait, max: wait, ..super::quick() })
        .build()
        .unwrap();
    let mut client = EchoClient::new(channel.clone());
    let status = within(client.unary(request(""))).await.unwrap_err();
    assert!([Code::Unavailable, Code::Internal].contains(&status.code()), "{status}");
    let address = backend.address().to_string();
    assert!(status.message().contains(&address) && status.message().contains("panicked"), "{status}");
    let mut patient = tonic::Request::new(request(""));
    patient.extensions_mut().insert(evenkeel::WaitForReady(true));
    within(client.unary(patient)).await.unwrap();
    assert_eq!(attempts.load(Ordering::SeqCst), BAD + 1);
}
