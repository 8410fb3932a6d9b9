//! Flags of the client.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use evenkeel::XdsVariant;
use tonic::Code;

use super::call::Sizes;
use super::plan::{self, Planned};
use crate::flags::{FlagError, Flags};

/// Maximum number of ticks per second.
const MAX_TICKS: u32 = 1_000_000;

/// Settings of the client.
#[derive(Debug)]
pub struct Settings {
    pub(crate) server: String,
    pub(crate) channels: u32,
    /// Interval between two ticks.
    pub(crate) period: Duration,
    pub(crate) plan: Vec<Planned>,
    pub(crate) timeout: Duration,
    pub(crate) sizes: Sizes,
    pub(crate) stats_port: u16,
    pub(crate) fail_on_failed_rpc: bool,
    pub(crate) print_response: bool,
    pub(crate) expect_status: Code,
    pub(crate) secure_mode: bool,
    /// ADS variant. The flag for it is our own.
    pub(crate) variant: XdsVariant,
}

impl Settings {
    /// Parses the flags. Their names are those of all languages' clients.
    pub fn read(flags: &mut Flags) -> Result<Settings, FlagError> {
        let channels = flags.read("num_channels", "1", |text| number(text, 1, MAX_TICKS))?;
        let qps = flags.read("qps", "1", |text| number(text, 1, MAX_TICKS / channels))?;
        let seconds = flags.number("rpc_timeout_sec", 20)?;
        let timeout = flags.duration("rpc_timeout")?.unwrap_or(Duration::from_secs(seconds));
        let kinds = flags.read("rpc", "UnaryCall", plan::kinds)?;
        let metadata = flags.read("metadata", "", plan::metadata)?;
        let mut size = |name| flags.read(name, "0", |text| number(text, 0, i32::MAX));
        let sizes = Sizes {
            request: size("request_payload_size")? as usize,
            response: size("response_payload_size")?,
        };
        Ok(Settings {
            server: flags.text("server", "localhost:8080")?,
            channels,
            period: Duration::from_secs(1) / (qps * channels),
            plan: plan::plan(&kinds, &metadata, timeout),
            timeout,
            sizes,
            stats_port: flags.number("stats_port", 8081)?,
            fail_on_failed_rpc: flags.yes("fail_on_failed_rpc")? | flags.yes("fail_on_failed_rpcs")?,
            print_response: flags.yes("print_response")?,
            expect_status: flags.read("expect_status", "OK", code)?,
            secure_mode: flags.yes("secure_mode")?,
            variant: if flags.yes("delta")? { XdsVariant::Delta } else { XdsVariant::StateOfTheWorld },
        })
    }
}

/// Parses a number in a range. The error describes the expectation.
fn number<T: FromStr + PartialOrd + Display + Copy>(text: &str, least: T, most: T) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| *number >= least && *number <= most);
    number.ok_or_else(|| format!("a number from {least} to {most}"))
}

/// Parses a status code by name or number.
fn code(text: &str) -> Result<Code, String> {
    let code = match text.parse() {
        Ok(number) => evenkeel_core::Code::from_number(number),
        Err(_) => evenkeel_core::Code::from_name(text),
    };
    let code = code.map(|code| Code::from(code as i32));
    code.ok_or_else(|| "a status such as OK or UNAVAILABLE, or its number".to_owned())
}

/// Returns gRPC's name of a status code.
pub(crate) fn code_name(code: Code) -> &'static str {
    evenkeel_core::Code::from_number(code as i32).map_or("UNKNOWN", evenkeel_core::Code::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Settings, String> {
        Settings::read(&mut Flags::of(line.split_whitespace())).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_have_the_spellings_of_all_languages() {
        let default = read("").unwrap();
        assert_eq!((default.period, default.timeout), (Duration::from_secs(1), Duration::from_secs(20)));
        assert_eq!((default.stats_port, default.expect_status), (8081, Code::Ok));
        assert_eq!(read("--qps=100 --num_channels=4").unwrap().period, Duration::from_micros(2500));
        for line in ["--rpc_timeout_sec=5", "-rpc_timeout=5s", "--rpc_timeout 5000ms --rpc_timeout_sec=7"] {
            assert_eq!(read(line).unwrap().timeout, Duration::from_secs(5), "{line}");
        }
        for line in ["--fail_on_failed_rpc", "--fail_on_failed_rpcs=true"] {
            assert!(read(line).unwrap().fail_on_failed_rpc, "{line}");
        }
        for line in ["--expect_status=PERMISSION_DENIED", "--expect_status=7"] {
            assert_eq!(read(line).unwrap().expect_status, Code::PermissionDenied, "{line}");
        }
        assert_eq!(code_name(Code::PermissionDenied), "PERMISSION_DENIED");
    }

    #[test]
    fn wrong_values_are_refused() {
        for (line, told) in [
            ("--qps=0", "flag --qps: expected a number from 1 to 1000000, found \"0\""),
            ("--qps=1000 --num_channels=2000", "flag --qps: expected a number from 1 to 500"),
            ("--num_channels=-1", "flag --num_channels: expected a number from 1"),
            ("--rpc=Call", "flag --rpc: expected EmptyCall or UnaryCall"),
            ("--metadata=a:b", "flag --metadata: expected EmptyCall:key:value"),
            ("--expect_status=17", "flag --expect_status: expected a status such as OK"),
            ("--expect_status=ok?", "flag --expect_status: expected a status"),
            ("--response_payload_size=3000000000", "flag --response_payload_size: expected a number from 0"),
            ("--stats_port=70000", "flag --stats_port: expected a number (u16)"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.starts_with(told), "{error}");
        }
    }
}
