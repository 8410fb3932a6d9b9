//! From the `.proto` files of `evenkeel-proto` to its generated code, without `protoc`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use prost::Message;
use prost_types::FileDescriptorSet;

/// The folder of `evenkeel-proto`.
pub fn proto_crate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/evenkeel-proto")
}

/// The folder that the generated files are committed in.
pub fn generated() -> PathBuf {
    proto_crate().join("src/generated")
}

/// Compiles every `.proto` file of the crate. Comments are not kept: the descriptors are the same on every machine.
pub fn descriptors() -> Result<FileDescriptorSet, protox::Error> {
    let root = proto_crate().join("proto");
    let mut files = Vec::new();
    collect(&root, &mut files).map_err(protox::Error::new)?;
    files.sort();
    protox::compile(files, [root])
}

/// What `src/generated` has to hold: contents by file name.
pub fn generate() -> Result<BTreeMap<String, Vec<u8>>, Box<dyn std::error::Error>> {
    let set = descriptors()?;
    let mut bare = set.clone();
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    let scratch = std::env::temp_dir().join(format!("evenkeel-protogen-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let done = write_code(set, &scratch).and_then(|()| read_all(&scratch));
    fs::remove_dir_all(&scratch)?;
    let mut files = done?;
    files.insert("descriptors.bin".to_owned(), bare.encode_to_vec());
    Ok(files)
}

fn write_code(set: FileDescriptorSet, out: &Path) -> io::Result<()> {
    prost_build::Config::new()
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .btree_map(["."])
        .include_file("mod.rs")
        .out_dir(out)
        .compile_fds(set)
}

/// The files of a folder by name.
pub fn read_all(folder: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
    }
    Ok(files)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
