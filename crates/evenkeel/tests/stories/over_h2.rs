//! Runs the tests of this binary with the crate `h2` as HTTP/2 implementation.
//!
//! The same binary runs as a child process with an environment variable that [`builder`](crate::builder)
//! reads. A difference that an application could observe fails a test. `h2` sometimes uses another error code
//! than RFC 9113 names, and does not honour the peer's header list size. The affected tests state the reason.

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
