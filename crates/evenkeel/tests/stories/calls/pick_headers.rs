//! Request headers that a policy adds with its pick.

use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel::Registry;
use evenkeel_core::{
    CachedState, CallTrackers, ConfigError, ConfigFields, ConnectMode, ConnectivityState, Cx, DescribeCx,
    Description, EndpointList, Endpoints, LbState, PickArgs, PickHeaders, PickResult, Picker, Policy,
    SubchannelId,
};
use tonic::{Code, Status};

use super::server::{Server, Step};
use super::{Client, request, within};

/// Policy that picks the first READY endpoint and numbers each pick in a header.
#[derive(Default)]
struct NumberingPolicy {
    fleet: EndpointList<()>,
    shown: CachedState<Option<SubchannelId>>,
}

impl Policy for NumberingPolicy {
    type Config = ();

    fn parse(_: &ConfigFields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.fleet.reconcile(endpoints, ConnectMode::Eager, cx);
        let ready = self.fleet.ready().map(|(_, id)| id).next();
        self.shown.get_or_build(ready, |ready| match ready {
            None => LbState::connecting(),
            Some(id) => {
                LbState::new(ConnectivityState::Ready, NumberingPicker { id: *id, next: AtomicU32::new(1) })
            }
        })
    }

    fn describe(&self, _: &DescribeCx<'_>) -> Description {
        Description::new()
    }
}

struct NumberingPicker {
    id: SubchannelId,
    next: AtomicU32,
}

impl Picker for NumberingPicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        let number = self.next.fetch_add(1, Ordering::SeqCst).to_string();
        let mut trackers = CallTrackers::none();
        trackers.add_headers(&PickHeaders::new([("pick", number.as_str())]).unwrap());
        trackers.add_headers(&PickHeaders::new([("said", "by the policy")]).unwrap());
        PickResult::Complete(self.id, trackers)
    }
}

/// REG-9: the server receives them beside the caller's headers, and each attempt has those of its own pick.
#[tokio::test]
async fn come_with_every_attempt() {
    let config = r#"{"loadBalancingConfig": [{"numbering": {}}], "methodConfig": [{"name": [{}], "retryPolicy": {
        "maxAttempts": 2, "initialBackoff": "0.001s", "maxBackoff": "0.01s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"]
    }}]}"#;
    let first_fails = |call| match call {
        0 => Step::Fail { after: 0, status: Status::new(Code::Unavailable, "not now") },
        _ => Step::Echo,
    };
    let server = Server::start(first_fails).await;
    let mut registry = Registry::standard();
    registry.register::<NumberingPolicy>("numbering");
    let channel = crate::builder(server.target()).registry(registry).service_config(config).build().unwrap();
    let mut request = tonic::Request::new(request("hello"));
    request.metadata_mut().insert("said", "by the caller".parse().unwrap());
    within(Client::new(channel).unary(request)).await.unwrap();

    let all = |headers: &tonic::metadata::MetadataMap, name| {
        headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let seen = server.seen();
    let picks: Vec<_> = seen.iter().map(|headers| all(headers, "pick")).collect();
    assert_eq!(picks, [["1"], ["2"]]);
    for headers in &seen {
        assert_eq!(all(headers, "said"), ["by the caller", "by the policy"]);
    }
}

/// REG-9: an invalid header is rejected where the policy creates it, with its name.
#[test]
fn are_checked_when_they_are_made() {
    for (name, value, told) in [
        ("", "x", "\"\" cannot be a header of a pick"),
        ("Shard", "x", "\"Shard\" cannot be"),
        (":path", "/", "\":path\" cannot be"),
        ("grpc-timeout", "1S", "\"grpc-timeout\" cannot be"),
        ("shard", "a\nb", "header \"shard\" of a pick: expected printable ASCII"),
    ] {
        let error = PickHeaders::new([(name, value)]).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
    let headers = PickHeaders::new([("shard_1.a-b", "x y~")]).unwrap();
    assert_eq!(headers.iter().collect::<Vec<_>>(), [("shard_1.a-b", "x y~")]);
}
