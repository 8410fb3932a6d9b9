//! Writes the seed inputs of every target to `seeds/`, which is committed. The corpora grow from them.

use std::{fs, io, path::Path};

use evenkeel_fuzz::checks;
use evenkeel_fuzz::http2::push_frame;
use evenkeel_xds::ads::XdsVariant;
use evenkeel_xds::resource::ResourceType;

fn main() -> io::Result<()> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let write = |target: &str, list: Vec<Vec<u8>>| -> io::Result<()> {
        let folder = seeds.join(target);
        fs::create_dir_all(&folder)?;
        for (i, seed) in list.into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{i}")), seed)?;
        }
        Ok(())
    };
    for (kind, target) in
        ResourceType::ALL.into_iter().zip(["listener", "route_config", "cluster", "endpoints"])
    {
        write(target, checks::seeds(kind))?;
    }
    let responses = [XdsVariant::StateOfTheWorld, XdsVariant::Delta]
        .into_iter()
        .flat_map(|variant| ResourceType::ALL.into_iter().map(move |kind| checks::response(variant, kind)));
    write("discovery_response", responses.collect())?;
    write("bootstrap", vec![BOOTSTRAP.into()])?;
    write("name", NAMES.iter().map(|name| name.as_bytes().to_vec()).collect())?;
    write("load_report", LOAD_REPORTS.iter().map(|report| report.to_vec()).collect())?;
    write("http2", vec![http2_responses()])?;
    write("frames", vec![frames()])?;
    write("hpack", HEADER_BLOCKS.iter().map(|block| block.to_vec()).collect())?;
    write("unread", vec![unread_steps()])
}

const BOOTSTRAP: &str = r#"{"xds_servers": [{"server_uri": "dns:///control.example.com:18000", "channel_creds": [{"type": "insecure"}],
    "server_features": ["xds_v3", "trusted_xds_server"]}], "node": {"id": "a", "locality": {"zone": "z"}},
    "authorities": {"x": {"xds_servers": []}}, "certificate_providers": {"default": {"plugin_name": "file_watcher",
    "config": {"certificate_file": "a", "private_key_file": "b", "ca_certificate_file": "c", "refresh_interval": "60s"}}}}"#;

const NAMES: [&str; 3] =
    ["orders", "xdstp://authority/envoy.config.listener.v3.Listener/a/b?x=1&y=2", "xdstp:///envoy.config.cluster.v3.Cluster/a%20b"];

/// Encoded `OrcaLoadReport` messages: one with a utilization, and one with named utilizations.
const LOAD_REPORTS: [&[u8]; 2] =
    [b"\x09\0\0\0\0\0\0\xe0\x3f", b"\x22\x0c\x0a\x01a\x11\0\0\0\0\0\0\xd0\x3f\x31\0\0\0\0\0\0\x59\x40"];

/// Header blocks with their lengths: literals with every kind of indexing, Huffman-coded strings, indices, a
/// table size update.
const HEADER_BLOCKS: [&[u8]; 3] = [
    b"\x1e\x40\x0ccontent-type\x10application/grpc\x01\xbe\x01\xbe",
    b"\x0e\x00\x01a\x01b\x10\x01c\x01d\x7e\x02xy\x04\x40\x01a\x00\x03\x20\xbe\xbf",
    b"\x0a\x5f\x87\x35\x23\x98\xac\x4c\x69\x7f\x40\x01",
];

/// SETTINGS, and responses to all three calls: in one piece, with an interim response, and without a body.
fn http2_responses() -> Vec<u8> {
    let mut out = Vec::new();
    push_frame(&mut out, 4, 0, 0, &[0, 4, 0, 1, 0, 0]);
    push_frame(&mut out, 8, 0, 0, &[0, 1, 0, 0]);
    push_frame(&mut out, 1, 4, 1, b"\x88\x40\x0ccontent-type\x10application/grpc");
    push_frame(&mut out, 0, 0, 1, b"\0\0\0\0\x05hello");
    push_frame(&mut out, 1, 5, 1, b"\x40\x0bgrpc-status\x010");
    push_frame(&mut out, 6, 0, 0, b"12345678");
    push_frame(&mut out, 1, 4, 3, b"\x08\x03103");
    push_frame(&mut out, 1, 0, 3, b"\x88\xbe");
    push_frame(&mut out, 9, 4, 3, b"");
    push_frame(&mut out, 0, 8, 3, b"\x02ab\0\0");
    push_frame(&mut out, 0, 1, 3, b"");
    push_frame(&mut out, 1, 5, 5, b"\x88\xbe");
    push_frame(&mut out, 7, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 0]);
    out
}

/// The same with the short frame headers of the target `frames`, and frames of the other types.
fn frames() -> Vec<u8> {
    let frames: [(u8, u8, u8, &[u8]); 9] = [
        (4, 0, 0, &[0, 4, 0, 1, 0, 0]),
        (8, 0, 1, &[0, 0, 1, 0]),
        (1, 4, 1, b"\x88\x40\x01a\x01b"),
        (0, 9, 1, b"\x01ab\0"),
        (1, 0x2c, 3, b"\x01\0\0\0\0\x09\x88\xbe\0"),
        (3, 0, 3, &[0, 0, 0, 8]),
        (2, 0, 5, &[0; 5]),
        (6, 0, 0, &[7; 8]),
        (7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]),
    ];
    let bytes = |(kind, flags, stream, payload): (u8, u8, u8, &[u8])| {
        [&[kind, flags, stream, payload.len() as u8], payload].concat()
    };
    frames.into_iter().flat_map(bytes).collect()
}

/// Steps of the target `unread`: data for all streams, reads of some, and a dropped stream.
fn unread_steps() -> Vec<u8> {
    let mut steps = Vec::new();
    for round in 0..6 {
        for stream in 0..12 {
            steps.extend([stream, 0, 200]);
            if stream % 3 == round % 3 {
                steps.extend([stream, 4, 0]);
            }
        }
    }
    steps.extend([5, 7, 0, 5, 0, 100, 6, 4, 0]);
    steps
}
