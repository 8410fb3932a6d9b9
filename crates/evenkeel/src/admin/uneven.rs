//! Differences between the actual and the expected share of each endpoint, smoothed over samples.
//!
//! The calls of one second spread by chance even if the policy works, so a single sample is no finding.

use std::collections::BTreeMap;

use super::state::EndpointInfo;

/// Weight of the newest sample.
const NEWEST: f64 = 0.3;

/// Number of samples of a share before it is compared.
const SETTLING: u32 = 3;

/// Maximum relative change of an expected share that does not start the comparison again.
const SAME_SHARE: f64 = 0.1;

/// Identity of an endpoint: one address can be in several clusters.
type ShareKey = (Option<String>, Option<u32>, Option<String>, String);

/// Smoothed differences by endpoint of one channel.
#[derive(Debug, Default)]
pub(super) struct ShareErrors(BTreeMap<ShareKey, ShareError>);

#[derive(Clone, Copy, Debug)]
struct ShareError {
    want: f64,
    error: f64,
    samples: u32,
}

impl ShareErrors {
    /// Processes a sample that covers `seconds`, and sets `off` of each endpoint.
    pub(super) fn handle_sample(&mut self, endpoints: &mut [EndpointInfo], seconds: f64) {
        let mut calls = BTreeMap::<Option<String>, f64>::new();
        for endpoint in endpoints.iter() {
            *calls.entry(endpoint.cluster.clone()).or_default() += endpoint.traffic.rate * seconds;
        }
        let mut next = BTreeMap::new();
        for endpoint in endpoints {
            endpoint.off = None;
            let (Some(got), Some(want)) = (endpoint.got, endpoint.want) else { continue };
            let key = (
                endpoint.cluster.clone(),
                endpoint.priority,
                endpoint.locality.clone(),
                endpoint.address.clone(),
            );
            // The actual share still reflects the expected share of the previous samples.
            let known = self.0.get(&key);
            let known = known.filter(|known| (want - known.want).abs() <= SAME_SHARE * want.max(known.want));
            let samples = known.map_or(1, |known| known.samples.saturating_add(1));
            let error = match known {
                Some(known) if samples > SETTLING => known.error + NEWEST * (got - want - known.error),
                _ => got - want,
            };
            let share_error = ShareError { want, error, samples };
            endpoint.off = share_error.beyond_chance(calls.get(&endpoint.cluster).copied().unwrap_or(0.0));
            next.insert(key, share_error);
        }
        self.0 = next;
    }
}

impl ShareError {
    /// Returns the difference if it is larger than chance and rounding explain for this number of calls per sample.
    fn beyond_chance(self, calls: f64) -> Option<f64> {
        if self.samples <= SETTLING || calls <= 0.0 {
            return None;
        }
        // Smoothing has the effect of 2/NEWEST - 1 samples together.
        let samples = f64::from(self.samples - SETTLING).min(2.0 / NEWEST - 1.0);
        let spread = (self.want * (1.0 - self.want) / (calls * samples)).max(0.0).sqrt();
        let is_off = self.error.abs() > (SAME_SHARE * self.want).max(4.0 * spread);
        is_off.then_some(self.error)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoints(shares: [(f64, f64); 2]) -> Vec<EndpointInfo> {
        let of = |(index, (want, got)): (usize, (f64, f64))| {
            let endpoint = json!({
                "address": format!("10.0.0.{index}:1"), "name": null, "cluster": "orders", "priority": null,
                "locality": null, "state": "READY", "unused": null, "weight": null, "want": want, "got": got,
                "utilization": null,
                "traffic": {
                    "started": 1, "succeeded": 1, "failed": 0, "in_flight": 0, "rate": 600.0 * got,
                    "failures": 0.0, "p50_ms": null, "p99_ms": null,
                },
            });
            serde_json::from_value(endpoint).expect("an endpoint")
        };
        shares.into_iter().enumerate().map(of).collect()
    }

    /// A single deviating sample is noise; a persistent deviation is reported, and a changed share starts again.
    #[test]
    fn persistent_deviations_are_reported() {
        let mut errors = ShareErrors::default();
        let mut sample = |shares| {
            let mut endpoints = endpoints(shares);
            errors.handle_sample(&mut endpoints, 1.0);
            [endpoints[0].off.is_some_and(|off| off > 0.0), endpoints[1].off.is_some_and(|off| off < 0.0)]
        };
        for _ in 0..5 {
            assert_eq!(sample([(0.5, 0.5), (0.5, 0.5)]), [false; 2]);
        }
        assert_eq!(sample([(0.5, 0.56), (0.5, 0.44)]), [false; 2], "one sample");
        let mut found = [false; 2];
        for _ in 0..6 {
            found = sample([(0.5, 0.8), (0.5, 0.2)]);
        }
        assert_eq!(found, [true; 2]);
        assert_eq!(sample([(0.8, 0.5), (0.2, 0.5)]), [false; 2], "the expected share has changed");
    }
}
