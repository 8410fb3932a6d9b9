//! Parses arbitrary bytes as load reports.

#![no_main]

use evenkeel_fuzz::reports;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    reports::check_load_report(bytes);
});
