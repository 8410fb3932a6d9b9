//! Bounds on the work that a peer's frames cause, counted in visits of streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use http::Method;

use super::*;
use crate::frame::{FRAME_HEADER_LEN, kind};
use crate::hpack::HeaderBlock;
use crate::recv_buffer::Chunk;
use crate::stream::RequestHeaders;

/// Number of streams that are open while the peer sends its frames.
const OPEN: usize = 2_000;

fn open(state: &mut ConnectionState, end_stream: bool) -> StreamIndex {
    let headers = HeaderMap::new();
    let request = RequestHeaders {
        method: &Method::POST,
        is_https: false,
        authority: "orders",
        path: "/s/m",
        headers: &headers,
        extra_headers: &[],
        end_stream,
    };
    state.send(&request).expect("the connection takes requests").0
}

fn initial_window(values: impl IntoIterator<Item = u32>) -> FrameEvent {
    FrameEvent::Settings(values.into_iter().map(|value| (setting::INITIAL_WINDOW_SIZE, value)).collect())
}

fn goaway(last: u32) -> FrameEvent {
    FrameEvent::GoAway { last, reason: Reason::NO_ERROR, debug_data: Bytes::new() }
}

/// Opens many streams. Each has sent `sent` bytes, and its window is used up.
fn blocked(sent: usize) -> ConnectionState {
    let mut state = ConnectionState::new(Http2Settings::default());
    apply(
        &mut state,
        [initial_window([sent as u32]), FrameEvent::WindowUpdate { stream: 0, increment: 1 << 30 }],
    )
    .unwrap();
    for _ in 0..OPEN {
        let key = open(&mut state, false);
        state.send_data(key, vec![0; sent + 10].into(), true).unwrap();
    }
    write(&mut state);
    state.streams.visits.take();
    state
}

/// Applies the events of one read.
fn apply(state: &mut ConnectionState, events: impl IntoIterator<Item = FrameEvent>) -> Result<(), Reason> {
    events.into_iter().try_for_each(|event| state.apply(event, &mut Vec::new()))
}

/// Writes all there is; returns the number of bytes.
fn write(state: &mut ConnectionState) -> usize {
    let mut written = 0;
    loop {
        state.fill_write_buffer(&mut Vec::new());
        if state.out.is_empty() {
            state.written();
            return written;
        }
        let mut out = WriteBuffer::default();
        state.take_out(&mut out);
        written += out.len();
    }
}

/// Only the last value of a SETTINGS frame takes effect, and streams are visited once per write, not once per value or frame.
#[test]
fn repeated_initial_windows_visit_each_stream_once() {
    // None of the values lets a stream send.
    let values = |_| initial_window((0..2_730).map(|i| i % 2));
    for frames in [1, 1_000] {
        let mut state = blocked(5);
        apply(&mut state, (0..frames).map(values)).unwrap();
        assert_eq!(state.streams.visits.take(), 0, "{frames} frames");
        assert_eq!(write(&mut state), frames * FRAME_HEADER_LEN, "acknowledgements only");
        assert!(state.streams.visits.take() <= 2 * OPEN, "{frames} frames");
    }
    // Each stream may send one byte at times, and at last none.
    let mut state = blocked(0);
    apply(&mut state, (0..1_000).map(|_| initial_window([0, 1, 0, 1]))).unwrap();
    apply(&mut state, [initial_window([0])]).unwrap();
    assert_eq!(write(&mut state), 1_001 * FRAME_HEADER_LEN);
    assert!(state.streams.visits.take() <= 8 * OPEN);
}

/// Waker that records that it was woken.
#[derive(Default)]
struct WakeFlag {
    is_woken: AtomicBool,
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Relaxed);
    }
}

/// A higher initial window resumes the streams that wait for it: data that is queued, and writers that wait for room.
#[test]
fn higher_initial_window_resumes_blocked_streams() {
    let mut state = blocked(5);
    let idle = open(&mut state, false);
    apply(&mut state, [initial_window([0])]).unwrap();
    let flag = Arc::new(WakeFlag::default());
    let waker = Waker::from(flag.clone());
    let cx = Context::from_waker(&waker);
    assert!(state.poll_capacity(idle, &cx).is_pending());
    apply(&mut state, [initial_window([15])]).unwrap();
    let mut wake = Vec::new();
    state.fill_write_buffer(&mut wake);
    wake.into_iter().for_each(Waker::wake);
    assert!(flag.is_woken.load(Ordering::Relaxed));
    assert!(state.poll_capacity(idle, &cx).is_ready());
    assert!(write(&mut state) >= OPEN * (FRAME_HEADER_LEN + 10), "all that was queued");
    let send_queue = (state.send_queue.len(), state.streams.blocked_at(0));
    assert_eq!(send_queue, (0, None), "no stream waits");
}

/// Streams that end while they wait for their window leave the list of blocked streams.
#[test]
fn ended_streams_do_not_stay_blocked() {
    let mut state = blocked(5);
    for id in 0..OPEN as u32 {
        let key = state.streams.find(2 * id + 1).unwrap();
        if id % 2 == 0 {
            state.cancel(key, Reason::CANCEL);
        } else {
            apply(&mut state, [FrameEvent::Reset { stream: 2 * id + 1, reason: Reason::CANCEL }]).unwrap();
        }
        state.drop_send_half(key);
        state.drop_recv_half(key);
    }
    assert_eq!(state.streams.blocked_at(0), None);
    assert!(!state.streams.has_open());
    // Slots are used again, and block again.
    for _ in 0..10 {
        let key = open(&mut state, false);
        state.send_data(key, vec![0; 15].into(), true).unwrap();
    }
    write(&mut state);
    apply(&mut state, [initial_window([15])]).unwrap();
    assert!(write(&mut state) > 10 * (FRAME_HEADER_LEN + 10));
}

/// A window above 2^31-1 is an error of the connection (RFC 9113, section 6.9.2), exactly when a stream has it.
#[test]
fn initial_window_that_overflows_a_stream_is_refused() {
    let most = u32::MAX >> 1;
    let mut state = blocked(5);
    // Sent bytes count against the window: those streams have 10 more than the initial window.
    apply(&mut state, [FrameEvent::WindowUpdate { stream: 1, increment: 15 }]).unwrap();
    assert_eq!(apply(&mut state, [initial_window([most - 10])]), Ok(()));
    assert_eq!(apply(&mut state, [initial_window([most - 9])]), Err(Reason::FLOW_CONTROL_ERROR));
    // A stream that has ended does not count, nor does a window that was used since.
    let mut state = blocked(5);
    apply(&mut state, [FrameEvent::WindowUpdate { stream: 1, increment: 1_000 }]).unwrap();
    apply(&mut state, [FrameEvent::Reset { stream: 1, reason: Reason::CANCEL }]).unwrap();
    apply(&mut state, [FrameEvent::WindowUpdate { stream: 3, increment: 15 }]).unwrap();
    write(&mut state);
    assert_eq!(apply(&mut state, [initial_window([most])]), Ok(()));
}

/// The exact check of all streams is limited: a peer that has it made again and again is refused.
#[test]
fn overflow_checks_are_limited() {
    let most = u32::MAX >> 1;
    let mut state = blocked(5);
    let mut checked = Ok(());
    for id in 0..OPEN as u32 {
        let stream = 2 * id + 1;
        let events = [
            initial_window([0]),
            FrameEvent::WindowUpdate { stream, increment: 1_000_000 },
            FrameEvent::Reset { stream, reason: Reason::CANCEL },
            initial_window([most]),
        ];
        checked = apply(&mut state, events);
        if checked.is_err() {
            break;
        }
    }
    assert_eq!(checked, Err(Reason::ENHANCE_YOUR_CALM));
    assert!(state.streams.visits.take() < 50 * OPEN);
}

/// GOAWAY visits only streams above its last stream id, and each of them once.
#[test]
fn repeated_goaways_visit_each_stream_once() {
    let mut state = blocked(5);
    let last = 2 * OPEN as u32 - 1;
    apply(&mut state, (0..10_000).map(|_| goaway(u32::MAX >> 1))).unwrap();
    apply(&mut state, (0..10_000).map(|_| goaway(last))).unwrap();
    assert!(state.streams.visits.take() < 10);
    apply(&mut state, (0..OPEN as u32).map(|id| goaway(last - 2 * id))).unwrap();
    assert!(state.streams.visits.take() <= 8 * OPEN);
    assert!(state.streams.find(1).is_some() && state.streams.find(3).is_none());
    assert_eq!(apply(&mut state, [goaway(3)]), Err(Reason::PROTOCOL_ERROR), "RFC 9113, section 6.8");
    // The end of the connection visits those that are left.
    for _ in 0..1_000 {
        state.fail(&Error::Closed, &mut Vec::new());
    }
    assert!(state.streams.visits.take() < 10);

    // Few open streams among many ids: only the open streams are visited.
    let mut state = ConnectionState::new(Http2Settings::default());
    for _ in 0..10 * OPEN {
        let key = open(&mut state, true);
        state.drop_recv_half(key);
    }
    let key = open(&mut state, true);
    state.streams.visits.take();
    apply(&mut state, [goaway(1)]).unwrap();
    assert!(state.streams.visits.take() < 10);
    assert!(matches!(state.streams.get(key).error, Some(Error::GoAway(..))));
}

/// A peer that sends padding and does not read the frames that return it is refused.
#[test]
fn window_updates_for_padding_are_limited() {
    let mut state = ConnectionState::new(Http2Settings { stream_window: 100, ..Http2Settings::default() });
    open(&mut state, true);
    let head = HeaderBlock { status: Some(http::StatusCode::OK), ..HeaderBlock::default() };
    apply(&mut state, [FrameEvent::Headers { stream: 1, block: head, end_stream: false }]).unwrap();
    let padding =
        || FrameEvent::Data { stream: 1, chunk: Chunk::Owned(Vec::new()), flow: 90, end_stream: false };
    let flood = apply(&mut state, (0..10 * MAX_REPLIES).map(|_| padding()));
    assert_eq!(flood, Err(Reason::ENHANCE_YOUR_CALM));
    assert!(state.out.len() < 20 * MAX_REPLIES);
    // Without limit if the frames are written in between.
    let mut state = ConnectionState::new(Http2Settings { stream_window: 100, ..Http2Settings::default() });
    open(&mut state, true);
    let head = HeaderBlock { status: Some(http::StatusCode::OK), ..HeaderBlock::default() };
    apply(&mut state, [FrameEvent::Headers { stream: 1, block: head, end_stream: false }]).unwrap();
    for _ in 0..10 {
        apply(&mut state, (0..MAX_REPLIES / 2).map(|_| padding())).unwrap();
        write(&mut state);
    }
}

/// Windows beyond the maximum of HTTP/2 are lowered: the peer would reject them.
#[test]
fn own_windows_stay_within_the_protocol() {
    let most =
        Http2Settings { stream_window: u32::MAX, connection_window: u32::MAX, ..Http2Settings::default() };
    let mut state = ConnectionState::new(most);
    let most = (u32::MAX >> 1).to_be_bytes();
    assert!(state.out.tail().windows(6).any(|bytes| bytes == [&[0, 4][..], &most].concat()));
    let increment = ((u32::MAX >> 1) - DEFAULT_WINDOW).to_be_bytes();
    assert!(state.out.tail().ends_with(&increment));
}

/// Opens streams until the write buffer is full. Returns the id of the next stream.
fn fill_buffer(state: &mut ConnectionState) -> u32 {
    while state.out.len() <= MAX_OUT {
        open(state, true);
    }
    state.next_id
}

/// Writes all there is; returns the stream ids of the HEADERS frames.
fn written_heads(state: &mut ConnectionState) -> Vec<u32> {
    let mut bytes = Vec::new();
    loop {
        state.fill_write_buffer(&mut Vec::new());
        if state.out.is_empty() {
            break;
        }
        let mut out = WriteBuffer::default();
        state.take_out(&mut out);
        while !out.is_empty() {
            let len = out.with_slices(|slices| {
                for slice in slices {
                    bytes.extend_from_slice(slice);
                }
                slices.iter().map(|slice| slice.len()).sum()
            });
            out.advance(len);
        }
    }
    let mut rest = bytes.strip_prefix(frame::PREFACE).unwrap_or(&bytes);
    let mut heads = Vec::new();
    while let Some((head, extra_headers)) = rest.split_first_chunk::<FRAME_HEADER_LEN>() {
        let head = frame::FrameHeader::read(head);
        rest = &extra_headers[head.len..];
        if head.kind == kind::HEADERS {
            heads.push(head.stream);
        }
    }
    heads
}

/// Streams that wait for the write buffer are opened in the order of their ids. Cancelled streams are left out.
#[test]
fn waiting_streams_are_opened_in_order() {
    let mut state = ConnectionState::new(Http2Settings::default());
    let next = fill_buffer(&mut state);
    let cancelled = open(&mut state, true);
    open(&mut state, true);
    let mut writing = WriteBuffer::default();
    state.take_out(&mut writing);
    // The buffer has room, and there are streams that have waited for longer.
    open(&mut state, true);
    state.drop_recv_half(cancelled);
    assert!(state.out.is_empty(), "a stream that was not opened is not reset");
    assert_eq!(written_heads(&mut state), [next + 2, next + 4]);
    open(&mut state, true);
    assert_eq!(written_heads(&mut state), [next + 6]);
}

/// GOAWAY ends streams that were not opened, also with the highest last stream id: no further stream may be opened (RFC
/// 9113, section 6.8).
#[test]
fn goaway_ends_waiting_streams() {
    let mut state = ConnectionState::new(Http2Settings::default());
    let next = fill_buffer(&mut state);
    let key = open(&mut state, true);
    apply(&mut state, [goaway(u32::MAX >> 1)]).unwrap();
    assert!(matches!(state.streams.get(key).error, Some(Error::GoAway(..))));
    assert!(state.streams.find(1).is_some(), "a stream that was opened goes on");
    assert_eq!(written_heads(&mut state).last(), Some(&(next - 2)));
}

/// The end of the connection ends waiting streams.
#[test]
fn failed_connection_ends_waiting_streams() {
    let mut state = ConnectionState::new(Http2Settings::default());
    fill_buffer(&mut state);
    let key = open(&mut state, true);
    state.fail(&Error::Closed, &mut Vec::new());
    assert!(matches!(state.streams.get(key).error, Some(Error::Closed)));
    assert!(!state.streams.has_open());
    state.drop_recv_half(key);
    state.take_out(&mut WriteBuffer::default());
    assert_eq!(written_heads(&mut state), []);
}

/// A response to a request that was not sent is an error of the connection.
#[test]
fn waiting_streams_are_idle_for_the_peer() {
    let mut state = ConnectionState::new(Http2Settings::default());
    let next = fill_buffer(&mut state);
    open(&mut state, true);
    let head = || HeaderBlock { status: Some(http::StatusCode::OK), ..HeaderBlock::default() };
    let response = || FrameEvent::Headers { stream: next, block: head(), end_stream: true };
    assert_eq!(apply(&mut state, [response()]), Err(Reason::PROTOCOL_ERROR));
    write(&mut state);
    assert_eq!(apply(&mut state, [response()]), Ok(()));
}

/// The driver runs when the last stream of a connection that is to close was waiting and is cancelled. The user has a
/// time-out for closing that starts then.
#[test]
fn last_waiting_stream_leaves_work_for_the_driver() {
    let mut state = ConnectionState::new(Http2Settings::default());
    fill_buffer(&mut state);
    let key = open(&mut state, true);
    let mut writing = WriteBuffer::default();
    state.take_out(&mut writing);
    state.is_sender_dropped = true;
    let head = || HeaderBlock { status: Some(http::StatusCode::OK), ..HeaderBlock::default() };
    for at in 0..key {
        apply(&mut state, [FrameEvent::Headers { stream: 2 * at + 1, block: head(), end_stream: true }])
            .unwrap();
        state.drop_recv_half(at);
    }
    assert!(!state.has_work(), "the stream waits for what is being written");
    state.drop_recv_half(key);
    assert!(state.out.is_empty() && state.has_work());
}

/// A request that cannot be sent is refused at once, also while others wait. One that a later SETTINGS frame forbids fails then.
#[test]
fn waiting_requests_fit_the_header_list_of_the_peer() {
    let mut state = ConnectionState::new(Http2Settings::default());
    fill_buffer(&mut state);
    let key = open(&mut state, true);
    let headers = HeaderMap::from_iter([(http::header::UPGRADE, http::HeaderValue::from_static("h3"))]);
    let (method, extra_headers) = (&Method::POST, &[]);
    let request = RequestHeaders {
        method,
        is_https: false,
        authority: "a",
        path: "/",
        headers: &headers,
        extra_headers,
        end_stream: true,
    };
    assert!(matches!(state.send(&request), Err(Error::InvalidHeader(_))));
    apply(&mut state, [FrameEvent::Settings(vec![(setting::MAX_HEADER_LIST_SIZE, 10)])]).unwrap();
    assert!(matches!(
        state.send(&RequestHeaders { headers: &HeaderMap::new(), ..request }),
        Err(Error::HeaderListTooLarge { .. })
    ));
    let mut wake = Vec::new();
    assert!(state.poll_head(key, &Context::from_waker(Waker::noop())).is_pending());
    state.take_out(&mut WriteBuffer::default());
    state.fill_write_buffer(&mut wake);
    assert!(matches!(state.streams.get(key).error, Some(Error::HeaderListTooLarge { .. })));
    assert_eq!((wake.len(), state.out.len()), (1, 0));
}
