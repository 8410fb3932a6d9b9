//! Writes the first corpus of every target that reads resources.

use std::{fs, io, path::Path};

use evenkeel_fuzz::checks;
use evenkeel_xds::resource::ResourceType;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (kind, target) in
        ResourceType::ALL.into_iter().zip(["listener", "route_config", "cluster", "endpoints"])
    {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        for (i, seed) in checks::seeds(kind).into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{i}")), seed)?;
        }
    }
    Ok(())
}
