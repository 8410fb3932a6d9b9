//! Runs the command as a process with arguments, files and pipes.
//!
//! [`evenkeel`] runs it to completion. [`RunningCommand`] runs until it is stopped, and its output is read
//! line by line. A [`TempFolder`] holds the files of a test and is removed on drop. Every wait has a bound
//! that only a failure reaches.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Maximum wait. Only a failing test reaches it.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);

/// Exit code and output of a run.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the command to completion.
pub(crate) fn evenkeel<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> CommandOutput {
    let output = command(args).output().expect("the command starts");
    CommandOutput { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// Runs the command to completion with this text as its standard input.
pub(crate) fn evenkeel_with_input<S: AsRef<OsStr>>(
    args: impl IntoIterator<Item = S>,
    input: &str,
) -> CommandOutput {
    let mut command = command(args);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the command starts");
    let mut stdin = child.stdin.take().expect("it was piped");
    // Fails if the command has exited. The output shows why.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    CommandOutput { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// Returns the command with these arguments, without standard input and without inherited settings.
pub(crate) fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(args).stdin(Stdio::null());
    for setting in ["NO_COLOR", "GRPC_XDS_BOOTSTRAP", "GRPC_XDS_BOOTSTRAP_CONFIG"] {
        command.env_remove(setting);
    }
    command
}

impl CommandOutput {
    /// Asserts the exit code. The failure message contains the whole output.
    #[track_caller]
    pub(crate) fn ends_with(self, code: i32) -> CommandOutput {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Parses standard output as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in:\n{}", self.stdout))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the command writes UTF-8")
}

/// Temporary folder for the files of a test.
pub(crate) struct TempFolder(tempfile::TempDir);

impl TempFolder {
    pub(crate) fn new() -> TempFolder {
        TempFolder(tempfile::tempdir().expect("a folder for the test's files"))
    }

    /// Writes or replaces a file and returns its path. Its readers never see an incomplete text.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let (path, written) = (self.path(name), self.path(&format!("{name}.written")));
        std::fs::write(&written, text).expect("the file can be written");
        std::fs::rename(&written, &path).expect("the file can be replaced");
        path.into_os_string().into_string().expect("the path is UTF-8")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Running command. It is killed on drop.
pub(crate) struct RunningCommand {
    child: Child,
    lines: Receiver<String>,
    /// Lines read so far, for failure messages.
    seen: Vec<String>,
}

impl RunningCommand {
    /// Starts the command. It inherits the test's standard error.
    pub(crate) fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> RunningCommand {
        let mut command = command(args);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        let stdout = child.stdout.take().expect("it was piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        RunningCommand { child, lines, seen: Vec::new() }
    }

    /// Returns the next line of standard output that contains the text. Lines before it are skipped.
    #[track_caller]
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        let [line] = self.lines_with([text]);
        line
    }

    /// Returns the next lines that contain these texts, in any order. Other lines are skipped.
    #[track_caller]
    pub(crate) fn lines_with<const N: usize>(&mut self, texts: [&str; N]) -> [String; N] {
        let end = Instant::now() + MAX_WAIT;
        let mut found = [const { None }; N];
        while let Some(missing) = found.iter().position(Option::is_none) {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    let wanted = (0..N).find(|i| found[*i].is_none() && line.contains(texts[*i]));
                    if let Some(wanted) = wanted {
                        found[wanted] = Some(line);
                    }
                }
                Err(why) => {
                    let ended = if why == RecvTimeoutError::Disconnected { "it ended: " } else { "" };
                    let (text, seen) = (texts[missing], self.seen.join("\n"));
                    panic!("{ended}no line with {text:?}; there were:\n{seen}")
                }
            }
        }
        found.map(Option::unwrap_or_default)
    }

    /// Returns the lines read so far.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.seen.iter().map(String::as_str)
    }

    /// Sends a signal by name, such as `INT` or `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("there is a kill command");
        assert!(sent.success(), "the command still runs");
    }

    /// Waits for the process to exit.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + MAX_WAIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            assert!(Instant::now() < end, "it does not end; there were:\n{}", self.seen.join("\n"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // Fails if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command with a standard output whose reader is already closed. Returns the exit code and standard
/// error.
pub(crate) fn without_reader<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command(args).stdout(writer).stderr(Stdio::piped()).output().expect("the command starts");
    (output.status.code(), text(&output.stderr))
}

/// Runs the command and closes its standard output after the first line, as `head -1` does. Returns that
/// line, the exit code and standard error.
pub(crate) fn first_line<S: AsRef<OsStr>>(
    args: impl IntoIterator<Item = S>,
) -> (String, Option<i32>, String) {
    let mut command = command(args);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut line = String::new();
    {
        let mut stdout = BufReader::with_capacity(1, child.stdout.take().expect("it was piped"));
        stdout.read_line(&mut line).expect("a line");
    }
    let mut stderr = String::new();
    child.stderr.take().expect("it was piped").read_to_string(&mut stderr).expect("UTF-8");
    let status = child.wait().expect("it ends");
    (line, status.code(), stderr)
}
