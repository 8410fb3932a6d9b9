//! Watches a file that contains a mesh.
//!
//! The file is read at an interval, and its text compared. That works over renames, swapped links and network mounts
//! alike, where notifications of the operating system have gaps. An invalid edit is reported and changes nothing. Host
//! names of endpoints are looked up before their mesh is served, and again every 30 s.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::host_resolver::HostResolver;
use crate::mesh::read_text;
use crate::{Mesh, MeshErrors, SnapshotCache};

/// Default interval at which a watched file is read.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Guard of a watched file. Dropping it stops the watch; the last valid mesh stays in the cache.
#[derive(Debug)]
pub struct MeshWatchGuard {
    task: JoinHandle<()>,
}

/// Change of a watched mesh file, or of the host names in it.
#[derive(Clone, Copy, Debug)]
pub enum MeshFileChange<'a> {
    /// A valid edit, with addresses in place of host names. It is served.
    Served(&'a Mesh),
    /// An invalid edit. The last valid mesh is still served.
    Rejected(&'a MeshErrors),
    /// Host names that can no longer be resolved. Their last addresses are still served, if there are any.
    Unresolved(&'a MeshErrors),
    /// The mesh after host names were resolved again, or to other addresses. It is served.
    Resolved(&'a Mesh),
}

impl SnapshotCache {
    /// Serves the mesh in a file, and each later version of it.
    ///
    /// `on_change` gets every change. After an invalid edit the cache serves the last valid mesh.
    ///
    /// Host names of endpoints are looked up with the system's resolver: before their mesh is served, every 30 s, and
    /// every 5 s while one of them cannot be resolved. Such a name keeps its last addresses. If it never had any, the
    /// rest of the mesh is served without it.
    ///
    /// Returns an error, and leaves the cache unchanged, if the file is invalid to begin with.
    pub async fn watch_file(
        &self,
        path: &Path,
        interval: Duration,
        on_change: impl FnMut(MeshFileChange<'_>) + Send + 'static,
    ) -> Result<MeshWatchGuard, MeshErrors> {
        self.watch_file_with(HostResolver::system(), path, interval, on_change).await
    }

    async fn watch_file_with(
        &self,
        hosts: HostResolver,
        path: &Path,
        interval: Duration,
        on_change: impl FnMut(MeshFileChange<'_>) + Send + 'static,
    ) -> Result<MeshWatchGuard, MeshErrors> {
        // Without a known text, the file counts as changed.
        let read = read_if_changed(path.to_owned(), None).await;
        let (text, mesh) = read.ok_or_else(|| MeshErrors::of_file("cannot be read").in_file(path))?;
        let mut watcher = MeshFileWatcher {
            cache: self.clone(),
            path: path.to_owned(),
            text,
            valid: ValidMesh::default(),
            hosts,
            on_change,
        };
        watcher.serve(mesh?).await?;
        Ok(MeshWatchGuard { task: tokio::spawn(watcher.run(interval)) })
    }
}

impl Drop for MeshWatchGuard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Text of a file, or the reason why it cannot be read.
type FileText = Result<String, MeshErrors>;

/// Last valid mesh, as it was parsed.
#[derive(Default)]
struct ValidMesh {
    mesh: Mesh,
    text: String,
}

struct MeshFileWatcher<F> {
    cache: SnapshotCache,
    path: PathBuf,
    /// Result of the last read.
    text: FileText,
    valid: ValidMesh,
    hosts: HostResolver,
    on_change: F,
}

impl<F: FnMut(MeshFileChange<'_>)> MeshFileWatcher<F> {
    async fn run(mut self, interval: Duration) {
        let mut next_read = Instant::now() + interval;
        loop {
            let next_refresh = self.hosts.next_refresh();
            sleep_until(next_refresh.map_or(next_read, |refresh| refresh.min(next_read))).await;
            let now = Instant::now();
            if next_refresh.is_some_and(|refresh| refresh <= now) {
                self.refresh(now).await;
            }
            if next_read > now {
                continue;
            }
            if let Some((text, mesh)) = read_if_changed(self.path.clone(), Some(self.text.clone())).await {
                // Stored for an invalid file too, so that its errors are reported once.
                self.text = text;
                let served = match mesh {
                    Ok(mesh) => self.serve(mesh).await,
                    Err(errors) => Err(errors),
                };
                match served {
                    Ok(mesh) => (self.on_change)(MeshFileChange::Served(&mesh)),
                    Err(errors) => (self.on_change)(MeshFileChange::Rejected(&errors)),
                }
            }
            next_read = Instant::now() + interval;
        }
    }

    /// Serves a mesh that was just read, with the addresses of its host names. Returns it as served.
    async fn serve(&mut self, mesh: Mesh) -> Result<Mesh, MeshErrors> {
        let changes = self.hosts.set_names(host_names(&mesh), Instant::now()).await;
        let served = self.resolve(&mesh)?;
        self.valid = ValidMesh { mesh, text: self.text.clone().unwrap_or_default() };
        self.cache.set_mesh(&served);
        self.report_failures(&changes.failures);
        Ok(served)
    }

    /// Looks up all host names, and serves their addresses if they changed.
    async fn refresh(&mut self, now: Instant) {
        let changes = self.hosts.refresh(host_names(&self.valid.mesh), now).await;
        if changes.is_resolved {
            match self.resolve(&self.valid.mesh) {
                Ok(mesh) => {
                    self.cache.set_mesh(&mesh);
                    (self.on_change)(MeshFileChange::Resolved(&mesh));
                }
                Err(errors) => (self.on_change)(MeshFileChange::Unresolved(&errors)),
            }
        }
        self.report_failures(&changes.failures);
    }

    /// Returns the mesh with addresses in place of host names. Fails if the addresses exceed a limit, such as the sum of
    /// all weights.
    fn resolve(&self, mesh: &Mesh) -> Result<Mesh, MeshErrors> {
        let resolved = mesh.resolve_hosts(|host| self.hosts.addresses(host));
        resolved.check().map_err(|errors| errors.in_file(&self.path))?;
        Ok(resolved)
    }

    fn report_failures(&mut self, failures: &BTreeMap<String, String>) {
        if !failures.is_empty() {
            let errors = self.valid.mesh.host_errors(&self.valid.text, failures);
            let errors = MeshErrors::new(errors).in_file(&self.path);
            (self.on_change)(MeshFileChange::Unresolved(&errors));
        }
    }
}

fn host_names(mesh: &Mesh) -> BTreeSet<String> {
    mesh.host_names().into_iter().map(str::to_owned).collect()
}

/// Reads a file. Returns `None` if its text equals `known`, otherwise the text and the mesh in it.
///
/// Reading may block, so it runs on a blocking thread.
async fn read_if_changed(
    path: PathBuf,
    known: Option<FileText>,
) -> Option<(FileText, Result<Mesh, MeshErrors>)> {
    let read = tokio::task::spawn_blocking(move || {
        let text = read_text(&path).map_err(|errors| errors.in_file(&path));
        if known.as_ref() == Some(&text) {
            return None;
        }
        let mesh =
            text.clone().and_then(|text| Mesh::from_yaml(&text).map_err(|errors| errors.in_file(&path)));
        Some((text, mesh))
    });
    read.await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::IpAddr;
    use std::sync::{Arc, Mutex};

    use evenkeel_proto::envoy::config::core::v3::address::Address;
    use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::snapshot_cache::lock;

    /// Mesh file that is watched on virtual time, with a resolver of the test.
    struct WatchedHosts {
        cache: SnapshotCache,
        records: Arc<Mutex<BTreeMap<String, Vec<IpAddr>>>>,
        changes: UnboundedReceiver<(String, Duration)>,
        path: PathBuf,
        _folder: tempfile::TempDir,
        _guard: MeshWatchGuard,
    }

    type TestRecords<'a> = &'a [(&'a str, &'a [&'a str])];

    impl WatchedHosts {
        async fn start(text: &str, records: TestRecords<'_>) -> WatchedHosts {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("mesh.yaml");
            std::fs::write(&path, text).unwrap();
            let known = Arc::new(Mutex::new(parsed(records)));
            let lookup_in = Arc::clone(&known);
            let hosts = HostResolver::new(Arc::new(move |host: &str| {
                lock(&lookup_in).get(host).cloned().ok_or_else(|| io::Error::other("no such name"))
            }));
            let (cache, (sender, changes)) = (SnapshotCache::new(), unbounded_channel());
            let started = Instant::now();
            let on_change = move |change: MeshFileChange<'_>| {
                let text = match change {
                    MeshFileChange::Served(_) => "served".to_owned(),
                    MeshFileChange::Resolved(_) => "resolved".to_owned(),
                    MeshFileChange::Rejected(errors) => format!("rejected: {errors}"),
                    MeshFileChange::Unresolved(errors) => format!("unresolved: {errors}"),
                };
                let _ = sender.send((text, started.elapsed()));
            };
            let guard = cache.watch_file_with(hosts, &path, POLL_INTERVAL, on_change).await.unwrap();
            WatchedHosts { cache, records: known, changes, path, _folder: folder, _guard: guard }
        }

        fn set(&self, records: TestRecords<'_>) {
            *lock(&self.records) = parsed(records);
        }

        /// Returns the next change, with the virtual time since the start in seconds.
        async fn next(&mut self) -> (String, u64) {
            let (text, at) = self.changes.recv().await.unwrap();
            (text.replace(self.path.to_str().unwrap(), "mesh.yaml"), at.as_secs())
        }

        /// Returns the served endpoints of the cluster `orders`: priority, weight and addresses.
        fn served(&self) -> Vec<(u32, String)> {
            let set = self.cache.resources().get::<ClusterLoadAssignment>("orders").unwrap();
            let all = |priority: u32, endpoints: Vec<LbEndpoint>| {
                if endpoints.is_empty() {
                    return vec![(priority, String::new())];
                }
                endpoints.iter().map(|endpoint| (priority, addresses(endpoint))).collect()
            };
            set.endpoints.into_iter().flat_map(|group| all(group.priority, group.lb_endpoints)).collect()
        }
    }

    fn parsed(records: TestRecords<'_>) -> BTreeMap<String, Vec<IpAddr>> {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        records.iter().map(|(host, texts)| ((*host).to_owned(), ips(texts))).collect()
    }

    fn addresses(endpoint: &LbEndpoint) -> String {
        let Some(HostIdentifier::Endpoint(endpoint)) = &endpoint.host_identifier else {
            panic!("no endpoint")
        };
        let additional = endpoint.additional_addresses.iter().filter_map(|more| more.address.as_ref());
        let ips = endpoint.address.iter().chain(additional).map(|address| match &address.address {
            Some(Address::SocketAddress(socket)) => socket.address.clone(),
            other => panic!("{other:?}"),
        });
        format!("{} {}", endpoint.hostname, ips.collect::<Vec<_>>().join(" "))
    }

    fn endpoints(of: &[(u32, &str)]) -> Vec<(u32, String)> {
        of.iter().map(|(priority, text)| (*priority, (*text).to_owned())).collect()
    }

    const NAMES: &str = "clusters:\n  orders:\n    endpoints:\n      - a.example:80\n      - {address: 'b.example:80', priority: 1}\n";

    /// All addresses of a name are served, and those of later lookups. A name that fails is reported once, with its line;
    /// its last addresses stay in use until it can be resolved again.
    #[tokio::test(start_paused = true)]
    async fn names_follow_their_addresses() {
        let both: TestRecords<'_> =
            &[("a.example", &["10.0.0.2", "10.0.0.1"]), ("b.example", &["10.0.1.1", "::1"])];
        let mut watched = WatchedHosts::start(NAMES, both).await;
        let first = endpoints(&[
            (0, "a.example 10.0.0.1"),
            (0, "a.example 10.0.0.2"),
            // One of each family: one server with two addresses (A61).
            (1, "b.example 10.0.1.1 ::1"),
        ]);
        assert_eq!(watched.served(), first);

        // The order of the addresses differs from lookup to lookup.
        watched.set(&[("a.example", &["10.0.0.1", "10.0.0.2"])]);
        let error = "unresolved: mesh.yaml:5:9: clusters.orders.endpoints[1]: the host name \"b.example\" cannot be resolved: no such name";
        assert_eq!(watched.next().await, (error.to_owned(), 30));
        assert_eq!(watched.served(), first);
        assert_eq!(watched.cache.version::<ClusterLoadAssignment>(), 1);

        watched.set(&[("a.example", &["10.0.0.3"]), ("b.example", &["10.0.1.1"])]);
        assert_eq!(watched.next().await, ("resolved".to_owned(), 35));
        let second = endpoints(&[(0, "a.example 10.0.0.3"), (1, "b.example 10.0.1.1")]);
        assert_eq!(watched.served(), second);
        watched.set(&[("a.example", &["::2", "::3"]), ("b.example", &["10.0.1.1"])]);
        assert_eq!(watched.next().await, ("resolved".to_owned(), 65));
        assert_eq!(watched.served()[..2], endpoints(&[(0, "a.example ::2"), (0, "a.example ::3")]));
    }

    /// The control plane starts before its backends have addresses. A priority without endpoints keeps its place, since
    /// clients reject priorities with a gap.
    #[tokio::test(start_paused = true)]
    async fn a_mesh_is_served_before_its_names_can_be_resolved() {
        let mut watched = WatchedHosts::start(NAMES, &[("b.example", &["10.0.1.1"])]).await;
        assert_eq!(watched.served(), endpoints(&[(0, ""), (1, "b.example 10.0.1.1")]));
        let (error, _) = watched.next().await;
        assert!(error.starts_with("unresolved: mesh.yaml:4:9: clusters.orders.endpoints[0]: "), "{error}");
        watched.set(&[("a.example", &["10.0.0.1"]), ("b.example", &["10.0.1.1"])]);
        assert_eq!(watched.next().await, ("resolved".to_owned(), 5));
        assert_eq!(watched.served(), endpoints(&[(0, "a.example 10.0.0.1"), (1, "b.example 10.0.1.1")]));
    }

    /// The names of an edit are looked up before it is served. Addresses that the cluster already has are not repeated.
    #[tokio::test(start_paused = true)]
    async fn an_edit_is_served_with_its_addresses() {
        let mut watched = WatchedHosts::start("clusters: {orders: {endpoints: ['10.0.0.1:80']}}", &[]).await;
        watched.set(&[("c.example", &["10.0.0.2", "10.0.0.1"]), ("d.example", &["10.0.0.2"])]);
        let edit = "clusters: {orders: {endpoints: ['10.0.0.1:80', 'c.example:80', 'd.example:80']}}";
        std::fs::write(&watched.path, edit).unwrap();
        // A file that is read while it is written is an invalid or empty mesh.
        while watched.next().await.0 != "served" || watched.served().is_empty() {}
        assert_eq!(watched.served(), endpoints(&[(0, " 10.0.0.1"), (0, "c.example 10.0.0.2")]));
    }
}
