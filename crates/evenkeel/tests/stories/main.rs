//! Channels over real sockets, as an application uses them.

mod backends;
mod calls;
mod garbage;
mod load;
mod mesh;
mod out_of_band;
#[cfg(feature = "h2")]
mod over_h2;
mod wire;

use evenkeel::{Channel, ChannelBuilder};

/// Environment variable that selects the HTTP/2 implementation of a run.
const HTTP2_VARIABLE: &str = "EVENKEEL_STORIES_HTTP2";

/// Returns true if this run selects the crate `h2`.
fn is_over_h2() -> bool {
    std::env::var_os(HTTP2_VARIABLE).is_some_and(|value| value == "h2")
}

/// Returns a builder for a channel over the HTTP/2 implementation of this run.
fn builder(target: impl Into<String>) -> ChannelBuilder {
    let builder = Channel::builder(target);
    #[cfg(feature = "h2")]
    let builder = if is_over_h2() { builder.http2(evenkeel::Http2Implementation::H2) } else { builder };
    builder
}
