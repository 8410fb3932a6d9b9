//! gRPC's interop client, as far as load reports go: see `interop::orca_cases`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    interop::orca_cases::run(std::env::args().skip(1)).await
}
