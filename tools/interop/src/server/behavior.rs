//! `rpc-behavior` request metadata: it makes the handler sleep, hang, fail, or fail until a number of
//! retries.
//!
//! Values are separated by commas, in one header or several, and processed in order. The prefix
//! `hostname=NAME ` limits a value to one server. An unknown value for this server fails the call, although
//! some peers ignore it: otherwise a case with a typo could pass.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

const KEY: &str = "rpc-behavior";

/// Header with the number of previous attempts (A6).
const ATTEMPTS: &str = "grpc-previous-rpc-attempts";

/// tonic cancels a handler at the caller's deadline with CANCELLED, which may arrive before the caller's own
/// timer fires. Waiting handlers end this much earlier, with the status of other servers.
const BEFORE_DEADLINE: Duration = Duration::from_millis(2);

#[derive(Debug, PartialEq)]
enum Behavior {
    Sleep(Duration),
    KeepOpen,
    Fail(Code),
    /// Succeeds if the call has this number of previous attempts.
    SucceedOnAttempt(u32),
}

/// Processes the metadata. Returns `Ok` if the call should then get a response.
pub(super) async fn obey(metadata: &MetadataMap, host: &str) -> Result<(), Status> {
    let behaviors = read(metadata, host)?;
    if behaviors.is_empty() {
        return Ok(());
    }
    let attempts = attempts(metadata)?;
    let Some(limit) = metadata.get("grpc-timeout").and_then(|text| limit(text.as_bytes())) else {
        return apply(behaviors, attempts).await;
    };
    let applied = timeout(limit.saturating_sub(BEFORE_DEADLINE), apply(behaviors, attempts));
    applied.await.unwrap_or_else(|_| Err(Status::deadline_exceeded("the caller's deadline has passed")))
}

async fn apply(behaviors: Vec<Behavior>, attempts: u32) -> Result<(), Status> {
    for behavior in behaviors {
        match behavior {
            Behavior::Sleep(time) => sleep(time).await,
            Behavior::KeepOpen => std::future::pending().await,
            Behavior::Fail(Code::Ok) => break,
            Behavior::Fail(code) => return Err(Status::new(code, "the call fails by its rpc-behavior")),
            Behavior::SucceedOnAttempt(wanted) if wanted == attempts => break,
            Behavior::SucceedOnAttempt(_) => {}
        }
    }
    Ok(())
}

/// Returns the behaviours for the server with this name.
fn read(metadata: &MetadataMap, host: &str) -> Result<Vec<Behavior>, Status> {
    let mut behaviors = Vec::new();
    for header in metadata.get_all(KEY) {
        let header = header.to_str().map_err(|_| Status::invalid_argument("rpc-behavior: expected ASCII"))?;
        for value in header.split(',').map(str::trim).filter(|value| !value.is_empty()) {
            if let Some(behavior) = for_host(value, host)? {
                behaviors.push(one(behavior).ok_or_else(|| unknown(value))?);
            }
        }
    }
    Ok(behaviors)
}

/// Returns the value without its host name; `None` if it is for another server.
fn for_host<'v>(value: &'v str, host: &str) -> Result<Option<&'v str>, Status> {
    let Some(rest) = value.strip_prefix("hostname=") else { return Ok(Some(value)) };
    match rest.split_once(' ') {
        Some((name, behavior)) if !name.is_empty() => Ok((name == host).then(|| behavior.trim())),
        _ => {
            let expected = "expected \"hostname=NAME BEHAVIOR\"";
            Err(Status::invalid_argument(format!("rpc-behavior: {expected}, found {value:?}")))
        }
    }
}

fn one(value: &str) -> Option<Behavior> {
    if value == "keep-open" {
        return Some(Behavior::KeepOpen);
    }
    if let Some(seconds) = value.strip_prefix("sleep-") {
        return Some(Behavior::Sleep(Duration::from_secs(number(seconds)?.into())));
    }
    if let Some(code) = value.strip_prefix("error-code-") {
        let code = i32::try_from(number(code)?).ok().filter(|code| *code <= 16)?;
        return Some(Behavior::Fail(Code::from(code)));
    }
    // The description and the programs of its authors differ in this word.
    let attempt = value
        .strip_prefix("succeed-on-retry-attempt-")
        .or_else(|| value.strip_prefix("success-on-retry-attempt-"))?;
    number(attempt).map(Behavior::SucceedOnAttempt)
}

/// Parses digits only. `parse` alone would accept a plus sign.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn unknown(value: &str) -> Status {
    let expected =
        "expected sleep-SECONDS, keep-open, error-code-CODE (0 to 16) or succeed-on-retry-attempt-NUMBER";
    Status::invalid_argument(format!("rpc-behavior: {expected}, found {value:?}"))
}

fn attempts(metadata: &MetadataMap) -> Result<u32, Status> {
    let Some(value) = metadata.get(ATTEMPTS) else { return Ok(0) };
    let found = String::from_utf8_lossy(value.as_bytes());
    let problem = || Status::invalid_argument(format!("{ATTEMPTS}: expected a number, found {found:?}"));
    number(&found).ok_or_else(problem)
}

/// Parses a `grpc-timeout` value: up to eight digits and a unit.
fn limit(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    let count = u64::from(number(str::from_utf8(digits).ok()?)?);
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&'static str, &str)]) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        for (name, value) in pairs {
            metadata.append(*name, value.parse().unwrap());
        }
        metadata
    }

    fn asked(values: &[&str]) -> Result<Vec<Behavior>, String> {
        let pairs: Vec<_> = values.iter().map(|value| (KEY, *value)).collect();
        read(&metadata(&pairs), "here").map_err(|status| {
            assert_eq!(status.code(), Code::InvalidArgument);
            status.message().to_owned()
        })
    }

    #[test]
    fn values_are_taken_in_order_by_the_host_that_they_name() {
        let sleep = |seconds| Behavior::Sleep(Duration::from_secs(seconds));
        assert_eq!(asked(&[]), Ok(vec![]));
        assert_eq!(asked(&["sleep-4"]), Ok(vec![sleep(4)]));
        assert_eq!(
            asked(&["sleep-1, error-code-5,", "keep-open"]),
            Ok(vec![sleep(1), Behavior::Fail(Code::NotFound), Behavior::KeepOpen])
        );
        assert_eq!(
            asked(&["hostname=there keep-open,hostname=here sleep-2,hostname=there what,error-code-0"]),
            Ok(vec![sleep(2), Behavior::Fail(Code::Ok)])
        );
        for value in ["succeed-on-retry-attempt-2", "success-on-retry-attempt-2"] {
            assert_eq!(asked(&[value]), Ok(vec![Behavior::SucceedOnAttempt(2)]));
        }
    }

    #[test]
    fn unknown_behaviors_fail_the_call() {
        for value in [
            "sleep-",
            "sleep-x",
            "sleep--1",
            "sleep-+1",
            "error-code-17",
            "error-code-x",
            "keep-opened",
            "what",
            "succeed-on-retry-attempt-",
            "hostname=here what",
        ] {
            let told = asked(&[value]).unwrap_err();
            assert!(
                told.contains("expected sleep-SECONDS") && told.ends_with(&format!("found {value:?}")),
                "{told}"
            );
        }
        for value in ["hostname=here", "hostname= keep-open"] {
            let told = asked(&[value]).unwrap_err();
            assert_eq!(told, format!("rpc-behavior: expected \"hostname=NAME BEHAVIOR\", found {value:?}"));
        }
    }

    async fn obeyed(pairs: &[(&'static str, &str)]) -> Code {
        obey(&metadata(pairs), "here").await.map_or_else(|status| status.code(), |()| Code::Ok)
    }

    #[tokio::test]
    async fn a_call_succeeds_on_the_attempt_that_was_named() {
        let asked = (KEY, "succeed-on-retry-attempt-2,error-code-14");
        assert_eq!(obeyed(&[asked]).await, Code::Unavailable);
        assert_eq!(obeyed(&[asked, (ATTEMPTS, "1")]).await, Code::Unavailable);
        assert_eq!(obeyed(&[asked, (ATTEMPTS, "2")]).await, Code::Ok);
        assert_eq!(obeyed(&[asked, (ATTEMPTS, "two")]).await, Code::InvalidArgument);
        assert_eq!(obeyed(&[(KEY, "error-code-0,keep-open")]).await, Code::Ok);
    }

    #[tokio::test]
    async fn a_handler_that_waits_ends_at_the_deadline() {
        for behavior in ["keep-open", "sleep-1000"] {
            assert_eq!(obeyed(&[(KEY, behavior), ("grpc-timeout", "20m")]).await, Code::DeadlineExceeded);
        }
        assert_eq!(obeyed(&[(KEY, "sleep-0"), ("grpc-timeout", "99999999H")]).await, Code::Ok);
    }

    #[test]
    fn deadlines_have_units() {
        assert_eq!(limit(b"3S"), Some(Duration::from_secs(3)));
        assert_eq!(limit(b"2999999u"), Some(Duration::from_micros(2_999_999)));
        assert_eq!(limit(b"1M"), Some(Duration::from_secs(60)));
        for text in ["", "S", "3", "3x", "-3S", "99999999999S"] {
            assert_eq!(limit(text.as_bytes()), None, "{text}");
        }
    }
}
