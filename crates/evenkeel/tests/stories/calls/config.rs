//! Service configs: every policy works without a control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel::Channel;
use evenkeel::policy::{self, PolicyConfig};
use testkit::Log;
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use super::{Client, request, to, within};

async fn three() -> [Backend; 3] {
    [Backend::start().await, Backend::start().await, Backend::start().await]
}

/// Makes sequential calls, and returns the number that each backend served.
async fn who_answers(channel: &Channel, calls: usize) -> BTreeMap<String, usize> {
    let mut client = EchoClient::new(channel.clone());
    let mut answers = BTreeMap::new();
    for _ in 0..calls {
        let answer = within(client.unary(request(""))).await.unwrap().into_inner();
        *answers.entry(answer.backend).or_default() += 1;
    }
    answers
}

/// Every policy that supports a list of addresses balances calls.
#[tokio::test]
async fn every_policy_serves() {
    let backends = three().await;
    // Policy, number of endpoints that it uses, and calls per endpoint of 30 if constant.
    let cases = [
        (r#"{"pick_first": {}}"#, 1, Some(30)),
        (r#"{"pick_first": {"shuffleAddressList": true}}"#, 1, Some(30)),
        (r#"{"round_robin": {}}"#, 3, Some(10)),
        // Without load reports all weights are equal.
        (r#"{"weighted_round_robin": {"blackoutPeriod": "0s"}}"#, 3, Some(10)),
        (r#"{"weighted_round_robin_experimental": {}}"#, 3, Some(10)),
        (r#"{"edf_weighted_round_robin": {}}"#, 3, Some(10)),
        (r#"{"least_request_experimental": {"choiceCount": 3}}"#, 3, None),
        (
            r#"{"random_subsetting_experimental": {"subset_size": 2, "child_policy": [{"round_robin": {}}]}}"#,
            2,
            Some(15),
        ),
        (r#"{"outlier_detection_experimental": {"childPolicy": [{"round_robin": {}}]}}"#, 3, Some(10)),
    ];
    for (policy, used, each) in cases {
        let config = format!(r#"{{"loadBalancingConfig": [{{"unheard_of": {{}}}}, {policy}]}}"#);
        let channel = to(&backends).service_config(config).build().unwrap_or_else(|error| panic!("{error}"));
        // Count only after all endpoints are connected.
        within(async {
            let mut seen = BTreeSet::new();
            while seen.len() < used {
                seen.extend(who_answers(&channel, 1).await.into_keys());
            }
        })
        .await;
        let answers = who_answers(&channel, 30).await;
        assert!(answers.len() <= used, "{policy}: {answers:?}");
        if let Some(each) = each {
            assert_eq!(answers.into_values().collect::<Vec<_>>(), vec![each; used], "{policy}");
        }
    }
}

/// ring_hash: calls with the same header value use the same endpoint, calls without one use any. Without a
/// header in its config there is nothing to hash, and it fails with that reason.
#[tokio::test]
async fn ring_hash_needs_a_header() {
    let backends = three().await;
    let config = r#"{"loadBalancingConfig": [{"ring_hash_experimental": {"requestHashHeader": "x-user"}}]}"#;
    let channel = to(&backends).service_config(config).build().unwrap();
    // ring_hash connects on picks; `ready` connects one endpoint.
    within(channel.ready()).await.unwrap();
    let mut client = EchoClient::new(channel.clone());
    let mut homes = BTreeMap::new();
    for round in 0..3 {
        for user in 0..30 {
            let mut call = Request::new(request(""));
            call.metadata_mut().insert("x-user", MetadataValue::from(user));
            let backend = within(client.unary(call)).await.unwrap().into_inner().backend;
            assert_eq!(homes.entry(user).or_insert_with(|| backend.clone()), &backend, "{user} in {round}");
        }
    }
    assert_eq!(homes.values().collect::<BTreeSet<_>>().len(), 3, "thirty users live with all three");
    within(client.unary(request("nobody"))).await.unwrap();

    let config = r#"{"loadBalancingConfig": [{"ring_hash_experimental": {}}]}"#;
    let channel = to(&backends).service_config(config).build().unwrap();
    let status = within(EchoClient::new(channel).unary(request(""))).await.unwrap_err();
    let text =
        "ring_hash: the call has no request hash; give its route a hash policy, or set requestHashHeader";
    assert_eq!((status.code(), status.message()), (Code::Internal, text));
}

/// `waitForReady` applies to the named methods, unless a call overrides it.
#[tokio::test]
async fn methods_wait_as_configured() {
    let backend = Backend::start().await;
    backend.kill();
    let config = r#"{"methodConfig": [
        {"name": [{"service": "evenkeel.test.Echo", "method": "Unary"}], "waitForReady": true}
    ]}"#;
    let client = Client::new(to([&backend]).service_config(config).build().unwrap());
    let mut others = client.clone();
    let failed = within(others.client_stream(tokio_stream::once(request("")))).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    let mut impatient = Request::new(request(""));
    impatient.extensions_mut().insert(evenkeel::WaitForReady(false));
    assert_eq!(within(others.unary(impatient)).await.unwrap_err().code(), Code::Unavailable);
    let mut patient = client.clone();
    let waiting = tokio::spawn(async move { patient.unary(request("patient")).await });
    // Calls without wait-for-ready still fail.
    within(others.client_stream(tokio_stream::once(request("")))).await.unwrap_err();
    backend.restart().await;
    assert_eq!(within(waiting).await.unwrap().unwrap().into_inner().payload, b"patient");
}

/// Typed policies balance calls like their JSON, beside a service config with the settings of methods.
#[tokio::test]
async fn typed_policies_serve() {
    let backends = three().await;
    // Policy, and number of endpoints that it uses.
    let cases: [(PolicyConfig, usize); 8] = [
        (policy::pick_first().shuffle_address_list(true).into(), 1),
        (policy::round_robin(), 3),
        (policy::edf_weighted_round_robin(), 3),
        (policy::weighted_round_robin().blackout_period(Duration::ZERO).into(), 3),
        (policy::least_request().choice_count(3).into(), 3),
        (policy::ring_hash().request_hash_header("x-user").into(), 3),
        (policy::random_subsetting(2, policy::round_robin()), 2),
        (policy::outlier_detection(policy::round_robin()).interval(Duration::from_secs(5)).into(), 3),
    ];
    let methods = r#"{"methodConfig": [{"name": [{}], "timeout": "600s"}]}"#;
    for (policy, used) in cases {
        let channel = to(&backends).policy(policy.clone()).service_config(methods).build().unwrap();
        let mut client = Client::new(channel);
        within(async {
            let mut seen = BTreeSet::new();
            while seen.len() < used {
                let answer = client.unary(request("")).await.unwrap().into_inner();
                assert!(answer.metadata.contains_key("grpc-timeout"), "{policy}");
                seen.insert(answer.backend);
            }
        })
        .await;
    }
}

/// Unknown fields of a service config are logged when the channel is built, once, and change nothing.
#[tokio::test]
async fn unknown_fields_are_logged_once() {
    let backend = Backend::start().await;
    let log = Log::default();
    let logging = tracing::subscriber::set_default(log.clone());
    let config = r#"{
        "loadBalancingConfig": [{"least_request_experimental": {"choiceCuont": 3}}],
        "methodConfig": [{"name": [{}], "timout": "1s"}]
    }"#;
    let channel = to([&backend]).service_config(config).build().unwrap();
    within(EchoClient::new(channel).unary(request(""))).await.unwrap();
    drop(logging);
    let warnings: Vec<_> = log.lines().into_iter().filter(|line| line.contains("unknown field")).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0]
            .contains(r#"service config: methodConfig[0]: unknown field "timout"; did you mean "timeout"?"#)
    );
    assert!(warnings[1].contains(r#"unknown field "choiceCuont"; did you mean "choiceCount"?"#));
}
