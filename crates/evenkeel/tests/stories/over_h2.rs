//! The channel's stories once more, with the crate `h2` as the HTTP/2 implementation.
//!
//! The same program runs again as a process of its own: what differs is an environment variable that [`builder`](crate::builder)
//! reads. A difference between the implementations that an application could see fails a story. Where `h2` chooses another error
//! code than RFC 9113 names, or does not honour the peer's header list size, the story gives the reason.

use std::env;
use std::process::Command;

use crate::HTTP2_VARIABLE;

#[test]
fn the_stories_hold_over_h2() {
    let program = env::current_exe().unwrap();
    let output =
        Command::new(program).env(HTTP2_VARIABLE, "h2").args(["--skip", "over_h2::"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("test wire::"), "the stories were run: {text}");
}
