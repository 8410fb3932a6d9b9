//! The files in `deploy/`: each starts `evenkeel serve` with flags that exist, and with a mesh that is valid.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{RunningCommand, TempFolder, evenkeel};

/// Port of the control plane in all files.
const PORT: u16 = 18000;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Documents of all manifests.
fn manifests() -> Vec<Value> {
    let names = ["configmap.yaml", "deployment.yaml", "service.yaml"];
    let parsed = names.map(|name| {
        let text = file(&format!("kubernetes/{name}"));
        serde_saphyr::from_multiple::<Value>(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
    });
    parsed.into_iter().flatten().collect()
}

fn find<'a>(manifests: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |manifest: &&Value| manifest["kind"] == kind && manifest["metadata"]["name"] == name;
    manifests.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name:?}"))
}

/// Runs `evenkeel serve` with these arguments, except for the folder of the mesh and the port. Returns the process and the
/// address that it listens on.
fn serve(args: &[String], mesh_folder: &str, folder: &TempFolder) -> (RunningCommand, SocketAddr) {
    assert_eq!(args.first().map(String::as_str), Some("serve"));
    let listen = args.iter().position(|arg| arg == "--listen").expect("other machines are to connect");
    assert_eq!(args[listen + 1].parse::<SocketAddr>().expect("an address").port(), PORT);
    let here = folder.path("");
    let here = here.to_str().expect("UTF-8").trim_end_matches('/');
    let mut args: Vec<_> = args.iter().map(|arg| arg.replace(mesh_folder, here)).collect();
    "127.0.0.1:0".clone_into(&mut args[listen + 1]);
    let is_json = args.iter().any(|arg| arg == "--json");
    if !is_json {
        args.push("--json".to_owned());
    }
    let mut running = RunningCommand::start(&args);
    let serving: Value = serde_json::from_str(&running.line_with("\"serving\"")).expect("JSON");
    let address = serving["address"].as_str().and_then(|text| text.parse().ok());
    (running, address.expect("the event has the address"))
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().expect("a list");
    list.iter().map(|item| item.as_str().expect("a text").to_owned()).collect()
}

/// The Deployment starts `serve` with the mesh of the ConfigMap. Its probes connect to the port that is open.
#[test]
fn the_manifests_start_a_control_plane() {
    let manifests = manifests();
    let pod = &find(&manifests, "Deployment", "evenkeel")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];

    let volume = &container["volumeMounts"][0];
    assert_eq!((&volume["name"], &volume["subPath"]), (&pod["volumes"][0]["name"], &Value::Null));
    let map = pod["volumes"][0]["configMap"]["name"].as_str().expect("a ConfigMap");
    let folder = TempFolder::new();
    for (name, text) in find(&manifests, "ConfigMap", map)["data"].as_object().expect("files") {
        folder.file(name, text.as_str().expect("a text"));
    }
    let mesh_folder = volume["mountPath"].as_str().expect("a path");
    let (mut running, address) = serve(&strings(&container["args"]), mesh_folder, &folder);

    let port = &container["ports"][0];
    assert_eq!(port["containerPort"], PORT);
    for probe in ["readinessProbe", "livenessProbe"] {
        assert_eq!(container[probe]["tcpSocket"]["port"], port["name"], "{probe}");
    }
    TcpStream::connect(address).expect("a probe connects");
    running.signal("TERM");
    assert_eq!(running.end().code(), Some(0));
}

/// The process has no privileges, and writes no files.
#[test]
fn the_pod_is_restricted() {
    let manifests = manifests();
    let pod = &find(&manifests, "Deployment", "evenkeel")["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["runAsUser"], 65532);
    assert_eq!(pod["automountServiceAccountToken"], false);
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(
        container,
        &json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        })
    );
}

/// The Service and the NetworkPolicy select the pods, and the bootstrap of clients names the Service.
#[test]
fn clients_reach_the_service() {
    let manifests = manifests();
    let service = find(&manifests, "Service", "evenkeel");
    let deployment = &find(&manifests, "Deployment", "evenkeel")["spec"];
    let labels = &deployment["template"]["metadata"]["labels"];
    assert_eq!(&deployment["selector"]["matchLabels"], labels);
    assert_eq!(&service["spec"]["selector"], labels);
    let policy = &find(&manifests, "NetworkPolicy", "evenkeel")["spec"];
    assert_eq!(&policy["podSelector"]["matchLabels"], labels);
    let name = &deployment["template"]["spec"]["containers"][0]["ports"][0]["name"];
    let port = &service["spec"]["ports"][0];
    assert_eq!((&port["port"], &port["targetPort"]), (&PORT.into(), name));
    assert_eq!(&policy["ingress"][0]["ports"][0]["port"], name);

    let text = find(&manifests, "ConfigMap", "evenkeel-bootstrap")["data"]["bootstrap.json"].as_str();
    let text = text.expect("a bootstrap");
    let bootstrap: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(bootstrap["xds_servers"][0]["server_uri"], format!("evenkeel:{PORT}"));
    let folder = TempFolder::new();
    let path = folder.file("bootstrap.json", text);
    evenkeel(["validate", &path]).ends_with(0);
}

/// The image has no shell, so its commands are lists. It runs as a user by number, which `runAsNonRoot` requires, with the same
/// arguments as the pod.
#[test]
fn the_image_runs_serve_without_privileges() {
    let dockerfile = file("Dockerfile").replace("\\\n", " ");
    let values = |name: &str| -> Vec<&str> {
        dockerfile.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect()
    };
    let stages = values("FROM");
    assert_eq!(stages.len(), 2, "{stages:?}");
    assert!(stages[1].starts_with("gcr.io/distroless/static-") && stages[1].ends_with(":nonroot"));
    assert_eq!(values("USER"), ["65532:65532"]);
    assert_eq!(values("EXPOSE"), [PORT.to_string()]);
    assert_eq!(values("ENTRYPOINT"), ["[\"/evenkeel\"]"]);
    let copied = values("COPY");
    assert_eq!(copied.last(), Some(&"--from=build /evenkeel /evenkeel"));
    let command: Vec<String> = serde_json::from_str(values("CMD")[0]).expect("a list");
    let manifests = manifests();
    let container = &find(&manifests, "Deployment", "evenkeel")["spec"]["template"]["spec"]["containers"][0];
    let in_pod: Vec<_> = strings(&container["args"]).into_iter().filter(|arg| arg != "--json").collect();
    assert_eq!(command, in_pod);
}

/// The unit starts `serve`, as a user without privileges.
#[test]
fn the_unit_starts_a_control_plane() {
    let unit = file("systemd/evenkeel.service");
    let value = |key: &str| {
        let found = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {key}"))
    };
    assert_eq!((value("DynamicUser"), value("CapabilityBoundingSet")), ("yes", ""));
    let listen = value("Environment").strip_prefix("LISTEN=").expect("the address");
    assert!(listen.parse::<SocketAddr>().expect("an address").ip().is_loopback());
    let command = value("ExecStart").replace("${LISTEN}", listen);
    let mut words = command.split(' ').map(str::to_owned);
    assert_eq!(words.next().as_deref(), Some("/usr/local/bin/evenkeel"));
    let folder = TempFolder::new();
    folder.file("mesh.yaml", "services: {a: {}}\nclusters: {a: {endpoints: [\"10.0.0.1:1\"]}}\n");
    let (mut running, _) = serve(&words.collect::<Vec<_>>(), "/etc/evenkeel", &folder);
    running.signal("TERM");
    assert_eq!(running.end().code(), Some(0));
}
