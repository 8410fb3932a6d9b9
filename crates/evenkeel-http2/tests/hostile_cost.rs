//! Bound on the work that a byte of a hostile server causes.
//!
//! Each scenario floods a connection that has 1,000 open streams. The instructions of the whole process are counted
//! by valgrind, and those of a run without the flood are subtracted. Instructions do not depend on the machine's
//! load, but on optimisation: they are counted in a build with the profile `counts` only. In other builds and without
//! valgrind the scenarios run uncounted, and the test prints the reason.

#[path = "common/memory_io.rs"]
mod memory_io;

use std::fmt::Write as _;
use std::process::Command;
use std::task::{Context, Waker};

use bytes::Bytes;
use evenkeel_http2::{Http2Settings, client};
use http::HeaderMap;

use self::memory_io::{MemoryIo, request};

/// Maximum number of instructions per byte, in a build with the profile `counts`. One limit holds for all scenarios, so
/// no kind of flood pays off. Header fields of four bytes cost the most, 300 to 430. Most frames cost 10 to 70.
const MAX_PER_BYTE: u64 = 600;

/// Number of open streams, each with data that waits for its window.
const STREAMS: usize = 1_000;

/// Approximate length of a flood.
const LENGTH: usize = 64 << 10;

/// Name of the variable that selects the scenario of a counted process.
const SELECTED: &str = "EVENKEEL_HOSTILE_SCENARIO";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let bytes = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(4, 0, 0, &entries.iter().flat_map(bytes).collect::<Vec<u8>>())
}

/// Frames of each flood; they are repeated to [`LENGTH`]. Stream 1 is open, stream 3 was reset by the server.
fn scenarios() -> Vec<(&'static str, Vec<u8>)> {
    let headers = |block: &[u8]| frame(1, 4, 3, &[&b"\x88"[..], block].concat());
    let continuations: Vec<u8> = (0..200).flat_map(|_| frame(9, 0, 3, b"")).collect();
    vec![
        ("window settings in one frame", settings(&[(4, 65_535), (4, 65_536)].repeat(1_300))),
        ("window settings, a frame each", [settings(&[(4, 65_535)]), settings(&[(4, 65_536)])].concat()),
        ("table settings in one frame", settings(&[(1, 0), (1, 4_096)].repeat(1_300))),
        ("empty settings", settings(&[])),
        ("pings", frame(6, 0, 0, b"12345678")),
        ("goaways", frame(7, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0])),
        ("window updates of a stream", frame(8, 0, 1, &[0, 0, 0, 1])),
        ("window updates of the connection", frame(8, 0, 0, &[0, 0, 0, 1])),
        ("window updates of a closed stream", frame(8, 0, 3, &[0, 0, 0, 1])),
        ("resets of a closed stream", frame(3, 0, 3, &[0, 0, 0, 8])),
        ("priorities", frame(2, 0, 1, &[0; 5])),
        ("unknown frames", frame(0x77, 0, 1, b"")),
        ("empty data", frame(0, 0, 1, b"")),
        ("data of one byte", frame(0, 0, 1, b"x")),
        ("padding", frame(0, 8, 1, &[0])),
        ("data of a closed stream", frame(0, 0, 3, b"x")),
        ("interim responses", frame(1, 4, 1, b"\x08\x03103")),
        ("indexed fields", headers(&[&b"\x40\x01a\x01b"[..], &[0xbe; 8_000]].concat())),
        ("literal fields", headers(&b"\x40\x01a\x00".repeat(2_000))),
        ("literal fields with indexed names", headers(&b"\x0f\x01\x01a".repeat(300))),
        // A string of 12,800 times `a`, Huffman-coded.
        (
            "coded strings",
            headers(&[&b"\x00\x01a\xff\xc1\x3d"[..], &b"\x18\xc6\x31\x8c\x63".repeat(1_600)].concat()),
        ),
        ("responses of a closed stream", headers(b"")),
        ("continuations", [frame(1, 0, 3, b"\x88"), continuations, frame(9, 4, 3, b"")].concat()),
    ]
}

/// Returns the bytes of a flood of these frames.
fn flood(frames: &[u8]) -> Vec<u8> {
    if frames.is_empty() { Vec::new() } else { frames.repeat(LENGTH.div_ceil(frames.len())) }
}

/// Opens the streams, and sends the flood. None of it ends the connection, so all of it is counted.
fn run(name: &str, frames: &[u8]) {
    let mut cx = Context::from_waker(Waker::noop());
    let (sender, mut driver) = client(Http2Settings::default());
    let headers = HeaderMap::new();
    let request = request(&headers, false);
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let (mut send, recv) = sender.send(&request).expect("the connection is open");
        // More than the window of a stream.
        send.send(Bytes::from_static(&[0; 100]), false).expect("the stream is open");
        streams.push((send, recv));
    }
    let begin = [settings(&[(4, 10)]), frame(1, 4, 1, b"\x88"), frame(3, 0, 3, &[0, 0, 0, 8])].concat();
    let script = [begin, flood(frames)].concat();
    let mut io = MemoryIo::new(&script);
    while !io.state().is_drained() {
        let polled = driver.poll(&mut io, &mut cx);
        assert!(polled.is_pending(), "{name}: {polled:?}");
    }
}

/// Runs every scenario, or the one that a counted process has selected.
#[test]
fn floods_run() {
    match std::env::var(SELECTED) {
        Ok(selected) => {
            let frames = scenarios().into_iter().find(|(name, _)| *name == selected);
            run(&selected, &frames.map(|(_, frames)| frames).unwrap_or_default());
        }
        Err(_) => scenarios().iter().for_each(|(name, frames)| run(name, frames)),
    }
}

/// Returns the instructions of a process that runs one scenario; `None` without valgrind.
fn instructions(scenario: &str) -> Option<u64> {
    let exe = std::env::current_exe().expect("a test has a program");
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(exe)
        .args(["--exact", "floods_run", "--test-threads=1"])
        .env(SELECTED, scenario)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}: {text}");
    let line = text.lines().find(|line| line.contains("refs:")).expect("cachegrind counts");
    let digits: String = line.rsplit(':').next()?.chars().filter(char::is_ascii_digit).collect();
    Some(digits.parse().expect("a number"))
}

/// Returns true if this program is in `counts/deps` of the target folder, where cargo writes tests with that profile.
fn is_counts_build() -> bool {
    std::env::current_exe().is_ok_and(|exe| exe.parent().is_some_and(|deps| deps.ends_with("counts/deps")))
}

#[test]
fn a_hostile_byte_costs_little() {
    if !is_counts_build() {
        eprintln!(
            "INSTRUCTIONS PER HOSTILE BYTE WERE NOT COUNTED: add `--profile counts -p evenkeel-http2 --test hostile_cost`"
        );
        return;
    }
    let Some(without) = instructions("none") else {
        eprintln!("INSTRUCTIONS PER HOSTILE BYTE WERE NOT COUNTED: valgrind is missing");
        return;
    };
    let mut table = String::new();
    let mut is_exceeded = false;
    for (name, frames) in scenarios() {
        let with = instructions(name).expect("valgrind is here");
        let per_byte = with.saturating_sub(without) / flood(&frames).len() as u64;
        is_exceeded |= per_byte > MAX_PER_BYTE;
        let _ = writeln!(table, "{per_byte:>6}  {name}");
    }
    println!("instructions per byte\n{table}");
    assert!(!is_exceeded, "more than {MAX_PER_BYTE} instructions per byte\n{table}");
}
