//! `cargo run -p protogen` writes the generated code of `evenkeel-proto`.

use std::error::Error;
use std::fs;

fn main() -> Result<(), Box<dyn Error>> {
    let files = protogen::generate()?;
    let folder = protogen::generated();
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for (name, contents) in &files {
        fs::write(folder.join(name), contents)?;
    }
    println!("{} files written", files.len());
    Ok(())
}
