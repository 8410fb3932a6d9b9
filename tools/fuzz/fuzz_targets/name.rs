//! Parses arbitrary bytes as resource names.

#![no_main]

use evenkeel_fuzz::checks::check_name;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_name(bytes));
