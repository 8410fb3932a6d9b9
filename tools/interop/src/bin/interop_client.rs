//! gRPC's interop client, limited to the load report cases: see `interop::orca_cases`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    interop::orca_cases::run(std::env::args().skip(1)).await
}
