//! `evenkeel doctor`: checks the path of a call from the bootstrap to a connected endpoint, and stops at the
//! first failure.
//!
//! Each step uses the component that a channel would use, and probes further if that component reports only a
//! failure. The failed step is reported with the expectation, the finding, the likely cause and the next
//! action.

mod bootstrap;
mod causes;
mod certificates;
mod names;
mod place;
mod reach;
mod report;
mod xds;

use std::time::Duration;

use evenkeel::{Channel, Credentials};

use self::place::TargetAddress;
use self::report::{Diagnosis, DoctorReport};
use crate::ui::{self, CliError, CliExit, TerminalOutput};

const EXAMPLES: &str = "\
Examples:
  evenkeel doctor xds:///orders                              with the bootstrap of the environment
  evenkeel doctor xds:///orders --bootstrap bootstrap.json   with this bootstrap
  evenkeel doctor dns:///orders.prod:50051 --tls             without a control plane
  evenkeel doctor dns:///orders.prod:50051 --ca ca.pem --cert tls.crt --key tls.key
  evenkeel doctor xds:///orders --json | jq -r '.steps[-1].likely'

The steps: bootstrap, DNS, TCP, TLS or HTTP/2, certificate files, the ADS stream, LDS, RDS, CDS,
EDS, a connection to an endpoint. The cluster's security config applies to the connection. For
clusters without one, and targets without a control plane, --tls, --ca, --cert and --key do.

Exit codes: 0 all fine, 1 stopped at a failure, 2 invalid usage or bootstrap, 3 the control plane is unreachable";

/// Check each step from the bootstrap to a connected endpoint, and diagnose the first failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Target of a channel: xds:///orders, xds://authority/orders, dns:///host:port, ipv4:1.2.3.4:80 or unix:/path.
    target: String,
    /// Path of the bootstrap, instead of the one that the environment names.
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<String>,
    /// Connect to endpoints by TLS, with the system's roots.
    #[arg(long)]
    tls: bool,
    /// Connect to endpoints by TLS, with the roots in this file.
    #[arg(long, value_name = "FILE")]
    ca: Option<String>,
    /// Connect to endpoints by TLS, with the client certificate in this file.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<String>,
    /// File with the private key of the client certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<String>,
    /// Maximum duration of each step, such as 500ms, 15s or 2m.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = ui::duration)]
    wait: Duration,
    /// Print the steps as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: DoctorArgs, terminal: &TerminalOutput) -> Result<CliExit, CliError> {
    let mut report = DoctorReport::new(&args.target, args.json, terminal);
    let outcome = if is_xds(&args.target) {
        xds::run_checks(&args, &mut report).await
    } else {
        plain(&args, &mut report).await
    };
    report.end(outcome)
}

/// Returns true for the scheme `xds`. A target without a scheme is a DNS name, as for channels.
fn is_xds(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("xds"))
}

/// Reason for ending the checks early.
enum EarlyExit {
    /// A step failed and has been reported.
    At(CliExit),
    /// The report cannot be written.
    Failed(CliError),
}

impl From<CliError> for EarlyExit {
    fn from(failure: CliError) -> EarlyExit {
        EarlyExit::Failed(failure)
    }
}

/// Checks a target without a control plane: DNS, TCP, and TLS or HTTP/2.
async fn plain(args: &DoctorArgs, report: &mut DoctorReport<'_>) -> Result<(), EarlyExit> {
    let unusable = |found| {
        Diagnosis::new("target", CliExit::Usage, found)
            .expected("xds:///name, dns:///host:port, ipv4:address:port, ipv6:[address]:port or unix:/path")
            .likely("a mistake in the target")
            .next("correct it; gRPC's naming document has all forms")
    };
    // The channel's own parser reports every mistake in the target.
    if let Err(error) = Channel::builder(&args.target).build() {
        return Err(report.stop(&unusable(error.to_string()))?);
    }
    let credentials = match endpoint_credentials(args) {
        Ok(credentials) => credentials,
        Err(diagnosis) => return Err(report.stop(&diagnosis)?),
    };
    let place = TargetAddress::parse(&args.target);
    reach::run_checks(&args.target, &place, credentials, reach::PeerRole::Endpoint, args.wait, report).await
}

/// Returns the credentials for endpoints; `None` for plaintext.
fn endpoint_credentials(args: &DoctorArgs) -> Result<Option<Credentials>, Diagnosis> {
    let mut tls = match &args.ca {
        Some(file) => Credentials::tls().ca_file(file),
        None if args.tls || args.cert.is_some() => Credentials::tls(),
        None => return Ok(None),
    };
    if let (Some(cert), Some(key)) = (&args.cert, &args.key) {
        tls = tls.identity_files(cert, key);
    }
    tls.build().map(Some).map_err(|error| {
        Diagnosis::new("certificates", CliExit::Usage, error.to_string())
            .expected("files of certificates in PEM, and the private key of the client certificate")
            .likely("a file is not there or is not PEM, or the key is that of another certificate")
            .next("check the files that --ca, --cert and --key name")
    })
}
