//! Following a mesh in a file.
//!
//! The file is read again and again and its text compared: that works over renames, links that are swapped and network
//! mounts alike, where notifications of the system each have gaps. A bad edit is told of and changes nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::mesh::read_text;
use crate::{Mesh, MeshErrors, Plane};

/// How often a file is looked at, unless one says otherwise.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A file that a plane follows, until this is dropped.
#[derive(Debug)]
pub struct Followed {
    task: JoinHandle<()>,
}

impl Plane {
    /// Serves the mesh in a file, and from then on what becomes of it. `tell` hears of every change: of the mesh that is
    /// served from then on, or of what is wrong with an edit, while the mesh before it is served on.
    ///
    /// Fails, and serves nothing new, if the file is wrong to begin with.
    pub async fn follow(
        &self,
        path: &Path,
        every: Duration,
        tell: impl FnMut(Result<&Mesh, &MeshErrors>) + Send + 'static,
    ) -> Result<Followed, MeshErrors> {
        // Nothing is known yet, so there is something new to see.
        let looked = look(path.to_owned(), None).await;
        let (text, mesh) = looked.ok_or_else(|| MeshErrors::whole("cannot be read").in_file(path))?;
        self.set_mesh(&mesh?);
        let follower = Follower { plane: self.clone(), path: path.to_owned(), text, tell };
        Ok(Followed { task: tokio::spawn(follower.run(every)) })
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a file has in it, or why it cannot be read.
type Text = Result<String, MeshErrors>;

struct Follower<F> {
    plane: Plane,
    path: PathBuf,
    /// What was there when it was last looked at.
    text: Text,
    tell: F,
}

impl<F: FnMut(Result<&Mesh, &MeshErrors>)> Follower<F> {
    async fn run(mut self, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let Some((text, mesh)) = look(self.path.clone(), Some(self.text.clone())).await else { continue };
            self.text = text;
            match mesh {
                Ok(mesh) => {
                    self.plane.set_mesh(&mesh);
                    (self.tell)(Ok(&mesh));
                }
                Err(errors) => (self.tell)(Err(&errors)),
            }
        }
    }
}

/// Reads a file, and the mesh in it if the text is not the known one. Reading may block, so it has a thread.
async fn look(path: PathBuf, known: Option<Text>) -> Option<(Text, Result<Mesh, MeshErrors>)> {
    let looked = tokio::task::spawn_blocking(move || {
        let text = read_text(&path).map_err(|errors| errors.in_file(&path));
        if known.as_ref() == Some(&text) {
            return None;
        }
        let mesh =
            text.clone().and_then(|text| Mesh::from_yaml(&text).map_err(|errors| errors.in_file(&path)));
        Some((text, mesh))
    });
    looked.await.ok().flatten()
}
