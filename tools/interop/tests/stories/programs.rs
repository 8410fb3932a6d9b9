//! Runs the programs as drivers do: processes with flags, pipes and signals. Every wait has a bound that only
//! a failure reaches.

use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

/// Maximum wait. Only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Awaits a future, and panics after [`PATIENCE`] with the caller's location.
#[track_caller]
pub(crate) fn soon<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move { timeout(PATIENCE, what).await.unwrap_or_else(|_| panic!("nothing came of {place}")) }
}

/// Runs a program to completion. Returns its exit code, standard output and standard error.
pub(crate) async fn end_of(program: &str, flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program).args(flags).stdin(Stdio::null()).kill_on_drop(true).output();
    let Output { status, stdout, stderr } = soon(output).await.expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("it writes text");
    (status.code(), text(stdout), text(stderr))
}

/// Running interop server. It is killed on drop.
pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
}

impl Server {
    /// Starts it on a free port.
    pub(crate) async fn start(flags: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xds_interop_server"));
        command
            .arg("--port=0")
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().expect("it starts");
        let port = number_after("listening on ", &mut child.stdout).await;
        Server { port, child }
    }

    /// Waits for a log line with this prefix, and returns the number after it.
    pub(crate) async fn logs(&mut self, words: &str) -> u16 {
        number_after(words, &mut self.child.stderr).await
    }

    pub(crate) fn channel(&self) -> Channel {
        channel(self.port)
    }

    /// Sends SIGTERM and returns the exit code.
    pub(crate) async fn end(mut self) -> Option<i32> {
        terminate(&self.child).await;
        soon(self.child.wait()).await.expect("it can be waited for").code()
    }
}

/// Sends SIGTERM to a program.
pub(crate) async fn terminate(program: &Child) {
    let id = program.id().expect("it runs").to_string();
    let killed = Command::new("kill").args(["-TERM", &id]).status().await.expect("there is kill");
    assert!(killed.success());
}

pub(crate) fn channel(port: u16) -> Channel {
    Endpoint::new(format!("http://127.0.0.1:{port}")).expect("an address").connect_lazy()
}

/// Reads lines until one has this prefix, and returns the number after it.
async fn number_after(words: &str, output: &mut Option<impl AsyncRead + Unpin>) -> u16 {
    let mut lines = BufReader::new(output.as_mut().expect("it is piped")).lines();
    loop {
        let line = soon(lines.next_line()).await.expect("it writes text").expect("a further line");
        if let Some(number) = line.strip_prefix(words) {
            return number.parse().expect("a port");
        }
    }
}
