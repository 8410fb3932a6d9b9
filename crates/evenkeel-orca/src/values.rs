//! Recorded metric values and their valid ranges.
//!
//! An unset value differs from zero, and a value out of its range is not recorded. Only the wire message maps unset
//! values to zero.

use std::collections::BTreeMap;

use bytes::Bytes;
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use http::HeaderValue;

use crate::base64;
use crate::report::is_non_negative;

/// Recorded metrics. `None` and absent names are unset.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MetricValues {
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<f64>,
    pub(crate) application: Option<f64>,
    pub(crate) requests: Option<f64>,
    pub(crate) errors: Option<f64>,
    pub(crate) utilization: BTreeMap<String, f64>,
    pub(crate) named: BTreeMap<String, f64>,
    pub(crate) cost: BTreeMap<String, f64>,
}

/// Valid range of a metric value (A51).
#[derive(Clone, Copy)]
pub(crate) enum ValueRange {
    /// Finite and at least 0.
    NonNegative,
    /// Between 0 and 1, inclusive.
    Fraction,
    /// Any finite number, also a negative one.
    Finite,
}

impl ValueRange {
    pub(crate) fn contains(self, value: f64) -> bool {
        match self {
            ValueRange::NonNegative => is_non_negative(value),
            ValueRange::Fraction => (0.0..=1.0).contains(&value),
            ValueRange::Finite => value.is_finite(),
        }
    }

    /// Records the value if it is in range. Returns true if it is.
    pub(crate) fn set(self, slot: &mut Option<f64>, value: f64) -> bool {
        let is_in = self.contains(value);
        if is_in {
            *slot = Some(value);
        }
        is_in
    }

    /// Records the value under a name if it is in range. Returns true if it is.
    pub(crate) fn insert(self, map: &mut BTreeMap<String, f64>, name: &str, value: f64) -> bool {
        let is_in = self.contains(value);
        if is_in {
            map.insert(name.to_owned(), value);
        }
        is_in
    }

    /// Replaces all named values by the given ones that are in range. Returns true if all are.
    pub(crate) fn replace_all<N: Into<String>>(
        self,
        map: &mut BTreeMap<String, f64>,
        values: impl IntoIterator<Item = (N, f64)>,
    ) -> bool {
        let mut are_in = true;
        map.clear();
        for (name, value) in values {
            if self.contains(value) {
                map.insert(name.into(), value);
            } else {
                are_in = false;
            }
        }
        are_in
    }
}

impl MetricValues {
    pub(crate) fn is_empty(&self) -> bool {
        let MetricValues { cpu, memory, application, requests, errors, utilization, named, cost } = self;
        [cpu, memory, application, requests, errors].iter().all(|value| value.is_none())
            && [utilization, named, cost].iter().all(|map| map.is_empty())
    }

    /// Returns these values, with `others` where they are unset.
    pub(crate) fn merge(self, others: &MetricValues) -> MetricValues {
        MetricValues {
            cpu: self.cpu.or(others.cpu),
            memory: self.memory.or(others.memory),
            application: self.application.or(others.application),
            requests: self.requests.or(others.requests),
            errors: self.errors.or(others.errors),
            utilization: merge(self.utilization, &others.utilization),
            named: merge(self.named, &others.named),
            cost: merge(self.cost, &others.cost),
        }
    }

    pub(crate) fn into_report(self) -> OrcaLoadReport {
        OrcaLoadReport {
            cpu_utilization: self.cpu.unwrap_or_default(),
            mem_utilization: self.memory.unwrap_or_default(),
            application_utilization: self.application.unwrap_or_default(),
            rps_fractional: self.requests.unwrap_or_default(),
            eps: self.errors.unwrap_or_default(),
            utilization: self.utilization,
            named_metrics: self.named,
            request_cost: self.cost,
            ..OrcaLoadReport::default()
        }
    }

    /// Encodes the value of the trailer, or returns `None` if nothing is recorded (ORCA-5).
    pub(crate) fn into_trailer(self) -> Option<HeaderValue> {
        if self.is_empty() {
            return None;
        }
        let text = base64::encode(&self.into_report().encode_to_vec());
        // The base64 alphabet consists of valid header characters, so this does not fail.
        HeaderValue::from_maybe_shared(Bytes::from(text)).ok()
    }
}

fn merge(mut these: BTreeMap<String, f64>, others: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    if these.is_empty() {
        return others.clone();
    }
    for (name, value) in others {
        if !these.contains_key(name) {
            these.insert(name.clone(), *value);
        }
    }
    these
}
