//! Parses arbitrary bytes as a route configuration.

#![no_main]

use std::sync::LazyLock;

use evenkeel_fuzz::checks::Resources;
use evenkeel_xds::resource::ResourceType;
use libfuzzer_sys::fuzz_target;

static RESOURCES: LazyLock<Resources> = LazyLock::new(Resources::new);

fuzz_target!(|bytes: &[u8]| {
    RESOURCES.check(ResourceType::RouteConfig, bytes);
});
