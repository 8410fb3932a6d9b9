//! Model test of flow control: generated runs of our client against a server of the h2 crate, over a byte stream in memory.
//!
//! A run has random windows on both sides, several streams at once, readers that pause or stop, cancelled calls, and
//! changes of `SETTINGS_INITIAL_WINDOW_SIZE` by the server. The properties:
//!
//! - every stream that is read ends, with the bytes that the server sent;
//! - every request body arrives, also if its length is exactly the window;
//! - readers that pause and then go on receive the rest;
//! - after all that the connection takes another call and closes.
//!
//! Time is paused: when no task can proceed, the clock jumps to the timeout. A stall is found at once and in every run, and
//! a slow machine cannot cause one.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_http2::{Error, Http2Settings, RecvStream, RequestHeaders, SendRequest, SendStream, client};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use proptest::prelude::*;
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Virtual time after which a run has stalled. Nothing else in a run takes virtual time.
const STALL: Duration = Duration::from_secs(60);

/// Reader of one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadPlan {
    /// Reads to the end.
    ToEnd,
    /// Reads this many bytes, and the rest once all streams that are read to the end have ended.
    Pause(usize),
    /// Reads this many bytes and keeps the stream open until the run ends.
    Stop(usize),
    /// Reads this many bytes and drops the stream.
    Cancel(usize),
    /// Never polls for the head of the response.
    Ignore,
}

/// Server's treatment of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadPlan {
    /// Returns window for each piece as it is read.
    Release,
    /// Returns no window before the end of the stream is received. The body then uses up the stream's window exactly.
    Hoard,
}

#[derive(Clone, Debug)]
struct CallPlan {
    read: ReadPlan,
    download: usize,
    /// Maximum length of one `send_data` of the server.
    download_piece: usize,
    upload: UploadPlan,
    upload_len: usize,
    upload_piece: usize,
    /// Sends END_STREAM on an empty frame behind the data rather than on the last of it.
    has_separate_end: bool,
    /// Waits for room before each piece, as a streaming body does; otherwise everything is queued at once.
    waits_for_room: bool,
}

#[derive(Clone, Debug)]
struct RunPlan {
    stream_window: u32,
    connection_window: u32,
    server_window: u32,
    server_connection_window: u32,
    /// Values that the server announces one after the other while the calls are in flight.
    window_changes: Vec<u32>,
    /// Capacity of the byte stream between the two.
    pipe: usize,
    calls: Vec<CallPlan>,
}

fn window() -> impl Strategy<Value = u32> {
    prop_oneof![1..64_u32, 64..4_096_u32, 4_096..65_536_u32, Just(65_535), 65_536..300_000_u32]
}

fn read_plan() -> impl Strategy<Value = ReadPlan> {
    let some = prop_oneof![Just(0_usize), 1..40_000_usize];
    prop_oneof![
        4 => Just(ReadPlan::ToEnd),
        2 => some.clone().prop_map(ReadPlan::Pause),
        2 => some.clone().prop_map(ReadPlan::Stop),
        1 => some.prop_map(ReadPlan::Cancel),
        1 => Just(ReadPlan::Ignore),
    ]
}

fn call_plan() -> impl Strategy<Value = CallPlan> {
    let len = || prop_oneof![2 => Just(0_usize), 3 => 1..2_000_usize, 3 => 2_000..150_000_usize];
    let piece = || prop_oneof![1..2_000_usize, 2_000..100_000_usize];
    let upload = prop_oneof![3 => Just(UploadPlan::Release), 1 => Just(UploadPlan::Hoard)];
    (read_plan(), len(), piece(), upload, len(), piece(), any::<bool>(), any::<bool>()).prop_map(
        |(
            read,
            download,
            download_piece,
            upload,
            upload_len,
            upload_piece,
            has_separate_end,
            waits_for_room,
        )| {
            CallPlan {
                read,
                download,
                download_piece,
                upload,
                upload_len,
                upload_piece,
                has_separate_end,
                waits_for_room,
            }
        },
    )
}

fn run_plan() -> impl Strategy<Value = RunPlan> {
    let changes = prop::collection::vec(window(), 0..3);
    let calls = prop::collection::vec(call_plan(), 1..9);
    (window(), window(), window(), window(), changes, 64..100_000_usize, calls).prop_map(
        |(
            stream_window,
            connection_window,
            server_window,
            server_connection_window,
            window_changes,
            pipe,
            calls,
        )| {
            RunPlan {
                stream_window,
                connection_window,
                server_window,
                server_connection_window,
                window_changes,
                pipe,
                calls,
            }
            .bounded()
        },
    )
}

impl RunPlan {
    /// Adapts lengths to the windows. Tiny windows take a round trip for each few bytes, so bodies stay below some hundred
    /// windows. A hoarded body must fit both windows of the server, or the model itself would demand a stall.
    fn bounded(mut self) -> RunPlan {
        let final_window = self.window_changes.last().copied().unwrap_or(self.server_window);
        let smallest = self.server_window.min(self.server_connection_window);
        let smallest = self.window_changes.iter().fold(smallest, |all, change| all.min(*change));
        // The connection's window begins at 65,535, independent of the server's settings. Hoarded data counts against
        // it.
        let mut hoardable = 65_535.min(self.server_connection_window as usize);
        for call in &mut self.calls {
            call.download = call.download.min(self.stream_window as usize * 200);
            if call.upload == UploadPlan::Hoard {
                let exact = (final_window as usize).min(hoardable);
                hoardable -= exact;
                call.upload_len = exact;
            } else {
                call.upload_len = call.upload_len.min(smallest as usize * 200);
            }
            // Pieces of a few bytes each would make long bodies slow to run, not more interesting.
            call.download_piece = call.download_piece.max(call.download / 200).max(1);
            call.upload_piece = call.upload_piece.max(call.upload_len / 200).max(1);
        }
        // Other request bodies need some of the connection's window.
        if hoardable == 0 {
            for call in &mut self.calls {
                if call.upload == UploadPlan::Release {
                    call.upload_len = 0;
                }
            }
        }
        self
    }
}

/// Byte of a body at a position. Differs between streams, so that bytes of another stream are found.
fn pattern(call: usize, at: usize) -> u8 {
    (at % 251) as u8 ^ (call as u8).wrapping_mul(37)
}

fn body(call: usize, range: std::ops::Range<usize>) -> Bytes {
    range.map(|at| pattern(call, at)).collect()
}

fn name(text: &'static str) -> HeaderName {
    HeaderName::from_static(text)
}

/// Returns the plan of a call as request headers, which the server follows.
fn request_headers(index: usize, call: &CallPlan) -> HeaderMap {
    HeaderMap::from_iter([
        (name("index"), HeaderValue::from(index)),
        (name("download"), HeaderValue::from(call.download)),
        (name("piece"), HeaderValue::from(call.download_piece)),
        (name("hoards"), HeaderValue::from(u16::from(call.upload == UploadPlan::Hoard))),
    ])
}

fn number(headers: &HeaderMap, name: &str) -> usize {
    headers[name].to_str().expect("digits").parse().expect("a number")
}

/// Serves requests until the client closes the connection, and announces the window changes as early as h2 permits.
async fn serve(plan: RunPlan, io: DuplexStream) {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(plan.server_window)
        .initial_connection_window_size(plan.server_connection_window)
        .max_send_buffer_size(u32::MAX as usize)
        // Tiny windows make tiny frames, which h2 would take for an attack.
        .data_frame_budget(1 << 30);
    let mut connection = builder.handshake::<_, Bytes>(io).await.expect("a client");
    let mut changes = plan.window_changes.into_iter().peekable();
    let mut accepted = 0;
    let mut streams = JoinSet::new();
    loop {
        let next = poll_fn(|cx| {
            loop {
                // h2 has one SETTINGS frame in flight at a time; the acknowledgement wakes this task. The first change waits
                // for a stream, so that it changes an open one.
                if accepted > 0
                    && let Some(change) = changes.peek()
                    && connection.set_initial_window_size(*change).is_ok()
                {
                    changes.next();
                }
                let has_change = accepted > 0 && changes.peek().is_some();
                match connection.poll_accept(cx) {
                    Poll::Pending
                        if has_change
                            && changes.peek().is_some_and(|change| {
                                connection.set_initial_window_size(*change).is_ok()
                            }) =>
                    {
                        changes.next();
                    }
                    polled => return polled,
                }
            }
        })
        .await;
        let Some(accepted_stream) = next else { break };
        let (request, respond) = accepted_stream.expect("the client keeps to the protocol");
        accepted += 1;
        streams.spawn(respond_to(request, respond));
    }
    // A response to a cancelled call may fail; a panic may not be lost.
    while let Some(ended) = streams.join_next().await {
        if let Err(error) = ended {
            assert!(!error.is_panic(), "the server panicked: {error}");
        }
    }
}

/// Sends the response while the request is read. The trailers carry the length of the request body.
async fn respond_to(
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (parts, mut upload) = request.into_parts();
    let index = number(&parts.headers, "index");
    let download = number(&parts.headers, "download");
    let piece = number(&parts.headers, "piece");
    let hoards = number(&parts.headers, "hoards") == 1;
    let mut out = respond.send_response(Response::new(()), false)?;
    let mut sent = 0;
    while sent < download {
        let end = download.min(sent + piece);
        out.send_data(body(index, sent..end), false)?;
        sent = end;
        tokio::task::yield_now().await;
    }
    let mut received = 0;
    while let Some(data) = upload.data().await {
        let data = data?;
        for (i, byte) in data.iter().enumerate() {
            assert_eq!(*byte, pattern(index, received + i), "byte {} of request {index}", received + i);
        }
        received += data.len();
        if !hoards {
            upload.flow_control().release_capacity(data.len())?;
        }
    }
    if hoards {
        upload.flow_control().release_capacity(received)?;
    }
    out.send_trailers(HeaderMap::from_iter([(name("received"), HeaderValue::from(received))]))
}

fn open(sender: &SendRequest, index: usize, call: &CallPlan) -> Result<(SendStream, RecvStream), Error> {
    sender.send(&RequestHeaders {
        method: &Method::POST,
        is_https: false,
        authority: "model",
        path: "/model.Flow/Run",
        headers: &request_headers(index, call),
        extra_headers: &[],
        end_stream: false,
    })
}

/// Sends the request body. Ends early if the stream is closed, which is no error here: the reader detects the cause.
async fn upload(mut stream: SendStream, index: usize, call: CallPlan) {
    let mut sent = 0;
    while sent < call.upload_len {
        if call.waits_for_room && poll_fn(|cx| stream.poll_capacity(cx)).await.is_none() {
            return;
        }
        let end = call.upload_len.min(sent + call.upload_piece);
        let is_last = end == call.upload_len && !call.has_separate_end;
        if stream.send(body(index, sent..end), is_last).is_none() {
            return;
        }
        sent = end;
    }
    if call.has_separate_end || call.upload_len == 0 {
        let _ = stream.send(Bytes::new(), true);
    }
}

/// Response as far as it was read.
struct ResponseReader {
    recv: RecvStream,
    index: usize,
    read: usize,
    is_ended: bool,
}

impl ResponseReader {
    /// Reads until at least this many bytes were read, or the data has ended.
    async fn read_some(&mut self, limit: usize) {
        while self.read < limit && !self.is_ended {
            match poll_fn(|cx| self.recv.poll_data(cx)).await {
                Some(data) => {
                    let data = data.expect("the server does not fail");
                    for (i, byte) in data.iter().enumerate() {
                        let at = self.read + i;
                        assert_eq!(*byte, pattern(self.index, at), "byte {at} of response {}", self.index);
                    }
                    self.read += data.len();
                }
                None => self.is_ended = true,
            }
        }
    }

    /// Reads to the end and compares lengths: of the response with the plan, of the request with the trailers.
    async fn read_to_end(mut self, call: &CallPlan) {
        self.read_some(usize::MAX).await;
        assert_eq!(self.read, call.download, "length of response {}", self.index);
        let trailers = poll_fn(|cx| self.recv.poll_trailers(cx)).await.expect("the server does not fail");
        let trailers = trailers.expect("the server sends trailers");
        assert_eq!(number(&trailers, "received"), call.upload_len, "length of request {}", self.index);
    }
}

/// Runs the reader of a call. Returns the stream if the plan keeps it open.
async fn read(
    mut recv: RecvStream,
    index: usize,
    call: CallPlan,
    mut all_read: watch::Receiver<bool>,
) -> Option<RecvStream> {
    if call.read == ReadPlan::Ignore {
        return Some(recv);
    }
    if call.read == ReadPlan::Cancel(0) {
        return None;
    }
    poll_fn(|cx| recv.poll_head(cx)).await.expect("the server responds");
    let mut reading = ResponseReader { recv, index, read: 0, is_ended: false };
    match call.read {
        ReadPlan::ToEnd => reading.read_to_end(&call).await,
        ReadPlan::Pause(after) => {
            reading.read_some(after).await;
            let _ = all_read.wait_for(|all_read| *all_read).await;
            reading.read_to_end(&call).await;
        }
        ReadPlan::Stop(after) => {
            reading.read_some(after.min(call.download)).await;
            return Some(reading.recv);
        }
        ReadPlan::Cancel(after) => reading.read_some(after.min(call.download)).await,
        ReadPlan::Ignore => {}
    }
    None
}

/// Waits for a result, and fails if the run has stalled.
async fn unless_stalled<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(STALL, work).await.unwrap_or_else(|_| panic!("stalled: {what}"))
}

async fn join<T>(what: &str, tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for (i, task) in tasks.into_iter().enumerate() {
        results.push(unless_stalled(&format!("{what} {i}"), task).await.expect("no task panics"));
    }
    results
}

async fn run(plan: RunPlan) {
    let (ours, theirs) = tokio::io::duplex(plan.pipe);
    let server = tokio::spawn(serve(plan.clone(), theirs));
    let (sender, mut driver) = client(Http2Settings {
        stream_window: plan.stream_window,
        connection_window: plan.connection_window,
        ..Http2Settings::default()
    });
    let mut io = ours;
    let connection = tokio::spawn(async move { poll_fn(|cx| driver.poll(&mut io, cx)).await });

    let (set_all_read, all_read) = watch::channel(false);
    let (mut to_end, mut resumed, mut others, mut uploads) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, call) in plan.calls.iter().enumerate() {
        let (send, recv) = open(&sender, index, call).expect("the connection is open");
        let reader = tokio::spawn(read(recv, index, call.clone(), all_read.clone()));
        match call.read {
            ReadPlan::ToEnd => to_end.push(reader),
            ReadPlan::Pause(_) => resumed.push(reader),
            ReadPlan::Stop(_) | ReadPlan::Cancel(_) | ReadPlan::Ignore => others.push(reader),
        }
        uploads.push(tokio::spawn(upload(send, index, call.clone())));
        // Some calls begin while others are in flight.
        if index % 3 == 2 {
            tokio::task::yield_now().await;
        }
    }
    join("stream that is read", to_end).await;
    join("request body", uploads).await;
    let kept = join("stream that stops", others).await;
    let call = CallPlan { read: ReadPlan::ToEnd, download: 5_000, upload_len: 100, ..plan.calls[0].clone() };
    let call = CallPlan { upload: UploadPlan::Release, ..call };
    let more = async {
        let (send, recv) = open(&sender, 77, &call).expect("the connection is open");
        tokio::join!(upload(send, 77, call.clone()), read(recv, 77, call.clone(), all_read.clone()));
    };
    unless_stalled("call beside unread streams", more).await;
    set_all_read.send_replace(true);
    join("stream that pauses", resumed).await;
    drop((kept, sender));
    let closed =
        unless_stalled("end of the connection", connection).await.expect("the driver does not panic");
    assert!(closed.is_ok(), "{closed:?}");
    unless_stalled("end of the server", server).await.expect("the server does not panic");
}

fn check(plan: RunPlan) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(run(plan));
}

fn plain_call() -> CallPlan {
    CallPlan {
        read: ReadPlan::ToEnd,
        download: 0,
        download_piece: 16_384,
        upload: UploadPlan::Release,
        upload_len: 0,
        upload_piece: 16_384,
        has_separate_end: false,
        waits_for_room: false,
    }
}

fn plain_run(calls: Vec<CallPlan>) -> RunPlan {
    RunPlan {
        stream_window: 2 << 20,
        connection_window: 5 << 20,
        server_window: 65_535,
        server_connection_window: 65_535,
        window_changes: Vec::new(),
        pipe: 65_536,
        calls,
    }
}

/// Two consumers pause with 1.4 MB unread each, and small calls beside them are not delayed.
#[test]
fn two_slow_readers_do_not_stop_a_connection() {
    let slow = CallPlan { read: ReadPlan::Stop(1), download: 1_400_000, ..plain_call() };
    let mut calls = vec![slow.clone(), slow];
    calls.extend((0..300).map(|_| CallPlan { download: 10_000, ..plain_call() }));
    check(plain_run(calls));
}

/// RFC 9113, section 6.9: an empty DATA frame needs no window. The stream's window is used up here.
#[test]
fn a_request_ends_at_the_window_of_its_stream() {
    let hoarded = CallPlan {
        upload: UploadPlan::Hoard,
        upload_len: 2_000,
        has_separate_end: true,
        upload_piece: 2_000,
        ..plain_call()
    };
    let run = plain_run(vec![hoarded]);
    check(RunPlan { server_window: 1_000, window_changes: vec![2_000], ..run });
}

/// The same with the window of the connection. The stream's own window is larger.
#[test]
fn a_request_ends_at_the_window_of_the_connection() {
    let hoarded = CallPlan {
        upload: UploadPlan::Hoard,
        upload_len: 65_535,
        has_separate_end: true,
        upload_piece: 65_535,
        ..plain_call()
    };
    let run = plain_run(vec![hoarded]);
    check(RunPlan { server_window: 1_000, window_changes: vec![70_000], ..run });
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn streams_that_are_read_end(plan in run_plan()) {
        check(plan);
    }
}
