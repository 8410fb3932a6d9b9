//! All kinds of calls, and all places in which a client can be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use evenkeel::{Address, CapturePeer, PeerAddress};
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::echo::{EchoRequest, EchoResponse};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use tower_service::Service;

use super::server::{Server, Step};
use super::{Client, client, connected, policy, request, to, within};

/// A generated client makes all four kinds of calls over the channel.
#[tokio::test]
async fn all_four_kinds() {
    let backend = Backend::start().await;
    let mut client = client(&backend);

    let answer = client.unary(request("one")).await.unwrap().into_inner();
    assert_eq!(answer.payload, b"one");

    let repeated = EchoRequest { repeat: 3, ..request("many") };
    let answers = client.server_stream(repeated).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(|answer| answer.unwrap().payload).collect().await;
    assert_eq!(answers, [b"many", b"many", b"many"]);

    let requests = tokio_stream::iter(["a", "b", "c"].map(request));
    let answer = client.client_stream(requests).await.unwrap().into_inner();
    assert_eq!(answer.payload, b"abc");

    let (sender, requests) = tokio::sync::mpsc::channel(1);
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let mut answers = client.bidi(requests).await.unwrap().into_inner();
    for text in ["ping", "pong"] {
        sender.send(request(text)).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap().payload, text.as_bytes());
    }
    drop(sender);
    assert!(answers.next().await.is_none());
}

/// Client as a field of an application's struct.
struct Orders {
    echo: Client,
}

impl Orders {
    async fn place(&self, order: &str) -> Result<Vec<u8>, Status> {
        Ok(self.echo.clone().unary(request(order)).await?.into_inner().payload)
    }
}

/// tower layer over any service: counts calls and adds a header to each.
#[derive(Clone)]
struct Stamp<S> {
    inner: S,
    count: Arc<AtomicUsize>,
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Stamp<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> S::Future {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        request.headers_mut().insert("x-stamp", count.into());
        self.inner.call(request)
    }
}

/// The channel works wherever tonic's own does: in tasks, in a struct, behind an interceptor and behind a
/// layer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_at_home_everywhere() {
    fn shared<T: Clone + Send + Sync + 'static>(value: T) -> T {
        value
    }
    let backend = Backend::start().await;
    let channel = shared(to([&backend]).build().unwrap());

    let mut in_task = EchoClient::new(channel.clone());
    let spawned = tokio::spawn(async move { in_task.unary(request("spawned")).await });
    assert_eq!(spawned.await.unwrap().unwrap().into_inner().payload, b"spawned");

    let mut set = JoinSet::new();
    for i in 0..8 {
        let mut client = EchoClient::new(channel.clone());
        set.spawn(async move { client.unary(request([i])).await.unwrap().into_inner().payload });
    }
    let mut answers = set.join_all().await;
    answers.sort();
    assert_eq!(answers, (0..8).map(|i| vec![i]).collect::<Vec<_>>());

    let orders = Arc::new(Orders { echo: EchoClient::new(channel.clone()) });
    let places = ["first", "second"].map(|order| {
        let orders = orders.clone();
        tokio::spawn(async move { orders.place(order).await.unwrap() })
    });
    let [first, second] = places;
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (b"first".to_vec(), b"second".to_vec()));

    let mut intercepted =
        EchoClient::with_interceptor(channel.clone(), |mut request: Request<()>| match request.metadata() {
            metadata if metadata.contains_key("x-refused") => Err(Status::permission_denied("not this one")),
            _ => {
                request.metadata_mut().insert("authorization", MetadataValue::from_static("bearer 1234"));
                Ok(request)
            }
        });
    let answer = intercepted.unary(request("")).await.unwrap().into_inner();
    assert_eq!(answer.metadata["authorization"], "bearer 1234");
    let mut refused = Request::new(request(""));
    refused.metadata_mut().insert("x-refused", MetadataValue::from_static("yes"));
    assert_eq!(intercepted.unary(refused).await.unwrap_err().code(), Code::PermissionDenied);

    let count = Arc::<AtomicUsize>::default();
    let mut layered = EchoClient::new(shared(Stamp { inner: channel, count: count.clone() }));
    for expected in ["0", "1"] {
        let answer = layered.unary(request("")).await.unwrap().into_inner();
        assert_eq!(answer.metadata["x-stamp"], expected);
    }
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

/// Messages are compressed in both directions when both sides enable it.
#[tokio::test]
async fn messages_are_compressed() {
    let server = Server::start(|_| Step::Echo).await;
    let channel = crate::builder(server.target()).build().unwrap();
    let mut client = EchoClient::new(channel)
        .send_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Gzip);
    let payload = vec![7; 100_000];
    let answer = client.unary(request(payload.clone())).await.unwrap();
    assert_eq!(answer.metadata().get("grpc-encoding").unwrap(), "gzip");
    assert_eq!(answer.into_inner().payload, payload);
    assert_eq!(server.seen()[0].get("grpc-encoding").unwrap(), "gzip");
    let requests = tokio_stream::iter(["a", "b"].map(request));
    let answers = client.bidi(requests).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(|answer| answer.unwrap().payload).collect().await;
    assert_eq!(answers, [b"a", b"b"]);
}

/// Metadata passes in both directions: ASCII and binary, repeated keys, and with a failure status.
#[tokio::test]
async fn metadata_goes_both_ways() {
    let mut failure = Status::not_found("no such order");
    failure.metadata_mut().insert_bin("x-why-bin", MetadataValue::from_bytes(&[0, 255, 10]));
    let server = Server::start(move |call| match call {
        0 => Step::Echo,
        1 => Step::Fail { after: 0, status: failure.clone() },
        _ => Step::HeadersThenFail(failure.clone()),
    })
    .await;
    let mut client = EchoClient::new(crate::builder(server.target()).build().unwrap());

    let mut call = Request::new(request(""));
    call.metadata_mut().append("x-text", MetadataValue::from_static("one"));
    call.metadata_mut().append("x-text", MetadataValue::from_static("two, and more"));
    call.metadata_mut().insert_bin("x-bytes-bin", MetadataValue::from_bytes(&[0, 1, 254, 255]));
    let answer = client.unary(call).await.unwrap();
    let text: Vec<_> = answer.metadata().get_all("x-text").iter().collect();
    assert_eq!(text, ["one", "two, and more"]);
    let bytes = answer.metadata().get_bin("x-bytes-bin").unwrap().to_bytes().unwrap();
    assert_eq!(bytes.as_ref(), [0, 1, 254, 255]);

    let in_head = client.unary(request("")).await.unwrap_err();
    let mut answers = client.server_stream(request("")).await.unwrap().into_inner();
    let in_trailers = answers.next().await.unwrap().unwrap_err();
    for status in [in_head, in_trailers] {
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no such order"));
        let why = status.metadata().get_bin("x-why-bin").unwrap().to_bytes().unwrap();
        assert_eq!(why.as_ref(), [0, 255, 10]);
    }
}

/// Empty messages and messages of 4 MiB arrive unchanged with any flow-control window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_all_sizes() {
    // tonic's default limit of 4 MiB includes the encoding.
    const LARGE: usize = (4 << 20) - 64;
    let backend = Backend::start().await;
    for window in [None, Some(1 << 16), Some(10_000)] {
        let mut builder = to([&backend]);
        if let Some(window) = window {
            builder = builder.stream_window(window).connection_window(window);
        }
        let client = EchoClient::new(builder.build().unwrap()).max_decoding_message_size(8 << 20);
        let sizes = [0, 1, 16_384 - 5, 65_535, 65_536, 1 << 20, LARGE, LARGE];
        let mut calls = JoinSet::new();
        for (i, size) in sizes.into_iter().enumerate() {
            let mut client = client.clone();
            calls.spawn(async move {
                let payload: Vec<u8> = (0..size).map(|at| (at * 7 + i) as u8).collect();
                let answer = client.unary(request(payload.clone())).await.unwrap().into_inner();
                assert!(answer.payload == payload, "{size} bytes with windows of {window:?}");
                let requests = tokio_stream::iter([request(payload.clone()), request(""), request("end")]);
                let answers = client.bidi(requests).await.unwrap().into_inner();
                let answers: Vec<_> = answers.map(|answer| answer.unwrap().payload).collect().await;
                assert!(answers == [payload, Vec::new(), b"end".to_vec()], "{size} bytes: {window:?}");
            });
        }
        within(calls.join_all()).await;
    }
}

/// Ten thousand concurrent calls on one channel: to one backend with as many streams, and to four with 200
/// each. Each call gets its own response, and the four backends share the calls evenly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_at_once() {
    const CALLS: usize = 10_000;
    let wide = Backend::builder().max_concurrent_streams(CALLS as u32).start().await;
    let mut four = Vec::new();
    for _ in 0..4 {
        four.push(Backend::builder().max_concurrent_streams(200).start().await);
    }
    for (backends, at_once) in [(vec![&wide], CALLS), (four.iter().collect(), 200)] {
        let count = backends.len();
        let channel = to(backends.iter().copied()).service_config(policy("round_robin")).build().unwrap();
        connected(&channel, count).await;
        for backend in &backends {
            backend.pause();
        }
        let mut calls = JoinSet::new();
        for i in 0..CALLS {
            let mut client = EchoClient::new(channel.clone());
            calls.spawn(async move {
                let payload = i.to_le_bytes().to_vec();
                let answer = client.unary(request(payload.clone())).await;
                answer.map(|answer| answer.into_inner().payload == payload)
            });
        }
        for backend in &backends {
            backend.wait_until(|backend| backend.in_flight() == at_once).await;
            backend.resume();
        }
        for answer in within(calls.join_all()).await {
            assert!(answer.unwrap(), "an answer to another question");
        }
        for backend in &backends {
            assert_eq!((backend.calls(), backend.connections()), (CALLS / count, 1));
        }
    }
}

/// `CapturePeer` returns the serving address in every kind of call. Other calls do not carry it.
#[tokio::test]
async fn capture_peer_returns_the_serving_address() {
    let backends = [Backend::start().await, Backend::start().await];
    let mut client = Client::new(to(&backends).service_config(policy("round_robin")).build().unwrap());
    let asking = || {
        let mut request = Request::new(EchoRequest { repeat: 1, ..request("one") });
        request.extensions_mut().insert(CapturePeer);
        request
    };
    for _ in 0..4 {
        let answer = within(client.unary(asking())).await.unwrap();
        let stream = within(client.server_stream(asking())).await.unwrap();
        let answered = stream.extensions().get().cloned();
        let first = within(stream.into_inner().next()).await;
        let name = |of: &EchoResponse| {
            let backend = backends.iter().find(|backend| backend.name() == of.backend).unwrap();
            PeerAddress(Address::Ip(backend.address()))
        };
        assert_eq!(answer.extensions().get(), Some(&name(answer.get_ref())));
        assert_eq!(answered, first.map(|first| name(&first.unwrap())));
    }
    let answer = within(client.unary(request("one"))).await.unwrap();
    assert_eq!(answer.extensions().get::<PeerAddress>(), None);
}
