//! Stories of a connection: with a real server (h2), and with a scripted one that can send any bytes.

mod against_h2;
mod memory;
#[path = "../common/memory_io.rs"]
mod memory_io;
mod stalled_peer;
mod windows;
mod wire;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_http2::{
    Error, Http2Settings, RecvStream, RequestHeaders, ResponseHeaders, SendRequest, SendStream, client,
};
use http::{HeaderMap, HeaderValue, Method};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Maximum wait. Only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it hangs")
}

/// A connection and the task that drives it.
struct Client {
    sender: SendRequest,
    task: JoinHandle<Result<(), Error>>,
}

impl Client {
    async fn connect(address: SocketAddr, settings: Http2Settings) -> Client {
        let mut io = TcpStream::connect(address).await.expect("a server");
        io.set_nodelay(true).expect("a socket");
        let (sender, mut driver) = client(settings);
        let task = tokio::spawn(async move { poll_fn(|cx| driver.poll(&mut io, cx)).await });
        Client { sender, task }
    }

    fn send(
        &self,
        path: &str,
        headers: &HeaderMap,
        end_stream: bool,
    ) -> Result<(SendStream, RecvStream), Error> {
        let method = &Method::POST;
        let request = RequestHeaders {
            method,
            is_https: false,
            authority: "orders",
            path,
            extra_headers: &[],
            headers,
            end_stream,
        };
        self.sender.send(&request)
    }

    /// Sends a request with a body and returns the response headers.
    async fn ask(&self, body: impl Into<Bytes>) -> Result<(ResponseHeaders, RecvStream), Error> {
        let headers = HeaderMap::from_iter([(http::header::TE, HeaderValue::from_static("trailers"))]);
        let (mut send, mut recv) = self.send("/shop.Orders/Get", &headers, false)?;
        send.send(body.into(), true).expect("the stream is open");
        Ok((head(&mut recv).await?, recv))
    }

    /// Returns the result of the connection after its handles are dropped.
    async fn end(self) -> Result<(), Error> {
        drop(self.sender);
        within(self.task).await.expect("it does not panic")
    }
}

async fn head(recv: &mut RecvStream) -> Result<ResponseHeaders, Error> {
    within(poll_fn(|cx| recv.poll_head(cx))).await
}

async fn data(recv: &mut RecvStream) -> Option<Result<Bytes, Error>> {
    within(poll_fn(|cx| recv.poll_data(cx))).await
}

/// Returns the rest of a response: its data in one piece, and its trailers.
async fn rest(recv: &mut RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), Error> {
    let mut all = Vec::new();
    while let Some(piece) = data(recv).await {
        all.extend_from_slice(&piece?);
    }
    Ok((all, within(poll_fn(|cx| recv.poll_trailers(cx))).await?))
}
