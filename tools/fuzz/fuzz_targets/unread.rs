//! A server that keeps to the protocol, and a client that leaves streams unread.

#![no_main]

use evenkeel_fuzz::http2::check_unread_streams;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_unread_streams(bytes));
