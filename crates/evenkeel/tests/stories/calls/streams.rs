//! Streams whose two directions progress at different rates.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use testkit::net::Backend;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status};
use tower_service::Service as _;

use super::server::{Server, Step};
use super::{Client, client, request, to, within};

/// Flow control in both directions: an application that reads late limits the server, and a server that reads
/// late limits the polls of the request stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_limits_the_sender() {
    const MESSAGES: usize = 60;
    // The windows of both sides, one buffered message each, and a reserve.
    const AHEAD: usize = 12;
    let backend = Backend::start().await;
    // Smaller than the replay buffer, and larger.
    for size in [200_000, 300_000] {
        let channel = to([&backend]).stream_window(1 << 16).build().unwrap();
        let asked = Arc::<AtomicUsize>::default();
        let count = asked.clone();
        let requests = tokio_stream::iter(0..MESSAGES).map(move |i| {
            count.fetch_add(1, Ordering::SeqCst);
            request(vec![i as u8; size])
        });
        let mut answers = within(Client::new(channel).bidi(requests)).await.unwrap().into_inner();
        for read in 0..MESSAGES {
            let answer = within(answers.next()).await.unwrap().unwrap();
            assert!(answer.payload == vec![read as u8; size]);
            let asked = asked.load(Ordering::SeqCst);
            assert!(
                asked <= read + AHEAD,
                "{asked} messages of {size} bytes were sent, and {read} were read"
            );
        }
        assert!(within(answers.next()).await.is_none());
    }
}

/// A server fails while the client still sends: the call fails at once, and the request stream is dropped.
#[tokio::test]
async fn servers_respond_early() {
    for after in [0, 2] {
        let server = Server::start(move |_| Step::Fail {
            after,
            status: Status::failed_precondition("enough of that"),
        })
        .await;
        let mut client = Client::new(crate::builder(server.target()).build().unwrap());
        for bidi in [false, true] {
            let (sender, requests) = mpsc::channel(1);
            let sending = tokio::spawn(async move {
                while sender.send(request("and another")).await.is_ok() {
                    tokio::task::yield_now().await;
                }
            });
            let requests = ReceiverStream::new(requests);
            let status = within(async {
                if bidi {
                    client.bidi(requests).await.map(drop)
                } else {
                    client.client_stream(requests).await.map(drop)
                }
            });
            let status = status.await.unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "enough of that"));
            within(sending).await.unwrap();
        }
    }
}

/// Responses arrive while the request stream is silent, and other calls are not blocked.
#[tokio::test]
async fn silent_requests_do_not_block_responses() {
    let server = Server::start(|call| if call == 0 { Step::Speak(100) } else { Step::Echo }).await;
    let mut client = Client::new(crate::builder(server.target()).build().unwrap());
    let (sender, requests) = mpsc::channel(1);
    let mut answers = within(client.bidi(ReceiverStream::new(requests))).await.unwrap().into_inner();
    for i in 0..100 {
        let answer = within(answers.next()).await.unwrap().unwrap();
        assert_eq!(answer.payload, i.to_string().as_bytes());
        if i % 10 == 0 {
            within(client.unary(request("aside"))).await.unwrap();
        }
    }
    assert!(within(answers.next()).await.is_none(), "the server has ended, whatever the client does");
    drop(sender);
}

/// A message that cannot be sent fails its call with the local status, and the server's call is cancelled.
#[tokio::test]
async fn requests_that_fail() {
    let backend = Backend::start().await;
    let mut client = client(&backend).max_encoding_message_size(100);
    let status = within(client.unary(request(vec![0; 1000]))).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let (sender, requests) = mpsc::channel(1);
    let call = tokio::spawn(async move { client.client_stream(ReceiverStream::new(requests)).await });
    sender.send(request("small")).await.unwrap();
    backend.wait_until(|backend| backend.in_flight() == 1).await;
    sender.send(request(vec![0; 1000])).await.unwrap();
    let status = within(call).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    backend.wait_until(|backend| backend.in_flight() == 0).await;

    // A body error that generated clients cannot produce.
    let mut channel = to([&backend]).build().unwrap();
    for pieces in [0, 1, 3] {
        let request = http::Request::post("/evenkeel.test.Echo/ClientStream")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(FailingBody { pieces }))
            .unwrap();
        let status = within(channel.call(request)).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::DataLoss, "the disk is gone"));
    }
    backend.wait_until(|backend| backend.in_flight() == 0).await;
}

/// Body that fails after this number of messages.
struct FailingBody {
    pieces: usize,
}

impl http_body::Body for FailingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(Some(match self.pieces.checked_sub(1) {
            Some(left) => {
                self.pieces = left;
                // An empty gRPC message: five bytes of prefix.
                Ok(Frame::data(Bytes::from_static(&[0; 5])))
            }
            None => Err(Status::data_loss("the disk is gone")),
        }))
    }
}
