//! Following a mesh in a file.
//!
//! The file is read again and again and its text compared: that works over renames, links that are swapped and network
//! mounts alike, where notifications of the system each have gaps. A bad edit is told of and changes nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::mesh::read_text;
use crate::{Mesh, MeshErrors, SnapshotCache};

/// How often a file is looked at, unless one says otherwise.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A file that a plane follows, until this is dropped.
#[derive(Debug)]
pub struct MeshWatchGuard {
    task: JoinHandle<()>,
}

impl SnapshotCache {
    /// Serves the mesh in a file, and from then on what becomes of it. `on_change` hears of every change: of the mesh that is
    /// served from then on, or of what is wrong with an edit, while the mesh before it is served on.
    ///
    /// Fails, and serves nothing new, if the file is wrong to begin with.
    pub async fn watch_file(
        &self,
        path: &Path,
        interval: Duration,
        on_change: impl FnMut(Result<&Mesh, &MeshErrors>) + Send + 'static,
    ) -> Result<MeshWatchGuard, MeshErrors> {
        // Nothing is known yet, so there is something new to see.
        let read = read_if_changed(path.to_owned(), None).await;
        let (text, mesh) = read.ok_or_else(|| MeshErrors::of_file("cannot be read").in_file(path))?;
        self.set_mesh(&mesh?);
        let follower = MeshFileWatcher { cache: self.clone(), path: path.to_owned(), text, on_change };
        Ok(MeshWatchGuard { task: tokio::spawn(follower.run(interval)) })
    }
}

impl Drop for MeshWatchGuard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a file has in it, or why it cannot be read.
type FileText = Result<String, MeshErrors>;

struct MeshFileWatcher<F> {
    cache: SnapshotCache,
    path: PathBuf,
    /// What was there when it was last looked at.
    text: FileText,
    on_change: F,
}

impl<F: FnMut(Result<&Mesh, &MeshErrors>)> MeshFileWatcher<F> {
    async fn run(mut self, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            let Some((text, mesh)) = read_if_changed(self.path.clone(), Some(self.text.clone())).await else {
                continue;
            };
            self.text = text;
            match mesh {
                Ok(mesh) => {
                    self.cache.set_mesh(&mesh);
                    (self.on_change)(Ok(&mesh));
                }
                Err(errors) => (self.on_change)(Err(&errors)),
            }
        }
    }
}

/// Reads a file, and the mesh in it if the text is not the known one. Reading may block, so it has a thread.
async fn read_if_changed(
    path: PathBuf,
    known: Option<FileText>,
) -> Option<(FileText, Result<Mesh, MeshErrors>)> {
    let read = tokio::task::spawn_blocking(move || {
        let text = read_text(&path).map_err(|errors| errors.in_file(&path));
        if known.as_ref() == Some(&text) {
            return None;
        }
        let mesh =
            text.clone().and_then(|text| Mesh::from_yaml(&text).map_err(|errors| errors.in_file(&path)));
        Some((text, mesh))
    });
    read.await.ok().flatten()
}
