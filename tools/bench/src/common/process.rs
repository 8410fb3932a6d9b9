//! Processes of this program: servers that a driver starts and that end with it.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::Error;

/// Maximum wait for a line of a process. Processes have shorter limits of their own, with better errors.
const LIMIT: Duration = Duration::from_secs(120);

/// Child process that prints a line when it is ready, and may then print a line for each line that it gets. Dropping
/// it kills it.
pub(crate) struct WorkerProcess {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Words of the first line. A server prints its addresses there.
    pub(crate) addresses: Vec<String>,
}

impl WorkerProcess {
    /// Starts this program with other arguments.
    pub(crate) fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        WorkerProcess::run(Command::new(std::env::current_exe()?).args(arguments))
    }

    /// Runs a command that executes this program, possibly through another.
    pub(crate) fn run(command: &mut Command) -> Result<Self, Error> {
        WorkerProcess::run_within(command, LIMIT)
    }

    /// Starts a command and waits a limited time for its first line.
    pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<Self, Error> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut process = WorkerProcess { child, stdin, lines, addresses: Vec::new() };
        let first = process.line(limit)?;
        process.addresses = first.split_whitespace().map(str::to_owned).collect();
        Ok(process)
    }

    /// Returns the port of the first address.
    pub(crate) fn port(&self) -> Result<u16, Error> {
        let address = self.addresses.first().ok_or("a server printed no address")?;
        Ok(address.parse::<SocketAddr>()?.port())
    }

    /// Sends a line and returns the line that the process prints in response.
    pub(crate) fn ask(&mut self, request: &str) -> Result<String, Error> {
        self.ask_within(request, LIMIT)
    }

    /// Sends a line and waits a limited time for the response.
    pub(crate) fn ask_within(&mut self, request: &str, limit: Duration) -> Result<String, Error> {
        let sent = writeln!(self.stdin.as_mut().ok_or("no stdin")?, "{request}");
        // A write fails if the process has ended. Its error output has the reason.
        let line = self.line(limit).map_err(|error| format!("{request}: {error}"))?;
        sent?;
        Ok(line)
    }

    /// Sends a line and returns the numbers of the response.
    pub(crate) fn numbers<const N: usize>(&mut self, request: &str) -> Result<[u64; N], Error> {
        exactly(self.list(request)?, request)
    }

    /// Sends a line and returns the numbers of the response, however many.
    pub(crate) fn list(&mut self, request: &str) -> Result<Vec<u64>, Error> {
        parse_numbers(&self.ask(request)?)
    }

    /// Returns the next line. If the process has ended, the error has its error output.
    fn line(&mut self, limit: Duration) -> Result<String, Error> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(format!("not done after {} s", limit.as_secs()).into()),
            Err(RecvTimeoutError::Disconnected) => {
                drop(self.stdin.take());
                let errors = self.child.stderr.take().map(std::io::read_to_string).transpose()?;
                match errors.as_deref().map_or("", str::trim) {
                    "" => Err("the process ended without output".into()),
                    errors => Err(errors.into()),
                }
            }
        }
    }

    /// Waits for the process to exit and returns the rest of its output.
    pub(crate) fn finish(mut self) -> Result<String, Error> {
        drop(self.stdin.take());
        let rest: Vec<String> = self.lines.iter().collect();
        self.child.wait()?;
        Ok(rest.join("\n"))
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Its calls, if there are any, no longer count. Once it has ended, its connections are closed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end and returns the numbers that it prints.
pub(crate) fn printed_numbers<T>(command: &mut Command, name: &str) -> Result<Vec<T>, Error>
where
    T: FromStr<Err: Into<Error>>,
{
    let out = command.output()?;
    if !out.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&out.stderr).trim()).into());
    }
    parse_numbers(&String::from_utf8(out.stdout)?)
}

/// Parses numbers that are separated by spaces or line ends.
pub(crate) fn parse_numbers<T>(text: &str) -> Result<Vec<T>, Error>
where
    T: FromStr<Err: Into<Error>>,
{
    text.split_whitespace().map(|number| number.parse().map_err(Into::into)).collect()
}

/// Returns the numbers as an array, or an error if there are more or fewer.
pub(crate) fn exactly<T, const N: usize>(numbers: Vec<T>, name: &str) -> Result<[T; N], Error> {
    let found = numbers.len();
    numbers.try_into().map_err(|_| format!("{name}: expected {N} numbers, found {found}").into())
}

/// Waits until stdin closes. The parent holds the other end of the pipe, so the process never outlives it.
pub(crate) async fn until_stdin_ends() -> Result<(), Error> {
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    Ok(())
}

/// Builds a runtime for the current thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
