//! Sends arbitrary bytes on a connection.

#![no_main]

use evenkeel_fuzz::http2;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    http2::check_connection(bytes, usize::MAX);
    http2::check_connection(bytes, 7);
});
