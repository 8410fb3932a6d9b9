//! Calls of the client: methods with metadata and timeout.
//!
//! A plan comes from the flags `--rpc` and `--metadata`, or from a driver's `Configure`. It is validated
//! here; the calls rely on it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::{Binary, MetadataMap, MetadataValue};

use crate::proto::testing::ClientConfigureRequest;
use crate::proto::testing::client_configure_request::{Metadata, RpcType};

/// Method of the test service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Empty,
    Unary,
}

/// Calls of one method, with metadata and timeout.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) kind: Kind,
    pub(crate) metadata: MetadataMap,
    /// `None` for no deadline.
    pub(crate) timeout: Option<Duration>,
}

/// Metadata entry for one method.
#[derive(Debug)]
pub(crate) struct Extra {
    kind: Kind,
    name: HeaderName,
    value: HeaderValue,
}

impl Kind {
    /// Returns the name in flags and per-peer statistics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Empty => "EmptyCall",
            Kind::Unary => "UnaryCall",
        }
    }

    /// Returns the name in accumulated statistics.
    pub(crate) fn type_name(self) -> &'static str {
        RpcType::from(self).as_str_name()
    }

    fn of_name(name: &str) -> Result<Kind, String> {
        match name {
            "EmptyCall" => Ok(Kind::Empty),
            "UnaryCall" => Ok(Kind::Unary),
            _ => Err("EmptyCall or UnaryCall, or both with a comma".to_owned()),
        }
    }
}

impl From<Kind> for RpcType {
    fn from(kind: Kind) -> RpcType {
        match kind {
            Kind::Empty => RpcType::EmptyCall,
            Kind::Unary => RpcType::UnaryCall,
        }
    }
}

/// Parses the value of `--rpc`. The error describes the expectation.
pub(crate) fn kinds(text: &str) -> Result<Vec<Kind>, String> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let mut kinds = names.map(Kind::of_name).collect::<Result<Vec<_>, _>>()?;
    if kinds.is_empty() {
        kinds.push(Kind::Unary);
    }
    Ok(kinds)
}

/// Parses the value of `--metadata`: `EmptyCall:key:value,UnaryCall:key:value`, with several pairs per method
/// allowed.
pub(crate) fn metadata(text: &str) -> Result<Vec<Extra>, String> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let mut words = part.split(':');
        let kind = words.next().and_then(|name| Kind::of_name(name).ok());
        let pairs: Vec<&str> = words.collect();
        let kind = kind.filter(|_| !pairs.is_empty() && pairs.len().is_multiple_of(2));
        let kind = kind.ok_or("EmptyCall:key:value,UnaryCall:key:value")?;
        for pair in pairs.chunks_exact(2) {
            all.push(Extra::new(kind, pair[0], pair[1])?);
        }
    }
    Ok(all)
}

/// Returns one entry per method. Metadata of other methods is ignored, as in all peers.
pub(crate) fn plan(kinds: &[Kind], metadata: &[Extra], timeout: Duration) -> Vec<Planned> {
    let mut plan: Vec<Planned> = Vec::new();
    for &kind in kinds {
        if plan.iter().all(|planned| planned.kind != kind) {
            plan.push(Planned::new(kind, metadata, timeout));
        }
    }
    plan
}

/// Returns the plan of a driver's request. Errors are the driver's to fix.
pub(crate) fn configured(
    request: &ClientConfigureRequest,
    default_timeout: Duration,
) -> Result<Vec<Planned>, String> {
    let timeout = match u64::try_from(request.timeout_sec) {
        Ok(0) => default_timeout,
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => return Err(format!("timeout_sec: expected 0 or more, found {}", request.timeout_sec)),
    };
    let kinds = request.types.iter().map(|number| kind_of(*number)).collect::<Result<Vec<_>, _>>()?;
    let extra = |entry: &Metadata| {
        let extra = Extra::new(kind_of(entry.r#type)?, &entry.key, &entry.value);
        extra.map_err(|expected| format!("metadata {:?}: expected {expected}", entry.key))
    };
    let metadata = request.metadata.iter().map(extra).collect::<Result<Vec<_>, _>>()?;
    Ok(plan(&kinds, &metadata, timeout))
}

impl Planned {
    fn new(kind: Kind, metadata: &[Extra], timeout: Duration) -> Planned {
        let own = || metadata.iter().filter(|extra| extra.kind == kind);
        let mut headers = HeaderMap::new();
        for extra in own() {
            headers.append(&extra.name, extra.value.clone());
        }
        // A keep-open call must stay in flight, so it has no deadline.
        let is_kept_open = own().any(|extra| extra.name == "rpc-behavior" && extra.value == "keep-open");
        let metadata = MetadataMap::from_headers(headers);
        Planned { kind, metadata, timeout: (!is_kept_open).then_some(timeout) }
    }
}

impl Extra {
    /// Validates an entry. The error describes the expectation.
    fn new(kind: Kind, key: &str, value: &str) -> Result<Extra, String> {
        let name = HeaderName::from_bytes(key.as_bytes()).map_err(|_| "a name of a header")?;
        let value = if key.ends_with("-bin") {
            HeaderValue::from_bytes(MetadataValue::<Binary>::from_bytes(value.as_bytes()).as_encoded_bytes())
        } else {
            HeaderValue::from_bytes(value.as_bytes())
        };
        Ok(Extra { kind, name, value: value.map_err(|_| "a value of visible characters")? })
    }
}

fn kind_of(number: i32) -> Result<Kind, String> {
    match RpcType::try_from(number) {
        Ok(RpcType::EmptyCall) => Ok(Kind::Empty),
        Ok(RpcType::UnaryCall) => Ok(Kind::Unary),
        Err(_) => Err(format!("type: expected 0 (EMPTY_CALL) or 1 (UNARY_CALL), found {number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn flags_set_kinds_and_their_metadata() {
        assert_eq!(kinds("").unwrap(), [Kind::Unary]);
        assert_eq!(kinds("EmptyCall,UnaryCall").unwrap(), [Kind::Empty, Kind::Unary]);
        assert!(kinds("EmptyCall,FullDuplexCall").is_err());

        let all = metadata("EmptyCall:a:1:b:2,UnaryCall:a:3,EmptyCall:a:4,UnaryCall:k-bin:x").unwrap();
        let plan = plan(&[Kind::Empty, Kind::Unary, Kind::Empty], &all, TIMEOUT);
        assert_eq!(plan.iter().map(|planned| planned.kind).collect::<Vec<_>>(), [Kind::Empty, Kind::Unary]);
        let of_a: Vec<_> = plan[0].metadata.get_all("a").iter().collect();
        assert_eq!(of_a, ["1", "4"]);
        assert_eq!(plan[0].metadata.get("b").unwrap(), "2");
        assert_eq!(plan[1].metadata.get("a").unwrap(), "3");
        assert_eq!(plan[1].metadata.get_bin("k-bin").unwrap().to_bytes().unwrap(), "x");

        for wrong in
            ["EmptyCall", "EmptyCall:a", "EmptyCall:a:1:b", "Other:a:1", "EmptyCall:a b:1", "EmptyCall:a:\n"]
        {
            assert!(metadata(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_driver_sets_kinds_metadata_and_timeout() {
        let entry = |kind: i32, key: &str, value: &str| Metadata {
            r#type: kind,
            key: key.into(),
            value: value.into(),
        };
        let request = |types: &[i32], metadata: &[Metadata], timeout_sec| ClientConfigureRequest {
            types: types.to_vec(),
            metadata: metadata.to_vec(),
            timeout_sec,
        };
        let plan = configured(&request(&[1], &[entry(1, "a", "1"), entry(0, "b", "2")], 0), TIMEOUT).unwrap();
        assert_eq!((plan.len(), plan[0].kind, plan[0].timeout), (1, Kind::Unary, Some(TIMEOUT)));
        assert_eq!((plan[0].metadata.len(), plan[0].metadata.get("a").unwrap()), (1, &"1".parse().unwrap()));
        let plan = configured(&request(&[0], &[], 3), TIMEOUT).unwrap();
        assert_eq!((plan[0].kind, plan[0].timeout), (Kind::Empty, Some(Duration::from_secs(3))));
        let kept_open = [entry(0, "rpc-behavior", "keep-open")];
        let plan = configured(&request(&[0, 1], &kept_open, 3), TIMEOUT).unwrap();
        assert_eq!([plan[0].timeout, plan[1].timeout], [None, Some(Duration::from_secs(3))]);
        assert!(configured(&request(&[], &[], 0), TIMEOUT).unwrap().is_empty());

        for (wrong, told) in [
            (request(&[7], &[], 0), "type: expected 0 (EMPTY_CALL) or 1 (UNARY_CALL), found 7"),
            (request(&[0], &[entry(7, "a", "1")], 0), "type: expected 0"),
            (request(&[0], &[entry(0, "a b", "1")], 0), "metadata \"a b\": expected a name of a header"),
            (
                request(&[0], &[entry(0, "a", "\n")], 0),
                "metadata \"a\": expected a value of visible characters",
            ),
            (request(&[0], &[], -1), "timeout_sec: expected 0 or more, found -1"),
        ] {
            let error = configured(&wrong, TIMEOUT).unwrap_err();
            assert!(error.starts_with(told), "{error}");
        }
    }
}
