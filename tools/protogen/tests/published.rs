//! Our messages are a subset of the published ones: names, numbers, types, labels, oneofs, enum values,
//! methods.
//!
//! Both are expressed as facts, one per message, field, enum value and method. Each of ours must be
//! published. The published descriptors come from the package `envoy-types`, which is in the lock file and
//! fetched but never built.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MessageOptions, ServiceDescriptorProto,
};

/// Messages of github.com/cncf/xds that `envoy-types` does not contain.
const ELSEWHERE: &[(&str, &str)] = &[
    ("udpa.type.v1.TypedStruct", "a message of proto3"),
    ("udpa.type.v1.TypedStruct.type_url", "string = 1"),
    ("udpa.type.v1.TypedStruct.value", "google.protobuf.Struct = 2"),
    ("xds.type.v3.TypedStruct", "a message of proto3"),
    ("xds.type.v3.TypedStruct.type_url", "string = 1"),
    ("xds.type.v3.TypedStruct.value", "google.protobuf.Struct = 2"),
    ("xds.data.orca.v3.OrcaLoadReport", "a message of proto3"),
    ("xds.data.orca.v3.OrcaLoadReport.cpu_utilization", "double = 1"),
    ("xds.data.orca.v3.OrcaLoadReport.mem_utilization", "double = 2"),
    ("xds.data.orca.v3.OrcaLoadReport.rps", "uint64 = 3"),
    ("xds.data.orca.v3.OrcaLoadReport.request_cost", "map<string, double> = 4"),
    ("xds.data.orca.v3.OrcaLoadReport.utilization", "map<string, double> = 5"),
    ("xds.data.orca.v3.OrcaLoadReport.rps_fractional", "double = 6"),
    ("xds.data.orca.v3.OrcaLoadReport.eps", "double = 7"),
    ("xds.data.orca.v3.OrcaLoadReport.named_metrics", "map<string, double> = 8"),
    ("xds.data.orca.v3.OrcaLoadReport.application_utilization", "double = 9"),
    ("xds.service.orca.v3.OrcaLoadReportRequest", "a message of proto3"),
    ("xds.service.orca.v3.OrcaLoadReportRequest.report_interval", "google.protobuf.Duration = 1"),
    ("xds.service.orca.v3.OrcaLoadReportRequest.request_cost_names", "repeated string = 2"),
    ("xds.service.orca.v3.OpenRcaService", "a service"),
    (
        "xds.service.orca.v3.OpenRcaService.StreamCoreMetrics",
        "a method from xds.service.orca.v3.OrcaLoadReportRequest to stream xds.data.orca.v3.OrcaLoadReport",
    ),
];

/// Facts by full name.
type Facts = BTreeMap<String, String>;

/// ORCA-2 for the load reports, and the same for every other message.
#[test]
fn our_messages_are_the_published_ones() {
    let wrong = differences(&facts(&ours()), &published());
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

/// The comparison detects each kind of change that would break the wire format.
#[test]
fn every_kind_of_change_is_seen() {
    type Change = fn(&mut FileDescriptorSet);
    let published = facts(&ours());
    let cases: &[(Change, &str)] = &[
        (
            |set| field(set, "Locality", "zone").number = Some(7),
            "envoy.config.core.v3.Locality.zone: ours is string = 7; published is string = 2",
        ),
        (
            |set| field(set, "Locality", "zone").name = Some("area".to_owned()),
            "envoy.config.core.v3.Locality.area: ours is string = 2; nothing of that name is published",
        ),
        (
            |set| field(set, "Locality", "zone").set_type(Type::Bytes),
            "envoy.config.core.v3.Locality.zone: ours is bytes = 2; published is string = 2",
        ),
        (
            |set| field(set, "Locality", "zone").set_label(Label::Repeated),
            "envoy.config.core.v3.Locality.zone: ours is repeated string = 2; published is string = 2",
        ),
        (
            |set| field(set, "Locality", "zone").proto3_optional = Some(true),
            "envoy.config.core.v3.Locality.zone: ours is optional string = 2; published is string = 2",
        ),
        (
            |set| field(set, "Node", "locality").type_name = Some(".google.protobuf.Any".to_owned()),
            "envoy.config.core.v3.Node.locality: ours is google.protobuf.Any = 4; \
             published is envoy.config.core.v3.Locality = 4",
        ),
        (
            |set| field(set, "Node", "user_agent_version").oneof_index = None,
            "envoy.config.core.v3.Node.user_agent_version: ours is string = 7; \
             published is string = 7 in oneof user_agent_version_type",
        ),
        (
            |set| message(set, "Metadata").nested_type[0].field[1].set_type(Type::Bytes),
            "envoy.config.core.v3.Metadata.filter_metadata: ours is map<string, bytes> = 1; \
             published is map<string, google.protobuf.Struct> = 1",
        ),
        (
            |set| message(set, "Locality").name = Some("Place".to_owned()),
            "envoy.config.core.v3.Place: ours is a message of proto3; nothing of that name is published",
        ),
        (
            |set| base(set).enum_type[0].value[1].number = Some(2),
            "envoy.config.core.v3.RoutingPriority.HIGH: ours is value 2; published is value 1",
        ),
        (
            |set| {
                let services = set.file.iter_mut().flat_map(|file| &mut file.service);
                let csds = services.filter(|service| service.name() == "ClientStatusDiscoveryService");
                csds.for_each(|service| service.method[0].client_streaming = Some(false));
            },
            "envoy.service.status.v3.ClientStatusDiscoveryService.StreamClientStatus: \
             ours is a method from envoy.service.status.v3.ClientStatusRequest \
             to stream envoy.service.status.v3.ClientStatusResponse; \
             published is a method from stream envoy.service.status.v3.ClientStatusRequest \
             to stream envoy.service.status.v3.ClientStatusResponse",
        ),
    ];
    for (change, expected) in cases {
        let mut changed = ours();
        change(&mut changed);
        let seen = differences(&facts(&changed), &published);
        assert_eq!(seen.first().map(String::as_str), Some(*expected));
    }
}

fn base(set: &mut FileDescriptorSet) -> &mut FileDescriptorProto {
    let mut files = set.file.iter_mut();
    files.find(|file| file.name() == "envoy/config/core/v3/base.proto").expect("a file of ours")
}

fn message<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut DescriptorProto {
    base(set).message_type.iter_mut().find(|message| message.name() == name).expect("a message of the file")
}

fn field<'a>(set: &'a mut FileDescriptorSet, of: &str, name: &str) -> &'a mut FieldDescriptorProto {
    message(set, of).field.iter_mut().find(|field| field.name() == name).expect("a field of the message")
}

fn ours() -> FileDescriptorSet {
    protogen::descriptors().expect("the .proto files compile")
}

fn published() -> Facts {
    let file = package_folder("envoy-types").join("src/generated/types.bin");
    let bytes = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let set = FileDescriptorSet::decode(&*bytes).expect("a set of descriptors");
    let mut all = facts(&set);
    for (name, fact) in ELSEWHERE {
        let before = all.insert((*name).to_owned(), (*fact).to_owned());
        assert_eq!(before, None, "{name} is published with the others: take it off the list");
    }
    all
}

/// Returns the folder of a package in the lock file.
fn package_folder(name: &str) -> PathBuf {
    let cargo = |arguments: &[&str]| {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .arg("--manifest-path")
            .arg(manifest)
            .output()
            .expect("cargo runs, since it runs this test");
        assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let find = || {
        let metadata = cargo(&["metadata", "--format-version", "1", "--locked"]);
        let metadata: serde_json::Value = serde_json::from_slice(&metadata).expect("cargo writes JSON");
        let packages = metadata["packages"].as_array().expect("metadata lists packages");
        let package =
            packages.iter().find(|package| package["name"] == name).expect("it is in the lock file");
        let manifest = Path::new(package["manifest_path"].as_str().expect("a package has a manifest"));
        manifest.parent().expect("a manifest stands in a folder").to_owned()
    };
    let folder = find();
    if !folder.exists() {
        cargo(&["fetch", "--locked"]);
    }
    folder
}

/// Returns our facts that are not published, or differ.
fn differences(ours: &Facts, published: &Facts) -> Vec<String> {
    let differ = ours.iter().filter_map(|(name, fact)| match published.get(name) {
        Some(published) if published == fact => None,
        Some(published) => Some(format!("{name}: ours is {fact}; published is {published}")),
        None => Some(format!("{name}: ours is {fact}; nothing of that name is published")),
    });
    differ.collect()
}

fn facts(set: &FileDescriptorSet) -> Facts {
    let mut facts = Facts::new();
    for file in &set.file {
        let package = file.package();
        let syntax = if file.syntax().is_empty() { "proto2" } else { file.syntax() };
        for message in &file.message_type {
            note_message(package, syntax, message, &mut facts);
        }
        for item in &file.enum_type {
            note_enum(package, item, &mut facts);
        }
        for service in &file.service {
            note_service(package, service, &mut facts);
        }
    }
    facts
}

fn note_message(scope: &str, syntax: &str, message: &DescriptorProto, facts: &mut Facts) {
    let name = format!("{scope}.{}", message.name());
    for field in &message.field {
        let oneof = field.oneof_index.and_then(|index| message.oneof_decl.get(index as usize));
        let oneof = oneof.map_or(String::new(), |oneof| format!(" in oneof {}", oneof.name()));
        facts.insert(
            format!("{name}.{}", field.name()),
            format!("{}{oneof}", describe(&name, field, message)),
        );
    }
    for nested in message.nested_type.iter().filter(|nested| !is_map_entry(nested)) {
        note_message(&name, syntax, nested, facts);
    }
    for item in &message.enum_type {
        note_enum(&name, item, facts);
    }
    facts.insert(name, format!("a message of {syntax}"));
}

/// Describes a field as in a `.proto` file.
fn describe(scope: &str, field: &FieldDescriptorProto, of: &DescriptorProto) -> String {
    let entry = of.nested_type.iter().find(|nested| {
        is_map_entry(nested)
            && field.type_name().strip_prefix('.') == Some(&format!("{scope}.{}", nested.name()))
    });
    let number = field.number();
    if let Some([key, value]) = entry.map(|entry| entry.field.as_slice()) {
        return format!("map<{}, {}> = {number}", kind(key), kind(value));
    }
    let label = match field.label() {
        Label::Repeated => "repeated ",
        Label::Required => "required ",
        Label::Optional if field.proto3_optional() => "optional ",
        Label::Optional => "",
    };
    let packed = match field.options.as_ref().and_then(|options| options.packed) {
        Some(true) => ", packed",
        Some(false) => ", not packed",
        None => "",
    };
    format!("{label}{} = {number}{packed}", kind(field))
}

fn kind(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum | Type::Group => field.type_name().trim_start_matches('.').to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(MessageOptions::map_entry)
}

fn note_enum(scope: &str, item: &EnumDescriptorProto, facts: &mut Facts) {
    let name = format!("{scope}.{}", item.name());
    for value in &item.value {
        facts.insert(format!("{name}.{}", value.name()), format!("value {}", value.number()));
    }
    facts.insert(name, "an enum".to_owned());
}

fn note_service(scope: &str, service: &ServiceDescriptorProto, facts: &mut Facts) {
    let name = format!("{scope}.{}", service.name());
    for method in &service.method {
        let side = |streams, message: &str| {
            let stream = if streams { "stream " } else { "" };
            format!("{stream}{}", message.trim_start_matches('.'))
        };
        let takes = side(method.client_streaming(), method.input_type());
        let gives = side(method.server_streaming(), method.output_type());
        facts.insert(format!("{name}.{}", method.name()), format!("a method from {takes} to {gives}"));
    }
    facts.insert(name, "a service".to_owned());
}
