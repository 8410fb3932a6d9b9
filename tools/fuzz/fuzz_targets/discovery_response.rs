//! Parses arbitrary bytes as responses of both ADS variants.

#![no_main]

use evenkeel_fuzz::checks;
use evenkeel_xds::ads::XdsVariant;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for variant in [XdsVariant::StateOfTheWorld, XdsVariant::Delta] {
        checks::check_response(variant, bytes);
    }
});
