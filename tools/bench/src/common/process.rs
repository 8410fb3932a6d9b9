//! Processes of this program: servers that a driver starts and that end with it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::Error;

/// Serving process of this program. It ends when its stdin closes, and so with its parent.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) addresses: Vec<String>,
}

impl Server {
    pub(crate) fn start(arguments: &[String]) -> Result<Self, Error> {
        Server::run(Command::new(std::env::current_exe()?).args(arguments))
    }

    /// Runs a command that executes this program, possibly through another.
    pub(crate) fn run(command: &mut Command) -> Result<Self, Error> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut line = String::new();
        // Byte by byte, so that later output stays in the pipe.
        BufReader::with_capacity(1, child.stdout.as_mut().ok_or("no stdout")?).read_line(&mut line)?;
        if line.is_empty() {
            let out = child.wait_with_output()?;
            return Err(String::from_utf8_lossy(&out.stderr).trim().into());
        }
        Ok(Self { child, addresses: line.split_whitespace().map(str::to_owned).collect() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Waits until stdin closes. The parent holds the other end of the pipe, so the process never outlives it.
pub(crate) async fn until_stdin_ends() -> Result<(), Error> {
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    Ok(())
}

pub(crate) fn parse(addresses: &[&str]) -> Result<Vec<SocketAddr>, Error> {
    Ok(addresses.iter().map(|address| address.parse()).collect::<Result<_, _>>()?)
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
