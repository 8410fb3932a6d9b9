//! Generates committed code from `.proto` files without `protoc`: the messages of `evenkeel-proto`, and the
//! services that `testkit`, `interop` and `examples` serve or call. Published services use the messages of
//! `evenkeel-proto`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use prost::Message;
use prost_types::FileDescriptorSet;

/// Services of published packages for tests, by file, with the side to generate.
const OF_TESTKIT: &[(&str, Side)] =
    &[("envoy/service/status/v3/csds.proto", Side::Client), ("xds/service/orca/v3/orca.proto", Side::Server)];

/// Services of published packages for the interop driver.
const OF_INTEROP: &[(&str, Side)] = &[("envoy/service/status/v3/csds.proto", Side::Client)];

#[derive(Clone, Copy)]
enum Side {
    Client,
    Server,
    Both,
}

/// Folder of committed code, with its expected contents by file name.
pub struct Output {
    /// Folder with generated files only.
    pub folder: PathBuf,
    /// Files that the generator writes.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Generates all committed code.
pub fn generate() -> Result<Vec<Output>, Box<dyn std::error::Error>> {
    Ok(vec![
        Output { folder: proto_crate().join("src/generated"), files: messages()? },
        Output {
            folder: testkit().join("src/net/generated"),
            files: services(&testkit(), OF_TESTKIT, false)?,
        },
        Output { folder: interop().join("src/generated"), files: services(&interop(), OF_INTEROP, false)? },
        Output { folder: examples().join("src/generated"), files: services(&examples(), &[], true)? },
    ])
}

/// Compiles every `.proto` file of `evenkeel-proto`. Comments are dropped, so the descriptors are the same on
/// every machine.
pub fn descriptors() -> Result<FileDescriptorSet, protox::Error> {
    compile(&proto_crate().join("proto"))
}

fn messages() -> Result<BTreeMap<String, Vec<u8>>, Box<dyn std::error::Error>> {
    let set = descriptors()?;
    let mut bare = set.clone();
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    let mut files = written("messages", |out| {
        prost_build::Config::new()
            .enable_type_names()
            .type_name_domain(["."], "type.googleapis.com")
            .btree_map(["."])
            .include_file("mod.rs")
            .out_dir(out)
            .compile_fds(set)
    })?;
    files.insert("descriptors.bin".to_owned(), bare.encode_to_vec());
    Ok(files)
}

/// Generates the services of a package itself, and those of published packages. With `transport` the package's own
/// clients have a method `connect` for tonic's channel, as with tonic's default features.
fn services(
    package: &Path,
    of_published: &[(&str, Side)],
    transport: bool,
) -> Result<BTreeMap<String, Vec<u8>>, Box<dyn std::error::Error>> {
    let published = descriptors()?;
    let own = compile(&package.join("proto"))?;
    Ok(written("services", |out| {
        for (name, side) in of_published {
            let file = published.file.iter().find(|file| file.name() == *name);
            let file = file.ok_or_else(|| io::Error::other(format!("evenkeel-proto has no {name}")))?;
            write_services(FileDescriptorSet { file: vec![file.clone()] }, *side, false, out)?;
        }
        write_services(own, Side::Both, transport, out)
    })?)
}

/// Generates services. Packages under `envoy` and `xds` get no messages: those are in `evenkeel-proto`.
fn write_services(set: FileDescriptorSet, side: Side, transport: bool, out: &Path) -> io::Result<()> {
    tonic_prost_build::configure()
        .build_client(!matches!(side, Side::Server))
        .build_server(!matches!(side, Side::Client))
        .build_transport(transport)
        .extern_path(".envoy", "::evenkeel_proto::envoy")
        .extern_path(".xds", "::evenkeel_proto::xds")
        .btree_map(".")
        .out_dir(out)
        .compile_fds(set)
}

fn proto_crate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/evenkeel-proto")
}

fn testkit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testkit")
}

fn interop() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop")
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn compile(root: &Path) -> Result<FileDescriptorSet, protox::Error> {
    let mut files = Vec::new();
    collect(root, &mut files).map_err(protox::Error::new)?;
    files.sort();
    protox::compile(files, [root])
}

/// Returns the files that `write` creates in a temporary folder.
fn written(name: &str, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let scratch = std::env::temp_dir().join(format!("evenkeel-protogen-{name}-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let done = write(&scratch).and_then(|()| read_all(&scratch));
    fs::remove_dir_all(&scratch)?;
    done
}

/// Returns the files of a folder by name.
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
