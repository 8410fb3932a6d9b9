//! A mesh file that is watched while it is edited.

use std::fs;
use std::path::Path;
use std::time::Duration;

use evenkeel_control::{Mesh, MeshFileChange, MeshWatchGuard, SnapshotCache};
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::soon;

const OFTEN: Duration = Duration::from_millis(5);

/// Mesh file whose only endpoint has this port.
fn mesh(port: u16) -> String {
    format!("clusters: {{orders: {{endpoints: ['127.0.0.1:{port}']}}}}\n")
}

/// Port of the endpoint that is served.
fn served(cache: &SnapshotCache) -> Option<u32> {
    use evenkeel_proto::envoy::config::core::v3::address::Address;
    use evenkeel_proto::envoy::config::core::v3::socket_address::PortSpecifier;
    use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    let assignment = cache.resources().get::<ClusterLoadAssignment>("orders")?;
    let endpoint = assignment.endpoints.first()?.lb_endpoints.first()?.host_identifier.clone()?;
    let HostIdentifier::Endpoint(endpoint) = endpoint else { return None };
    let Address::SocketAddress(address) = endpoint.address?.address? else { return None };
    let PortSpecifier::PortValue(port) = address.port_specifier? else { return None };
    Some(port)
}

struct WatchFixture {
    cache: SnapshotCache,
    changes: UnboundedReceiver<Result<Mesh, String>>,
    _mesh_watch: MeshWatchGuard,
}

async fn watch_file(path: &Path) -> WatchFixture {
    let cache = SnapshotCache::new();
    let (on_change, changes) = unbounded_channel();
    let on_change = move |change: MeshFileChange<'_>| {
        let change = match change {
            MeshFileChange::Served(mesh) | MeshFileChange::Resolved(mesh) => Ok(mesh.clone()),
            MeshFileChange::Rejected(errors) | MeshFileChange::Unresolved(errors) => Err(errors.to_string()),
        };
        let _ = on_change.send(change);
    };
    let mesh_watch = cache.watch_file(path, OFTEN, on_change).await.expect("a valid mesh");
    WatchFixture { cache, changes, _mesh_watch: mesh_watch }
}

impl WatchFixture {
    async fn next(&mut self) -> Result<Mesh, String> {
        soon("a change of the file", self.changes.recv()).await.expect("the file is watched")
    }
}

/// An edit is served. After an invalid edit the error is reported, and the last valid mesh is still served.
#[tokio::test]
async fn an_invalid_edit_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.yaml");
    fs::write(&path, mesh(1)).unwrap();
    let mut fixture = watch_file(&path).await;
    assert_eq!(served(&fixture.cache), Some(1));
    fs::write(&path, mesh(2)).unwrap();
    // An editor that writes in two steps may be read between them.
    while fixture.next().await.is_err() {}
    assert_eq!(served(&fixture.cache), Some(2));
    let version = fixture.cache.version::<ClusterLoadAssignment>();
    fs::write(&path, "clusters: {orders: {endpoints: ['127.0.0.1']}}\n").unwrap();
    let error = loop {
        if let Err(error) = fixture.next().await
            && error.contains("expected IP:PORT")
        {
            break error;
        }
    };
    assert!(
        error.ends_with(
            "mesh.yaml:1:33: clusters.orders.endpoints[0]: expected IP:PORT or HOST:PORT, found \"127.0.0.1\""
        ),
        "{error}"
    );
    assert_eq!(served(&fixture.cache), Some(2));
    assert_eq!(fixture.cache.version::<ClusterLoadAssignment>(), version);
    fs::write(&path, mesh(3)).unwrap();
    while fixture.next().await.is_err() {}
    assert_eq!(served(&fixture.cache), Some(3));
}

/// Editors write a new file and rename it, and config maps replace a link. A missing file is reported.
#[tokio::test]
async fn replaced_files_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for port in 1..=3 {
        fs::write(at(&format!("mesh-{port}")), mesh(port)).unwrap();
    }
    std::os::unix::fs::symlink(at("mesh-1"), at("mesh.yaml")).unwrap();
    let mut fixture = watch_file(&at("mesh.yaml")).await;
    assert_eq!(served(&fixture.cache), Some(1));
    std::os::unix::fs::symlink(at("mesh-2"), at("new-link")).unwrap();
    fs::rename(at("new-link"), at("mesh.yaml")).unwrap();
    fixture.next().await.expect("a valid mesh");
    assert_eq!(served(&fixture.cache), Some(2));
    fs::rename(at("mesh-3"), at("mesh.yaml")).unwrap();
    fixture.next().await.expect("a valid mesh");
    assert_eq!(served(&fixture.cache), Some(3));
    fs::remove_file(at("mesh.yaml")).unwrap();
    let error = fixture.next().await.expect_err("no file");
    assert!(error.contains("mesh.yaml: cannot be read: "), "{error}");
    assert_eq!(served(&fixture.cache), Some(3));
}

/// A file that is invalid from the start is not watched.
#[tokio::test]
async fn an_invalid_file_is_rejected_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.yaml");
    fs::write(&path, "clusters: 3").unwrap();
    let cache = SnapshotCache::new();
    let errors = cache.watch_file(&path, OFTEN, |_| {}).await.expect_err("an invalid mesh").to_string();
    assert!(errors.ends_with("mesh.yaml:1:11: clusters: expected a mapping, found 3"), "{errors}");
}
