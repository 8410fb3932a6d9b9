//! gRPC's xDS interop server, with evenkeel's load reports: see `interop::server`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    interop::server::run(std::env::args().skip(1)).await
}
