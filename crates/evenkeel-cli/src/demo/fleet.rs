//! Backend processes of the demo, which can be killed and restarted.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::ui::CliError;

/// Backend names, each with a capacity in calls per second.
pub(super) const BACKENDS: [(&str, u32); 5] =
    [("small-1", 100), ("small-2", 100), ("medium", 200), ("large", 400), ("huge", 800)];

/// One backend of the demo.
pub(super) struct DemoBackend {
    pub(super) name: &'static str,
    pub(super) capacity: u32,
    /// Listening address. It does not change across a restart.
    pub(super) address: SocketAddr,
    /// Killed on drop. If this process dies without running destructors, the child's standard input closes
    /// and it exits.
    process: Option<Child>,
}

impl DemoBackend {
    pub(super) async fn start(name: &'static str, capacity: u32) -> Result<DemoBackend, CliError> {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (process, address) = start(name, capacity, free).await?;
        Ok(DemoBackend { name, capacity, address, process: Some(process) })
    }

    /// Returns all backends in a stopped state, at 127.0.0.1:1000 and the following ports.
    #[cfg(test)]
    pub(super) fn stopped_all() -> Vec<DemoBackend> {
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let each = BACKENDS.into_iter().zip(1000..);
        each.map(|((name, capacity), port)| DemoBackend { name, capacity, address: at(port), process: None })
            .collect()
    }

    /// Kills the process with SIGKILL, so its connections close without a GOAWAY.
    pub(super) async fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Fails if the process has already exited.
            let _ = process.kill().await;
        }
    }

    /// Starts the backend again at its previous address.
    pub(super) async fn restart(&mut self) -> Result<(), CliError> {
        self.kill().await;
        let (process, _) = start(self.name, self.capacity, self.address).await?;
        self.process = Some(process);
        Ok(())
    }
}

async fn start(name: &str, capacity: u32, listen: SocketAddr) -> Result<(Child, SocketAddr), CliError> {
    let failed = |why: String| CliError::usage(format!("backend {name}: {why}"));
    let program =
        std::env::current_exe().map_err(|error| failed(format!("cannot find this program: {error}")))?;
    let mut process = Command::new(program)
        .args(["demo-backend", "--name", name])
        .args(["--capacity", &capacity.to_string()])
        .args(["--listen", &listen.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    let mut line = String::new();
    if let Some(output) = &mut process.stdout {
        BufReader::new(output).read_line(&mut line).await.map_err(|error| failed(error.to_string()))?;
    }
    let address = line.trim().parse().map_err(|_| failed("exited before it listened".to_owned()))?;
    Ok((process, address))
}
