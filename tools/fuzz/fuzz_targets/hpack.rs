//! Sends arbitrary bytes as header blocks.

#![no_main]

use evenkeel_fuzz::http2::check_header_blocks;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_header_blocks(bytes));
