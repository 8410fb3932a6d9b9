//! `cargo run -p protogen` writes the generated code of `evenkeel-proto`, `testkit`, `interop` and `examples`.

use std::error::Error;
use std::fs;

fn main() -> Result<(), Box<dyn Error>> {
    for output in protogen::generate()? {
        if output.folder.exists() {
            fs::remove_dir_all(&output.folder)?;
        }
        fs::create_dir_all(&output.folder)?;
        for (name, contents) in &output.files {
            fs::write(output.folder.join(name), contents)?;
        }
        println!("{} files written to {}", output.files.len(), output.folder.display());
    }
    Ok(())
}
