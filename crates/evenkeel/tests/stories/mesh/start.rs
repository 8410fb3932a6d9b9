//! Start of a channel: the first call, and an unreachable control plane.

use super::{Mesh, call, channel, endpoints, patient, policies, request, send};
use testkit::net::{Backend, ControlPlane};
use tonic::Code;

/// Resolves the target and makes the first call. Afterwards the tree shows the policies and endpoints.
#[tokio::test]
async fn the_first_call() {
    let mesh = Mesh::start(2).await;
    assert!(mesh.channel.tree().await.is_none(), "no call was made yet");
    assert_eq!(mesh.control.streams(), 0);

    let answered_by = call(&mesh.channel).await.unwrap();
    assert!(mesh.backends.iter().any(|backend| backend.name() == answered_by));
    mesh.channel.ready().await.unwrap();

    let tree = mesh.channel.tree().await.unwrap();
    let names: Vec<_> = policies(&tree).into_iter().map(|policy| policy.policy.as_str()).collect();
    assert_eq!(
        names,
        [
            "xds_cluster_manager_experimental",
            "cds_experimental",
            "xds_cluster_resolver_experimental",
            "priority_experimental",
            "xds_cluster_impl_experimental",
            "xds_wrr_locality_experimental",
            "weighted_target_experimental",
            "edf_weighted_round_robin",
        ]
    );
    assert_eq!(tree.children[0].0, "cluster:pay");
    let rows = endpoints(&tree);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows.iter().map(|row| row.picks).sum::<u64>(), 1);
    assert!(rows.iter().all(|row| row.locality.as_deref().is_some_and(|name| name.contains("local"))));
    assert!(mesh.control.nacks().is_empty());
}

/// fault 2: calls fail at once with the target, the listener, the server and its error, and the node.
/// Wait-for-ready calls complete once the control plane is reachable.
#[tokio::test]
async fn no_control_plane_at_the_start() {
    let control = ControlPlane::start().await;
    let backend = Backend::start().await;
    control.serve("orders", "pay", &[backend.address()]);
    control.kill();
    let channel = channel(&control).build().unwrap();

    let waiting = tokio::spawn({
        let channel = channel.clone();
        async move { send(&channel, patient(request())).await }
    });
    let status = call(&channel).await.unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Unavailable);
    let waits_for = r#"target "xds:///orders": listener "orders": not received: xDS server "#;
    assert!(status.message().starts_with(waits_for), "{:?}", status.message());
    for part in [&*control.address().to_string(), "os error 111", "node-7"] {
        assert!(status.message().contains(part), "no {part:?} in {:?}", status.message());
    }
    assert!(!waiting.is_finished());

    control.restart().await;
    assert_eq!(waiting.await.unwrap().unwrap(), backend.name());
    assert_eq!(call(&channel).await.unwrap(), backend.name());
}
