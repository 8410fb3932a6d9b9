//! Parses arbitrary bytes as a bootstrap.

#![no_main]

use evenkeel_fuzz::checks::check_bootstrap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_bootstrap(bytes));
