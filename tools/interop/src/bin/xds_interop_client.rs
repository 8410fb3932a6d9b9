//! gRPC's xDS interop client, on evenkeel. `tools/interop/README.md` lists its flags.
//!
//! It ends with 2 if a flag is wrong, with 1 if it cannot go on, and with 0 when it is told to end.

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
