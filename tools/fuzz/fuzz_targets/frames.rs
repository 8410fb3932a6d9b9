//! Sends frames of arbitrary types, flags and payloads.

#![no_main]

use evenkeel_fuzz::http2::check_frames;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_frames(bytes));
