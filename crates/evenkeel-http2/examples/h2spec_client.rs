//! One request to a URL over cleartext HTTP/2, for h2specd, the conformance tests of HTTP/2 clients.
//!
//! h2specd runs it once for each case: `h2specd --exec target/debug/examples/h2spec_client`. It judges the frames that it
//! receives, so the exit code of this program does not matter. When the call has ended, the connection is closed, as by a
//! client that has no other request. Three cases depend on that: their server sends frames for a stream that has ended, which
//! a connection with other requests ignores.

use std::future::poll_fn;
use std::time::Duration;

use evenkeel_http2::{Error, Http2Settings, RecvStream, RequestHeaders, client};
use http::{HeaderMap, Method};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Maximum time of a run. The gate gives h2specd ten seconds for each case.
const LIMIT: Duration = Duration::from_secs(8);

/// Maximum time for the peer to close the connection. h2specd waits for the end of this program in some cases.
const LINGER: Duration = Duration::from_millis(250);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: h2spec_client http://HOST:PORT/")?;
    let authority = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
    let authority = authority.ok_or("a URL like http://127.0.0.1:30001/ is needed")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(LIMIT, run(authority)).await? })
}

async fn run(authority: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut io = TcpStream::connect(authority).await?;
    io.set_nodelay(true)?;
    let (sender, mut driver) = client(Http2Settings::default());
    let (_send, recv) = sender.send(&RequestHeaders {
        method: &Method::GET,
        is_https: false,
        authority,
        path: "/",
        headers: &HeaderMap::new(),
        extra_headers: &[],
        end_stream: true,
    })?;
    let connection = async {
        let closed = poll_fn(|cx| driver.poll(&mut io, cx)).await;
        println!("connection closed: {closed:?}");
        close(&mut io).await;
    };
    let call = async {
        match read(recv).await {
            Ok(len) => println!("response of {len} bytes"),
            Err(error) => println!("call failed: {error}"),
        }
        // Without a sender the driver writes what it has, RST_STREAM for example, and closes the connection.
        drop(sender);
    };
    tokio::join!(connection, call);
    Ok(())
}

/// Closes the connection, and reads until the peer closes it too or [`LINGER`] has passed. A socket that is closed with unread
/// bytes resets the connection, and the peer may then lose GOAWAY: its SETTINGS ACK may arrive at any time.
async fn close(io: &mut TcpStream) {
    // A peer that has closed the connection already has what it needs.
    let _ = io.shutdown().await;
    let rest = async { while io.read(&mut [0; 1024]).await.is_ok_and(|len| len > 0) {} };
    let _ = tokio::time::timeout(LINGER, rest).await;
}

/// Reads a response to its end. Returns the length of its body.
async fn read(mut recv: RecvStream) -> Result<usize, Error> {
    poll_fn(|cx| recv.poll_head(cx)).await?;
    let mut len = 0;
    while let Some(data) = poll_fn(|cx| recv.poll_data(cx)).await {
        len += data?.len();
    }
    poll_fn(|cx| recv.poll_trailers(cx)).await?;
    Ok(len)
}
