//! Input files of the commands. The path `-` is standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use evenkeel_control::Mesh;

use crate::ui::CliError;

/// Maximum number of bytes read: one more than a mesh may have, so that its parser reports the size.
const MAX_BYTES: u64 = (32 << 20) + 1;

/// Returns true if the path stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the name of an input for messages.
pub(crate) fn name(path: &Path) -> String {
    if is_stdin(path) { "<stdin>".to_owned() } else { path.display().to_string() }
}

/// Reads the text of a file or of standard input.
pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = if is_stdin(path) {
        io::stdin().lock().take(MAX_BYTES).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text))
    };
    match read {
        Ok(_) => Ok(text),
        Err(error) => Err(CliError::usage(format!("{}: cannot be read: {error}", name(path)))),
    }
}

/// Reads a mesh from a file or from standard input. The error has one line per problem.
pub(crate) fn mesh(path: &Path) -> Result<Mesh, CliError> {
    if !is_stdin(path) {
        return Mesh::load(path).map_err(|errors| CliError::usage(errors.to_string()));
    }
    let text = read(path)?;
    Mesh::from_yaml(&text).map_err(|errors| {
        let lines = errors.iter().cloned().map(|mut error| {
            error.file = Some(name(path));
            error.to_string()
        });
        CliError::usage(lines.collect::<Vec<_>>().join("\n"))
    })
}
