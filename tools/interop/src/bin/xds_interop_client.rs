//! gRPC's xDS interop client, on evenkeel. `tools/interop/README.md` lists its flags.
//!
//! It exits with 2 for an invalid flag, with 1 on a fatal error, and with 0 on a signal.

use std::process::ExitCode;

use interop::client::{Settings, run};
use interop::flags::Flags;

#[tokio::main]
async fn main() -> ExitCode {
    let mut flags = Flags::of(std::env::args().skip(1));
    let settings = match Settings::read(&mut flags) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    flags.warn_of_unknown();
    match run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
