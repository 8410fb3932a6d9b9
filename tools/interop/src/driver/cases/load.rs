//! Cases of load reports: sent by servers, used by clients.

use evenkeel_control::{Cluster, ClusterPolicy, Mesh, Service};
use serde_json::{Value, json};

use super::endpoints;
use crate::driver::process::Process;
use crate::driver::stage::{CLUSTER, SERVICE};
use crate::driver::{Calls, Failure, Result, Stage, ensure};

pub(super) async fn weights_by_call(stage: Stage) -> Result {
    weights(stage, "calls", json!({"blackout_period": "0.1s", "weight_update_period": "0.1s"})).await
}

pub(super) async fn weights_out_of_band(stage: Stage) -> Result {
    let settings = json!({
        "blackout_period": "0.1s",
        "weight_update_period": "0.1s",
        "enable_oob_load_report": true,
        "oob_reporting_period": "0.5s",
    });
    weights(stage, "out_of_band", settings).await
}

/// Weights are calls per second divided by utilization: 1, 2 and 4. Our server sends them in these reports
/// only. Other servers ignore the flag and send them in all reports.
async fn weights(mut stage: Stage, reports: &str, settings: Value) -> Result {
    let load = |utilization: f64| {
        let utilization = format!("--load_utilization={utilization}");
        vec!["--load_qps=100".to_owned(), utilization, format!("--load_reports={reports}")]
    };
    let servers = stage.servers_with([("s1", load(0.8)), ("s2", load(0.4)), ("s4", load(0.2))]).await?;
    let policy = ClusterPolicy::with("weighted_round_robin", settings);
    let cluster = Cluster::new().policy(policy).endpoints(endpoints(&servers));
    stage.set(&Mesh::new().service(SERVICE, Service::to(CLUSTER)).cluster(CLUSTER, cluster)).await?;
    let mut client = stage.client(Calls::unary().qps(350)).await?;
    let near = |count: i32, expected: i32| (count - expected).abs() <= 7;
    client
        .until(350, "50, 100 and 200 calls", |stats| {
            stats.failures == 0
                && near(stats.of("s1"), 50)
                && near(stats.of("s2"), 100)
                && near(stats.of("s4"), 200)
        })
        .await?;
    Ok(())
}

pub(super) async fn orca_per_rpc(stage: Stage) -> Result {
    test_case(stage, "orca_per_rpc").await
}

pub(super) async fn orca_oob(stage: Stage) -> Result {
    test_case(stage, "orca_oob").await
}

/// Runs a case of gRPC's other interop client, which checks the result itself.
async fn test_case(stage: Stage, name: &str) -> Result {
    let [server] = stage.servers(["s1"]).await?;
    let program = stage.lineup().interop_client.as_ref();
    let program = program.ok_or_else(|| Failure::new("the lineup has no interop_client"))?;
    let flags = [
        "--server_host=127.0.0.1".to_owned(),
        format!("--server_port={}", server.address().port()),
        format!("--test_case={name}"),
        r#"--service_config_json={"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}"#
            .to_owned(),
    ];
    let mut process = Process::start(program, &flags, &[])?;
    let status = process.end().await?;
    ensure(status.success(), || process.failure(&format!("failed with {status}")).to_string())
}
