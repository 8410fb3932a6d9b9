//! tonic-xds as a client process of the call comparison. Arguments, calls and figures are those of evenkeel's
//! own clients, whose sources it includes. Only the channel differs.

#[path = "../../../src/client/mod.rs"]
mod client;

use std::process::ExitCode;

use clap::Parser;
use tonic_xds::{XdsChannelBuilder, XdsChannelConfig, XdsUri};

use crate::client::args::ClientArgs;
use crate::client::drive::measure;
use crate::client::echo::EchoClient;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ClientArgs,
}

fn main() -> ExitCode {
    match run(&Cli::parse().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the client. The bootstrap is in the environment.
fn run(args: &ClientArgs) -> Result<(), Error> {
    args.runtime()?.block_on(async {
        let config = XdsChannelConfig::new(XdsUri::parse(&args.target)?);
        let channel = XdsChannelBuilder::new(config).build_grpc_channel()?;
        measure(EchoClient::new(channel), args.ask(), args.load()).await
    })
}
