//! Watches a file that contains a mesh.
//!
//! The file is read at an interval, and its text compared. That works over renames, swapped links and network mounts
//! alike, where notifications of the operating system have gaps. An invalid edit is reported and changes nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::mesh::read_text;
use crate::{Mesh, MeshErrors, SnapshotCache};

/// Default interval at which a watched file is read.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Guard of a watched file. Dropping it stops the watch; the last valid mesh stays in the cache.
#[derive(Debug)]
pub struct MeshWatchGuard {
    task: JoinHandle<()>,
}

impl SnapshotCache {
    /// Serves the mesh in a file, and each later version of it.
    ///
    /// `on_change` gets every change: the mesh that is served from then on, or the errors of an invalid edit. After an
    /// invalid edit the cache serves the last valid mesh.
    ///
    /// Returns an error, and leaves the cache unchanged, if the file is invalid to begin with.
    pub async fn watch_file(
        &self,
        path: &Path,
        interval: Duration,
        on_change: impl FnMut(Result<&Mesh, &MeshErrors>) + Send + 'static,
    ) -> Result<MeshWatchGuard, MeshErrors> {
        // Without a known text, the file counts as changed.
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

/// Text of a file, or the reason why it cannot be read.
type FileText = Result<String, MeshErrors>;

struct MeshFileWatcher<F> {
    cache: SnapshotCache,
    path: PathBuf,
    /// Result of the last read.
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
            // Stored for an invalid file too, so that its errors are reported once.
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

/// Reads a file. Returns `None` if its text equals `known`, otherwise the text and the mesh in it.
///
/// Reading may block, so it runs on a blocking thread.
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
