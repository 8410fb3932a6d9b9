//! Calls of a generated client, without a control plane.

use evenkeel::Channel;
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio_stream::StreamExt as _;

fn request(payload: &str) -> EchoRequest {
    EchoRequest { payload: payload.as_bytes().to_vec(), ..EchoRequest::default() }
}

/// A generated client works over the channel, in all four kinds of calls.
#[tokio::test]
async fn all_four_kinds() {
    let backend = Backend::start().await;
    let channel = Channel::builder(format!("ipv4:{}", backend.address())).build().unwrap();
    let mut client = EchoClient::new(channel);

    let answer = client.unary(request("one")).await.unwrap().into_inner();
    assert_eq!(answer.payload, b"one");

    let mut repeated = request("many");
    repeated.repeat = 3;
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
