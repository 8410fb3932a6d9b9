//! The published cases with our own client, server and control plane, as programs.

use std::collections::BTreeSet;

use interop::driver::{self, Lineup, Program};

fn lineup() -> Lineup {
    Lineup {
        client: Program::new("evenkeel", env!("CARGO_BIN_EXE_xds_interop_client")),
        server: Program::new("evenkeel", env!("CARGO_BIN_EXE_xds_interop_server")),
        control: None,
        interop_client: Some(Program::new("evenkeel", env!("CARGO_BIN_EXE_interop_client"))),
        proxy: None,
        sidecar: None,
    }
}

/// `docs/interop.md` is written by the runner: who adds a case runs it.
#[test]
fn the_document_has_every_case() {
    let document = include_str!("../../../../docs/interop.md");
    for case in driver::all() {
        let row = format!("\n| `{}`: {} |", case.name, case.shows);
        assert!(document.contains(&row), "run `cargo run -p interop -- matrix`: it has no {row:?}");
    }
}

async fn run(name: &str) {
    let case = driver::named(name).expect("there is such a case");
    let lineup = lineup();
    assert_eq!(case.does_not_fit(&lineup), None, "our own programs can do everything");
    if let Err(failure) = case.run(&lineup).await {
        panic!("{failure}");
    }
}

/// A test for each case; the names are the driver's.
macro_rules! cases {
    ($($(#[$about:meta])* $name:ident,)*) => {
        $(
            $(#[$about])*
            #[tokio::test]
            async fn $name() {
                run(stringify!($name)).await;
            }
        )*

        /// No case is left out.
        #[test]
        fn all_of_them() {
            let here = BTreeSet::from([$(stringify!($name)),*]);
            let there: BTreeSet<_> = driver::all().iter().map(|case| case.name).collect();
            assert_eq!(here, there);
        }
    };
}

cases! {
    ping_pong,
    round_robin,
    backends_restart,
    remove_instance_group,
    change_backend_service,
    affinity,
    /// fault 35
    custom_lb,
    /// fault 61
    secondary_locality_gets_requests_on_primary_failure,
    /// fault 62
    secondary_locality_gets_no_requests_on_partial_primary_failure,
    traffic_splitting,
    path_matching,
    header_matching,
    api_listener,
    retry,
    /// fault 64
    circuit_breaking,
    timeout,
    /// fault 51
    outlier_detection,
    weights_by_call,
    weights_out_of_band,
    orca_per_rpc,
    orca_oob,
    /// RT-4
    mtls,
    tls,
    /// RT-4
    plaintext_fallback,
    /// RT-4
    mtls_error,
    csds,
}
