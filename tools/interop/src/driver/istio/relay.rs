//! Unix socket in place of Istio's agent: it forwards each connection to istiod's port.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpStream, UnixListener};
use tokio::task::JoinHandle;

use crate::driver::{Failure, Result};

/// Socket that forwards to a port on loopback until dropped.
pub(super) struct SocketRelay {
    path: PathBuf,
    accepting: JoinHandle<()>,
}

impl SocketRelay {
    pub(super) fn start(path: PathBuf, port: u16) -> Result<SocketRelay> {
        let listener = UnixListener::bind(&path)
            .map_err(|error| Failure::new(format!("no socket at {}: {error}", path.display())))?;
        let accepting = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Ok(SocketRelay { path, accepting })
    }

    /// Returns the URI as Istio's agent writes it: `unix:///` and the path without its first slash.
    pub(super) fn uri(&self) -> String {
        let path = self.path.strip_prefix(Path::new("/")).unwrap_or(&self.path);
        format!("unix:///{}", path.display())
    }
}

impl Drop for SocketRelay {
    fn drop(&mut self) {
        self.accepting.abort();
        let _ = fs::remove_file(&self.path);
    }
}
