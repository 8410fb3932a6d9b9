//! Program `xds_interop_client` as a driver uses it: a process, against servers and a control plane of the
//! test.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod parts;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use self::parts::{Backend, Gated, Program, bootstrap, entry, within};
use evenkeel_control::{Cluster, ClusterPolicy, ControlPlane, Endpoint, Mesh, Service};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as ClusterMessage;
use evenkeel_proto::envoy::service::status::v3::ClientStatusRequest;
use interop::proto::channelz as wire;
use interop::proto::channelz::channel_connectivity_state::State;
use interop::proto::channelz::channelz_client::ChannelzClient;
use interop::proto::csds::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use interop::proto::testing::load_balancer_stats_response::MetadataType;
use serde_json::json;
use tonic::Code;
use tonic::transport::Channel;

const EMPTY: i32 = 0;
const UNARY: i32 = 1;

fn mesh(backends: &[&Backend], policy: ClusterPolicy) -> Mesh {
    let endpoints = backends.iter().map(|backend| Endpoint::at(backend.address));
    let cluster = Cluster::new().endpoints(endpoints).policy(policy);
    Mesh::new().service("orders", Service::to("orders")).cluster("orders", cluster)
}

#[tokio::test]
async fn counts_calls_by_peer_and_method() {
    let [a, b] = [Backend::start("a").await, Backend::start("b").await];
    let control = ControlPlane::builder().serve().await.unwrap();
    control.set_mesh(&mesh(&[&a, &b], "round_robin".into()));
    let flags = ["--server=xds:///orders", "--rpc=EmptyCall,UnaryCall", "-qps", "50", "--num_channels=2"];
    let program = Program::start(&flags, Some(&control)).await;

    // Until both are connected, one of them may get all calls.
    let told = program.stats_until(40, |told| told.num_failures == 0 && told.rpcs_by_peer.len() == 2).await;
    let sum = |peers: &BTreeMap<String, i32>| peers.values().sum::<i32>();
    assert_eq!(sum(&told.rpcs_by_peer), 40);
    let by_method: BTreeMap<&str, i32> = told
        .rpcs_by_method
        .iter()
        .map(|(method, peers)| (method.as_str(), sum(&peers.rpcs_by_peer)))
        .collect();
    assert_eq!(by_method, BTreeMap::from([("EmptyCall", 20), ("UnaryCall", 20)]));
    assert!(told.metadatas_by_peer.is_empty(), "no metadata was requested");

    let total = program.accumulated().await;
    for kind in ["EMPTY_CALL", "UNARY_CALL"] {
        let stats = &total.stats_per_method[kind];
        assert!(stats.rpcs_started >= stats.result.values().sum() && stats.result[&0] >= 20, "{stats:?}");
        assert_eq!(total.num_rpcs_started_by_method[kind], stats.rpcs_started);
        assert_eq!(total.num_rpcs_succeeded_by_method[kind], stats.result[&0]);
    }
}

/// Returns initial and trailing metadata of each call, for keys in any letter case.
#[tokio::test]
async fn reports_the_metadata_of_responses() {
    let backend = Backend::start("a").await;
    let program = Program::start(&[&backend.target(), "--qps=50"], None).await;
    program.stats_until(1, |told| told.num_failures == 0).await;

    let told = program.stats(3, 30, &["HOSTNAME", "grpc-status"]).await;
    let calls = &told.metadatas_by_peer["a"].rpc_metadata;
    assert_eq!(calls.len(), 3);
    for call in calls {
        let entries: Vec<_> =
            call.metadata.iter().map(|entry| (&*entry.key, &*entry.value, entry.r#type())).collect();
        assert_eq!(
            entries,
            [("hostname", "a", MetadataType::Initial), ("grpc-status", "0", MetadataType::Trailing)]
        );
    }
    let told = program.stats(1, 30, &["*"]).await;
    let keys: Vec<_> = told.metadatas_by_peer["a"].rpc_metadata[0].metadata.iter().map(|e| &*e.key).collect();
    assert!(keys.contains(&"hostname") && !keys.contains(&"grpc-status"), "{keys:?}");
    let told = program.stats(1, 30, &["no-such-key"]).await;
    assert!(told.metadatas_by_peer.is_empty());
}

#[tokio::test]
async fn calls_what_the_driver_configures() {
    let backend = Backend::start("a").await;
    let flags = [&*backend.target(), "--qps=50", "--rpc_timeout_sec=30", "--metadata=UnaryCall:from:flags"];
    let program = Program::start(&flags, None).await;
    let seen = backend.next_call().await;
    assert_eq!((seen.method, seen.values("from")), ("UnaryCall", vec!["flags".to_owned()]));
    assert!(seen.timeout() > Some(29.0), "{:?}", seen.timeout());

    let metadata =
        [entry(EMPTY, "from", "driver"), entry(EMPTY, "from", "again"), entry(UNARY, "other", "kind")];
    program.configure(&[EMPTY], &metadata, 90).await.unwrap();
    let seen = backend.call_until(|seen| seen.method == "EmptyCall").await;
    assert_eq!(seen.values("from"), ["driver", "again"]);
    assert!(seen.values("other").is_empty());
    assert!(seen.timeout() > Some(89.0), "{:?}", seen.timeout());
    let told = program.stats(5, 30, &[]).await;
    assert_eq!((told.num_failures, told.rpcs_by_method.len()), (0, 1));
    assert_eq!(told.rpcs_by_method["EmptyCall"].rpcs_by_peer["a"], 5);

    // An invalid request changes nothing.
    let refused = program.configure(&[UNARY, 7], &[], 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert_eq!(program.stats(5, 30, &[]).await.rpcs_by_method["EmptyCall"].rpcs_by_peer["a"], 5);
}

/// Failed calls and calls without an end both count as failures of the block. Only the former have a status.
#[tokio::test]
async fn failures_and_calls_in_flight_are_distinguished() {
    let backend = Backend::start("a").await;
    let program = Program::start(&[&backend.target(), "--qps=50", "--rpc_timeout_sec=1"], None).await;
    program.configure(&[EMPTY], &[entry(EMPTY, "rpc-behavior", "error-code-7")], 0).await.unwrap();
    backend.call_until(|seen| seen.method == "EmptyCall").await;
    let told = program.stats(5, 30, &[]).await;
    assert_eq!((told.num_failures, told.rpcs_by_peer.len()), (5, 0));

    program.configure(&[UNARY], &[entry(UNARY, "rpc-behavior", "keep-open")], 1).await.unwrap();
    let seen = backend.call_until(|seen| seen.values("rpc-behavior") == ["keep-open"]).await;
    assert_eq!(seen.timeout(), None, "kept open without a deadline");
    // The block is incomplete on timeout, and the partial result is returned.
    let told = program.stats(5, 1, &[]).await;
    assert_eq!((told.num_failures, told.rpcs_by_peer.len()), (5, 0));

    let total = program.accumulated().await;
    let (empty, unary) = (&total.stats_per_method["EMPTY_CALL"], &total.stats_per_method["UNARY_CALL"]);
    assert!(empty.result[&7] >= 5 && empty.result.len() == 1, "{empty:?}");
    assert_eq!(total.num_rpcs_failed_by_method["EMPTY_CALL"], empty.result[&7]);
    assert!(unary.rpcs_started - unary.result.values().sum::<i32>() >= 1, "{unary:?}");

    let ended = program.terminate().await;
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "calls in flight do not delay the exit");
}

#[tokio::test]
async fn a_failure_after_a_success_can_end_it() {
    let backend = Backend::start("a").await;
    let flags = [
        &*backend.target(),
        "--qps=50",
        "--fail_on_failed_rpcs",
        "--print_response=true",
        "--metadata=UnaryCall:rpc-behavior:error-code-14",
    ];
    let program = Program::start(&flags, None).await;
    assert_eq!(program.stats(5, 30, &[]).await.num_failures, 5, "it continues before the first success");
    program.configure(&[UNARY], &[], 0).await.unwrap();
    program.stats_until(1, |told| told.num_failures == 0).await;
    program.configure(&[EMPTY], &[], 0).await.unwrap();
    backend.call_until(|seen| seen.method == "EmptyCall").await;
    program.configure(&[EMPTY], &[entry(EMPTY, "rpc-behavior", "error-code-14")], 0).await.unwrap();
    let ended = program.end().await;
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr, "error: RPC failed: EmptyCall: UNAVAILABLE: as asked\n");
    for line in [
        "Greeting: Hello world, this is a, from 127.0.0.1:",
        "RPC \"EmptyCall\", failed with UNAVAILABLE: as asked",
    ] {
        assert!(ended.stdout.lines().any(|said| said.starts_with(line)), "{line}: {}", ended.stdout);
    }

    // The expected status is not a failure, and any other is.
    let flags = [
        &*backend.target(),
        "--qps=50",
        "--fail_on_failed_rpc",
        "--expect_status=PERMISSION_DENIED",
        "--print_response",
        "--metadata=UnaryCall:rpc-behavior:error-code-7",
    ];
    let program = Program::start(&flags, None).await;
    program.stats(5, 30, &[]).await;
    program.configure(&[UNARY], &[], 0).await.unwrap();
    let ended = program.end().await;
    assert_eq!((ended.code, &*ended.stderr), (Some(1), "error: RPC failed: UnaryCall: OK\n"));
    let expected = "RPC \"UnaryCall\", ended as expected with PERMISSION_DENIED: as asked";
    assert!(ended.stdout.lines().any(|line| line == expected), "{}", ended.stdout);
}

#[tokio::test]
async fn unknown_flags_are_warned_about_and_invalid_ones_rejected() {
    let backend = Backend::start("a").await;
    let program =
        Program::start(&["--enable_csm_observability=true", "--newer", "3", &backend.target()], None).await;
    backend.next_call().await;
    let ended = program.terminate().await;
    let warnings = "warning: unknown flag --enable_csm_observability=true is ignored\n\
                    warning: unknown flag --newer 3 is ignored\n";
    assert_eq!((ended.code, &*ended.stderr), (Some(0), warnings));

    for (flags, code, told) in [
        (&["--qps=often"][..], 2, "error: flag --qps: expected a number from 1"),
        (&["--server"], 2, "error: flag --server: expected a value, found nothing"),
        (&["--rpc=Other"], 2, "error: flag --rpc: expected EmptyCall or UnaryCall"),
        (&["--server=xds:///orders"], 1, "error: "),
    ] {
        let ended = Program::run(flags).await;
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.starts_with(told), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
}

/// Requests of psm-interop's driver before its cases, and CSDS.
#[tokio::test]
async fn reports_its_channels_and_its_config() {
    let [a, b] = [Backend::start("a").await, Backend::start("b").await];
    let control = ControlPlane::builder().serve().await.unwrap();
    control.set_mesh(&mesh(&[&a, &b], "round_robin".into()));
    let flags = ["--server=xds:///orders", "--qps=50", "--num_channels=2"];
    let program = Program::start(&flags, Some(&control)).await;
    program.stats_until(40, |told| told.num_failures == 0 && told.rpcs_by_peer.len() == 2).await;
    let mut channelz = ChannelzClient::new(program.channel());

    // One channel per page; the last page has the end flag.
    let mut top = Vec::new();
    loop {
        let start_channel_id = top.last().map_or(0, |channel: &wire::Channel| channel_id(channel) + 1);
        let request = wire::GetTopChannelsRequest { start_channel_id, max_results: 1 };
        let page = within(channelz.get_top_channels(request)).await.unwrap().into_inner();
        assert_eq!(page.channel.len(), 1);
        top.extend(page.channel);
        if page.end {
            break;
        }
    }
    let targets: Vec<_> = top.iter().map(|channel| &*data(channel).target).collect();
    let control_plane = control.address().to_string();
    assert_eq!(targets, ["xds:///orders", "xds:///orders", &control_plane]);
    assert_eq!(data(&top[2]).calls_started - data(&top[2]).calls_failed, 1, "the stream");
    assert_eq!(data(&top[2]).calls_succeeded, 0, "the call continues");
    for channel in &top {
        assert_eq!(data(channel).state.unwrap().state(), State::Ready);
        let request = wire::GetChannelRequest { channel_id: channel_id(channel) };
        let again = within(channelz.get_channel(request)).await.unwrap().into_inner().channel.unwrap();
        assert_eq!((&again.r#ref, &again.subchannel_ref), (&channel.r#ref, &channel.subchannel_ref));
    }

    for reference in &top[0].subchannel_ref {
        let subchannel = ready_subchannel(&mut channelz, reference.subchannel_id).await;
        let request =
            wire::GetSocketRequest { socket_id: subchannel.socket_ref[0].socket_id, summary: false };
        let socket = within(channelz.get_socket(request)).await.unwrap().into_inner().socket.unwrap();
        let server = [&a, &b].into_iter().find(|server| server.address == address(socket.remote.as_ref()));
        server.unwrap().call_until(|seen| seen.peer == Some(address(socket.local.as_ref()))).await;
    }
    let mut names: Vec<_> = top[0].subchannel_ref.iter().map(|reference| reference.name.clone()).collect();
    names.sort_unstable();
    let mut addresses = [a.address.to_string(), b.address.to_string()];
    addresses.sort_unstable();
    assert_eq!(names, addresses);

    let not_found = [
        within(channelz.get_channel(wire::GetChannelRequest { channel_id: 999 })).await.map(drop),
        within(channelz.get_subchannel(wire::GetSubchannelRequest { subchannel_id: 999 })).await.map(drop),
        within(channelz.get_socket(wire::GetSocketRequest { socket_id: 999, summary: false }))
            .await
            .map(drop),
        within(channelz.get_server(wire::GetServerRequest { server_id: 999 })).await.map(drop),
    ];
    assert!(not_found.iter().all(|answer| answer.as_ref().is_err_and(|e| e.code() == Code::NotFound)));
    let servers =
        within(channelz.get_servers(wire::GetServersRequest::default())).await.unwrap().into_inner();
    assert!(servers.end && servers.server.is_empty());

    let mut csds = ClientStatusDiscoveryServiceClient::new(program.channel());
    let status = within(csds.fetch_client_status(ClientStatusRequest::default())).await.unwrap().into_inner();
    let resources = status.config.iter().flat_map(|client| &client.generic_xds_configs);
    let kinds: Vec<_> =
        resources.map(|resource| resource.type_url.rsplit('.').next().unwrap_or_default()).collect();
    for kind in ["Listener", "RouteConfiguration", "Cluster", "ClusterLoadAssignment"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
}

/// A71, as psm-interop's driver sees it: the fallback control plane is listed only while the first one fails.
#[tokio::test]
async fn the_fallback_control_plane_is_listed_while_in_use() {
    let backend = Backend::start("a").await;
    let mesh = mesh(&[&backend], "round_robin".into());
    let (first, second) = (Gated::start(&mesh).await, ControlPlane::builder().serve().await.unwrap());
    second.set_mesh(&mesh);
    let program = Program::with_bootstrap(
        &["--server=xds:///orders", "--qps=50"],
        &bootstrap(&[first.address, second.address()]),
    )
    .await;
    let mut channelz = ChannelzClient::new(program.channel());
    let failing = [(first.address, State::TransientFailure), (second.address(), State::Ready)];
    let ids = control_planes_until(&mut channelz, &failing).await;
    first.open();
    let well = control_planes_until(&mut channelz, &[(first.address, State::Ready)]).await;
    assert_eq!(well[0], ids[0], "it is the same channel");
    let gone = channelz.get_channel(wire::GetChannelRequest { channel_id: ids[1] });
    assert_eq!(within(gone).await.unwrap_err().code(), Code::NotFound);
}

/// Waits until exactly these control planes are listed, in this order. Returns their ids.
async fn control_planes_until(
    channelz: &mut ChannelzClient<Channel>,
    expected: &[(SocketAddr, State)],
) -> Vec<i64> {
    let expected: Vec<_> = expected.iter().map(|(address, state)| (address.to_string(), *state)).collect();
    within(async {
        loop {
            let answer = channelz.get_top_channels(wire::GetTopChannelsRequest::default()).await.unwrap();
            let mut found = answer.into_inner().channel;
            found.retain(|channel| !data(channel).target.starts_with("xds:"));
            let told = found.iter().map(|one| (data(one).target.clone(), data(one).state.unwrap().state()));
            if told.collect::<Vec<_>>() == expected {
                return found.iter().map(channel_id).collect();
            }
        }
    })
    .await
}

/// A custom policy, selected by the control plane (A52), adds a header to each call.
#[tokio::test]
async fn a_policy_of_the_tests_marks_its_calls() {
    let policy = |behavior: &str| {
        ClusterPolicy::with("test.RpcBehaviorLoadBalancer", json!({ "rpcBehavior": behavior }))
    };
    let [a, b] = [Backend::start("a").await, Backend::start("b").await];
    let control = ControlPlane::builder().serve().await.unwrap();
    control.set_mesh(&mesh(&[&a, &b], policy("error-code-10")));
    let program = Program::start(&["--server=xds:///orders", "--qps=50"], Some(&control)).await;
    for backend in [&a, &b] {
        backend.call_until(|seen| seen.values("rpc-behavior") == ["error-code-10"]).await;
    }
    let told = program.stats(5, 30, &[]).await;
    assert_eq!(told.num_failures, 5);
    assert!(program.accumulated().await.stats_per_method["UNARY_CALL"].result[&10] >= 5);

    control.set_mesh(&mesh(&[&a, &b], policy("other")));
    for backend in [&a, &b] {
        backend.call_until(|seen| seen.values("rpc-behavior") == ["other"]).await;
    }
    program.stats_until(10, |told| told.num_failures == 0).await;

    control.set_mesh(&mesh(&[&a, &b], ClusterPolicy::with("test.RpcBehaviorLoadBalancer", json!({}))));
    let nack = within(control.wait_nacked::<ClusterMessage>()).await;
    assert!(nack.error.contains("rpcBehavior: is required"), "{}", nack.error);
}

fn channel_id(channel: &wire::Channel) -> i64 {
    channel.r#ref.as_ref().unwrap().channel_id
}

fn data(channel: &wire::Channel) -> &wire::ChannelData {
    channel.data.as_ref().unwrap()
}

/// Returns the subchannel once it is READY.
async fn ready_subchannel(channelz: &mut ChannelzClient<Channel>, subchannel_id: i64) -> wire::Subchannel {
    within(async {
        loop {
            let request = wire::GetSubchannelRequest { subchannel_id };
            let answer = channelz.get_subchannel(request).await.unwrap().into_inner();
            let subchannel = answer.subchannel.unwrap();
            if subchannel.data.as_ref().unwrap().state.unwrap().state() == State::Ready {
                return subchannel;
            }
        }
    })
    .await
}

fn address(address: Option<&wire::Address>) -> SocketAddr {
    match address.and_then(|address| address.address.as_ref()) {
        Some(wire::address::Address::TcpipAddress(address)) => {
            let ip: [u8; 4] = address.ip_address.as_slice().try_into().unwrap();
            (ip, address.port.try_into().unwrap()).into()
        }
        None => panic!("a socket without an address"),
    }
}
