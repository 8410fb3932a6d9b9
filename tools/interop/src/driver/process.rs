//! Running program: its standard output by line, the end of its standard error for failures, and its exit.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Failure, PATIENCE, Program, Result};
use crate::sync::lock;

/// Maximum number of stderr lines in a failure.
const TOLD_LINES: usize = 12;

/// gRPC's environment variables, which programs must not inherit.
const SETTINGS: [&str; 4] =
    ["GRPC_XDS_BOOTSTRAP", "GRPC_XDS_BOOTSTRAP_CONFIG", "GRPC_TRACE", "GRPC_VERBOSITY"];

/// Running program. It is killed on drop.
pub struct Process {
    what: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
    complaints: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Starts a program with these flags and environment variables.
    pub fn start(program: &Program, flags: &[String], variables: &[(&str, &str)]) -> Result<Process> {
        let flags = [&program.flags, flags].concat();
        let what = format!("{} {}", program.path.display(), flags.join(" "));
        let mut command = Command::new(&program.path);
        for name in SETTINGS {
            command.env_remove(name);
        }
        command.args(&flags).envs(variables.iter().copied()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| Failure::new(format!("{what} could not be started: {error}")))?;
        let complaints = Arc::<Mutex<VecDeque<String>>>::default();
        let (sender, lines) = mpsc::unbounded_channel();
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(each_line(stdout, move |line| {
                let _ = sender.send(line);
            }));
        }
        if let Some(stderr) = child.stderr.take() {
            let kept = complaints.clone();
            tokio::spawn(each_line(stderr, move |line| {
                let mut kept = lock(&kept);
                if kept.len() == TOLD_LINES {
                    kept.pop_front();
                }
                kept.push_back(line);
            }));
        }
        let stdin = child.stdin.take();
        Ok(Process { what, child, stdin, lines, complaints })
    }

    /// Returns the rest of the next line with this prefix. Lines before it are skipped.
    pub async fn line(&mut self, beginning: &str) -> Result<String> {
        let find = async {
            while let Some(line) = self.lines.recv().await {
                if let Some(rest) = line.strip_prefix(beginning) {
                    return Some(rest.trim().to_owned());
                }
            }
            None
        };
        match timeout(PATIENCE, find).await {
            Ok(Some(rest)) => Ok(rest),
            Ok(None) => Err(self.failure(&format!("ended without a line {beginning:?}"))),
            Err(_) => Err(self.failure(&format!("wrote no line {beginning:?}"))),
        }
    }

    /// Returns the lines since the last read that contain this text, and drops all others.
    pub fn lines_with(&mut self, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        while let Ok(line) = self.lines.try_recv() {
            if line.contains(text) {
                found.push(line);
            }
        }
        found
    }

    /// Returns the port that the program reports.
    pub async fn port(&mut self) -> Result<u16> {
        let text = self.line("listening on ").await?;
        text.parse().map_err(|_| self.failure(&format!("printed the invalid port {text:?}")))
    }

    /// Writes a line to its standard input.
    pub async fn write(&mut self, line: &str) -> Result {
        let Some(stdin) = &mut self.stdin else { return Err(self.failure("reads nothing")) };
        let written = async {
            stdin.write_all(line.as_bytes()).await?;
            stdin.write_all(b"\n").await?;
            stdin.flush().await
        };
        written.await.map_err(|error| self.failure(&format!("does not read: {error}")))
    }

    /// Returns true if it is still running.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it with SIGKILL.
    pub async fn kill(&mut self) -> Result {
        self.child.kill().await.map_err(|error| self.failure(&format!("could not be killed: {error}")))
    }

    /// Waits for its exit.
    pub async fn end(&mut self) -> Result<ExitStatus> {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(error)) => Err(self.failure(&format!("cannot be awaited: {error}"))),
            Err(_) => Err(self.failure("does not end")),
        }
    }

    /// Returns a failure with this text and the end of its stderr.
    pub fn failure(&self, words: &str) -> Failure {
        let complaints = lock(&self.complaints);
        let told: Vec<_> = complaints.iter().map(|line| format!("\n    {line}")).collect();
        Failure::new(format!("{} {words}{}", self.what, told.concat()))
    }
}

async fn each_line(stream: impl AsyncRead + Unpin, mut with: impl FnMut(String)) {
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        with(line);
    }
}
