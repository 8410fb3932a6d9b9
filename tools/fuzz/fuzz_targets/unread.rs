//! Connects a conforming server to a client that does not read some streams.

#![no_main]

use evenkeel_fuzz::http2::check_unread_streams;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_unread_streams(bytes));
