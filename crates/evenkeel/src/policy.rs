//! Typed configs of load-balancing policies, for [`ChannelBuilder::policy`](crate::ChannelBuilder::policy).
//!
//! | function | calls go to |
//! |---|---|
//! | [`pick_first`] | the first address that connects |
//! | [`round_robin`] | every endpoint in turn |
//! | [`weighted_round_robin`] | endpoints in proportion to weights from their load reports |
//! | [`edf_weighted_round_robin`] | endpoints in proportion to weights from the control plane, else in turn |
//! | [`least_request`] | the endpoint with the fewest calls in flight of a few |
//! | [`ring_hash`] | the same endpoint for the same hash |
//! | [`random_subsetting`] | endpoints of a random subset, by another policy |
//! | [`outlier_detection`] | endpoints that do not fail, by another policy |
//! | [`custom`] | endpoints that a policy of the application selects |
//!
//! A config is the JSON of gRPC's service config, and [`ChannelBuilder::build`](crate::ChannelBuilder::build) validates
//! it like one. `docs/policies.md` of the repository describes every setting. The other standard policies need clusters
//! of a control plane, which configures them.
//!
//! ```no_run
//! # fn example() -> Result<(), evenkeel::BuildError> {
//! use std::time::Duration;
//! use evenkeel::{Channel, policy};
//!
//! let channel = Channel::builder("dns:///orders.prod:50051")
//!     .policy(policy::outlier_detection(policy::round_robin()).interval(Duration::from_secs(5)))
//!     .build()?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::time::Duration;

use evenkeel_core::proto3_json::duration_to_json;
use serde_json::{Map, Value, json};

/// Config of a load-balancing policy: its name and its settings.
///
/// It displays as an entry of a `loadBalancingConfig` list.
///
/// ```
/// use evenkeel::policy::{self, PolicyConfig};
/// let config = PolicyConfig::from(policy::least_request().choice_count(3));
/// assert_eq!(config.to_string(), r#"{"least_request_experimental":{"choiceCount":3}}"#);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a config has no effect until a channel is built with it"]
pub struct PolicyConfig {
    name: String,
    settings: Map<String, Value>,
    /// Problem of a config that was given as text, or of its child.
    problem: Option<String>,
}

impl PolicyConfig {
    fn new(name: &str) -> PolicyConfig {
        PolicyConfig { name: name.to_owned(), settings: Map::new(), problem: None }
    }

    fn with(mut self, field: &str, value: impl Into<Value>) -> PolicyConfig {
        self.settings.insert(field.to_owned(), value.into());
        self
    }

    fn with_child(mut self, child: &PolicyConfig) -> PolicyConfig {
        self.problem = self.problem.take().or(child.problem.clone());
        self.with("childPolicy", json!([child.json()]))
    }

    /// Returns the config as a `loadBalancingConfig` list. The error is about text that is not a JSON object.
    pub(crate) fn to_list(&self) -> Result<Value, String> {
        match &self.problem {
            Some(problem) => Err(problem.clone()),
            None => Ok(json!([self.json()])),
        }
    }

    fn json(&self) -> Value {
        json!({ &self.name: self.settings })
    }
}

impl fmt::Display for PolicyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.json().fmt(f)
    }
}

/// `pick_first`: one connection, to the first address that connects. The default without a control plane.
pub fn pick_first() -> PickFirstOptions {
    PickFirstOptions(PolicyConfig::new("pick_first"))
}

/// `round_robin`: every endpoint in turn.
pub fn round_robin() -> PolicyConfig {
    PolicyConfig::new("round_robin")
}

/// `edf_weighted_round_robin`: endpoints in proportion to the weights that a control plane assigned. An endpoint without
/// one has weight 1.
pub fn edf_weighted_round_robin() -> PolicyConfig {
    PolicyConfig::new("edf_weighted_round_robin")
}

/// `weighted_round_robin` (A58): endpoints in proportion to weights from their load reports.
pub fn weighted_round_robin() -> WeightedRoundRobinOptions {
    WeightedRoundRobinOptions(PolicyConfig::new("weighted_round_robin"))
}

/// `least_request_experimental` (A48): the endpoint with the fewest calls in flight of a few that are drawn at random.
pub fn least_request() -> LeastRequestOptions {
    LeastRequestOptions(PolicyConfig::new("least_request_experimental"))
}

/// `ring_hash_experimental` (A42, A76): calls with the same hash go to the same endpoint. Without a control plane, set
/// [`RingHashOptions::request_hash_header`].
pub fn ring_hash() -> RingHashOptions {
    RingHashOptions(PolicyConfig::new("ring_hash_experimental"))
}

/// `random_subsetting_experimental` (A68): another policy over a random subset of this number of endpoints, which
/// differs between clients.
pub fn random_subsetting(subset_size: u32, child: impl Into<PolicyConfig>) -> PolicyConfig {
    PolicyConfig::new("random_subsetting_experimental")
        .with("subsetSize", subset_size)
        .with_child(&child.into())
}

/// `outlier_detection_experimental` (A50): another policy over the endpoints that are not ejected. It ejects none unless
/// one of its two algorithms is set.
pub fn outlier_detection(child: impl Into<PolicyConfig>) -> OutlierDetectionOptions {
    OutlierDetectionOptions(PolicyConfig::new("outlier_detection_experimental").with_child(&child.into()))
}

/// Policy by its name, such as one that the application registered
/// ([`ChannelBuilder::registry`](crate::ChannelBuilder::registry)). `settings` is a JSON object.
///
/// ```no_run
/// # fn example() -> Result<(), evenkeel::BuildError> {
/// use evenkeel::{Channel, policy};
///
/// let channel = Channel::builder("dns:///orders.prod:50051")
///     .policy(policy::custom("weighted_round_robin", r#"{"blackoutPeriod": "5s"}"#))
///     .build()?;
/// # Ok(())
/// # }
/// ```
pub fn custom(name: &str, settings: &str) -> PolicyConfig {
    let mut config = PolicyConfig::new(name);
    match serde_json::from_str(settings) {
        Ok(settings) => config.settings = settings,
        Err(error) => config.problem = Some(format!("settings of {name:?}: expected a JSON object: {error}")),
    }
    config
}

/// Settings of the policy [`pick_first`].
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a config has no effect until a channel is built with it"]
pub struct PickFirstOptions(PolicyConfig);

impl PickFirstOptions {
    /// Shuffles the endpoints on every update, by weight (A62, A113); false unless set.
    pub fn shuffle_address_list(self, shuffle: bool) -> PickFirstOptions {
        PickFirstOptions(self.0.with("shuffleAddressList", shuffle))
    }
}

/// Settings of the policy [`weighted_round_robin`].
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a config has no effect until a channel is built with it"]
pub struct WeightedRoundRobinOptions(PolicyConfig);

impl WeightedRoundRobinOptions {
    /// Uses out-of-band load reports in place of those in responses (A51); false unless set.
    pub fn enable_oob_load_report(self, enable: bool) -> WeightedRoundRobinOptions {
        self.with("enableOobLoadReport", enable)
    }

    /// Requested interval of out-of-band reports; 10 s unless set.
    pub fn oob_reporting_period(self, period: Duration) -> WeightedRoundRobinOptions {
        self.with("oobReportingPeriod", duration_to_json(period))
    }

    /// Time that an endpoint must report before its weight is used; 10 s unless set. Zero disables it.
    pub fn blackout_period(self, period: Duration) -> WeightedRoundRobinOptions {
        self.with("blackoutPeriod", duration_to_json(period))
    }

    /// Lifetime of a weight after the last report; 3 minutes unless set.
    pub fn weight_expiration_period(self, period: Duration) -> WeightedRoundRobinOptions {
        self.with("weightExpirationPeriod", duration_to_json(period))
    }

    /// Interval between weight updates; 1 s unless set, at least 100 ms.
    pub fn weight_update_period(self, period: Duration) -> WeightedRoundRobinOptions {
        self.with("weightUpdatePeriod", duration_to_json(period))
    }

    /// Utilisation that is added for an error rate of 100 %; 1.0 unless set, not negative.
    pub fn error_utilization_penalty(self, penalty: f64) -> WeightedRoundRobinOptions {
        self.with("errorUtilizationPenalty", number(penalty))
    }

    /// Metrics of which the largest one is the utilisation (A114), such as `cpu_utilization` or
    /// `named_metrics.queue`; none unless set.
    pub fn metric_names_for_computing_utilization<'a>(
        self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> WeightedRoundRobinOptions {
        self.with("metricNamesForComputingUtilization", names.into_iter().collect::<Vec<_>>())
    }

    /// Maximum ratio of a weight to the mean, at least 1; unlimited unless set. An extension of evenkeel.
    pub fn weight_cap_ratio(self, ratio: f64) -> WeightedRoundRobinOptions {
        self.with("weightCapRatio", number(ratio))
    }

    fn with(self, field: &str, value: impl Into<Value>) -> WeightedRoundRobinOptions {
        WeightedRoundRobinOptions(self.0.with(field, value))
    }
}

/// Settings of the policy [`least_request`].
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a config has no effect until a channel is built with it"]
pub struct LeastRequestOptions(PolicyConfig);

impl LeastRequestOptions {
    /// Number of endpoints that are drawn; 2 unless set, and at least 2. Values above 10 count as 10.
    pub fn choice_count(self, count: u32) -> LeastRequestOptions {
        LeastRequestOptions(self.0.with("choiceCount", count))
    }

    /// Draws without replacement; false unless set. An extension of evenkeel.
    pub fn distinct_samples(self, distinct: bool) -> LeastRequestOptions {
        LeastRequestOptions(self.0.with("distinctSamples", distinct))
    }
}

/// Settings of the policy [`ring_hash`].
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a config has no effect until a channel is built with it"]
pub struct RingHashOptions(PolicyConfig);

impl RingHashOptions {
    /// Minimum number of entries of the ring; 1,024 unless set.
    pub fn min_ring_size(self, size: u64) -> RingHashOptions {
        RingHashOptions(self.0.with("minRingSize", size))
    }

    /// Maximum number of entries of the ring; 4,096 unless set, and never above the local cap of 4,096.
    pub fn max_ring_size(self, size: u64) -> RingHashOptions {
        RingHashOptions(self.0.with("maxRingSize", size))
    }

    /// Request header with the text to hash (A76). A call without it goes to a random endpoint that is READY.
    pub fn request_hash_header(self, name: &str) -> RingHashOptions {
        RingHashOptions(self.0.with("requestHashHeader", name))
    }
}

/// Settings of the policy [`outlier_detection`].
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a config has no effect until a channel is built with it"]
pub struct OutlierDetectionOptions(PolicyConfig);

impl OutlierDetectionOptions {
    /// Interval between evaluations; 10 s unless set.
    pub fn interval(self, interval: Duration) -> OutlierDetectionOptions {
        self.with("interval", duration_to_json(interval))
    }

    /// Duration of the first ejection; 30 s unless set. Each further ejection is longer by this time.
    pub fn base_ejection_time(self, time: Duration) -> OutlierDetectionOptions {
        self.with("baseEjectionTime", duration_to_json(time))
    }

    /// Maximum duration of an ejection; 5 minutes unless set, or the first duration if that is longer.
    pub fn max_ejection_time(self, time: Duration) -> OutlierDetectionOptions {
        self.with("maxEjectionTime", duration_to_json(time))
    }

    /// Maximum percentage of ejected endpoints; 10 unless set. One ejection is always allowed.
    pub fn max_ejection_percent(self, percent: u32) -> OutlierDetectionOptions {
        self.with("maxEjectionPercent", percent)
    }

    /// Ejects endpoints whose success rate is far below that of the others.
    pub fn success_rate_ejection(self, options: SuccessRateOptions) -> OutlierDetectionOptions {
        self.with("successRateEjection", options.0)
    }

    /// Ejects endpoints of which too many calls fail.
    pub fn failure_percentage_ejection(self, options: FailurePercentageOptions) -> OutlierDetectionOptions {
        self.with("failurePercentageEjection", options.0)
    }

    fn with(self, field: &str, value: impl Into<Value>) -> OutlierDetectionOptions {
        OutlierDetectionOptions(self.0.with(field, value))
    }
}

/// Settings of [`OutlierDetectionOptions::success_rate_ejection`]. The default has gRPC's values.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "options have no effect until a policy is configured with them"]
pub struct SuccessRateOptions(Map<String, Value>);

impl SuccessRateOptions {
    /// Thousandths of a standard deviation below the mean from which an endpoint is ejected; 1,900 unless set.
    pub fn stdev_factor(self, thousandths: u32) -> SuccessRateOptions {
        SuccessRateOptions(with(self.0, "stdevFactor", thousandths))
    }

    /// Probability of an ejection in percent; 100 unless set.
    pub fn enforcement_percentage(self, percent: u32) -> SuccessRateOptions {
        SuccessRateOptions(with(self.0, "enforcementPercentage", percent))
    }

    /// Minimum number of endpoints with enough calls; 5 unless set.
    pub fn minimum_hosts(self, hosts: u32) -> SuccessRateOptions {
        SuccessRateOptions(with(self.0, "minimumHosts", hosts))
    }

    /// Minimum number of calls of an endpoint in an interval; 100 unless set.
    pub fn request_volume(self, calls: u32) -> SuccessRateOptions {
        SuccessRateOptions(with(self.0, "requestVolume", calls))
    }
}

/// Settings of [`OutlierDetectionOptions::failure_percentage_ejection`]. The default has gRPC's values.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "options have no effect until a policy is configured with them"]
pub struct FailurePercentageOptions(Map<String, Value>);

impl FailurePercentageOptions {
    /// Percentage of failed calls above which an endpoint is ejected; 85 unless set.
    pub fn threshold(self, percent: u32) -> FailurePercentageOptions {
        FailurePercentageOptions(with(self.0, "threshold", percent))
    }

    /// Probability of an ejection in percent; 100 unless set.
    pub fn enforcement_percentage(self, percent: u32) -> FailurePercentageOptions {
        FailurePercentageOptions(with(self.0, "enforcementPercentage", percent))
    }

    /// Minimum number of endpoints with enough calls; 5 unless set.
    pub fn minimum_hosts(self, hosts: u32) -> FailurePercentageOptions {
        FailurePercentageOptions(with(self.0, "minimumHosts", hosts))
    }

    /// Minimum number of calls of an endpoint in an interval; 50 unless set.
    pub fn request_volume(self, calls: u32) -> FailurePercentageOptions {
        FailurePercentageOptions(with(self.0, "requestVolume", calls))
    }
}

impl From<PickFirstOptions> for PolicyConfig {
    fn from(options: PickFirstOptions) -> PolicyConfig {
        options.0
    }
}

impl From<WeightedRoundRobinOptions> for PolicyConfig {
    fn from(options: WeightedRoundRobinOptions) -> PolicyConfig {
        options.0
    }
}

impl From<LeastRequestOptions> for PolicyConfig {
    fn from(options: LeastRequestOptions) -> PolicyConfig {
        options.0
    }
}

impl From<RingHashOptions> for PolicyConfig {
    fn from(options: RingHashOptions) -> PolicyConfig {
        options.0
    }
}

impl From<OutlierDetectionOptions> for PolicyConfig {
    fn from(options: OutlierDetectionOptions) -> PolicyConfig {
        options.0
    }
}

fn with(mut settings: Map<String, Value>, field: &str, value: u32) -> Map<String, Value> {
    settings.insert(field.to_owned(), value.into());
    settings
}

/// Returns a number as JSON. JSON has no NaN and no infinity; as text, the parser rejects them with their field.
fn number(number: f64) -> Value {
    if number.is_finite() { number.into() } else { number.to_string().into() }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::Registry;

    use super::*;

    /// Every setting of every function is one that the registry knows and accepts.
    #[test]
    fn configs_are_those_of_the_registry() {
        let second = Duration::from_secs(1);
        let weighted = weighted_round_robin()
            .enable_oob_load_report(true)
            .oob_reporting_period(second)
            .blackout_period(Duration::ZERO)
            .weight_expiration_period(90 * second)
            .weight_update_period(Duration::from_millis(250))
            .error_utilization_penalty(0.5)
            .metric_names_for_computing_utilization(["cpu_utilization", "named_metrics.queue"])
            .weight_cap_ratio(4.0);
        let ejecting = outlier_detection(round_robin())
            .interval(5 * second)
            .base_ejection_time(second)
            .max_ejection_time(60 * second)
            .max_ejection_percent(50)
            .success_rate_ejection(
                SuccessRateOptions::default()
                    .stdev_factor(1000)
                    .enforcement_percentage(90)
                    .minimum_hosts(3)
                    .request_volume(10),
            )
            .failure_percentage_ejection(
                FailurePercentageOptions::default()
                    .threshold(40)
                    .enforcement_percentage(80)
                    .minimum_hosts(2)
                    .request_volume(20),
            );
        let cases: [(PolicyConfig, Value); 9] = [
            (round_robin(), json!({"round_robin": {}})),
            (edf_weighted_round_robin(), json!({"edf_weighted_round_robin": {}})),
            (
                pick_first().shuffle_address_list(true).into(),
                json!({"pick_first": {"shuffleAddressList": true}}),
            ),
            (
                weighted.into(),
                json!({"weighted_round_robin": {
                    "enableOobLoadReport": true, "oobReportingPeriod": "1s", "blackoutPeriod": "0s",
                    "weightExpirationPeriod": "90s", "weightUpdatePeriod": "0.25s", "errorUtilizationPenalty": 0.5,
                    "metricNamesForComputingUtilization": ["cpu_utilization", "named_metrics.queue"],
                    "weightCapRatio": 4.0,
                }}),
            ),
            (
                least_request().choice_count(3).distinct_samples(true).into(),
                json!({"least_request_experimental": {"choiceCount": 3, "distinctSamples": true}}),
            ),
            (
                ring_hash().min_ring_size(64).max_ring_size(128).request_hash_header("x-user").into(),
                json!({"ring_hash_experimental": {
                    "minRingSize": 64, "maxRingSize": 128, "requestHashHeader": "x-user",
                }}),
            ),
            (
                random_subsetting(25, least_request()),
                json!({"random_subsetting_experimental": {
                    "subsetSize": 25, "childPolicy": [{"least_request_experimental": {}}],
                }}),
            ),
            (
                ejecting.into(),
                json!({"outlier_detection_experimental": {
                    "interval": "5s", "baseEjectionTime": "1s", "maxEjectionTime": "60s", "maxEjectionPercent": 50,
                    "successRateEjection": {
                        "stdevFactor": 1000, "enforcementPercentage": 90, "minimumHosts": 3, "requestVolume": 10,
                    },
                    "failurePercentageEjection": {
                        "threshold": 40, "enforcementPercentage": 80, "minimumHosts": 2, "requestVolume": 20,
                    },
                    "childPolicy": [{"round_robin": {}}],
                }}),
            ),
            (custom("round_robin", "{}"), json!({"round_robin": {}})),
        ];
        for (config, expected) in cases {
            assert_eq!(config.to_string(), expected.to_string());
            let parsed = Registry::standard().parse(&config.to_list().unwrap()).unwrap();
            assert_eq!(parsed.to_json(), expected);
            assert_eq!(parsed.warnings(), [""; 0]);
        }
    }

    #[test]
    fn invalid_values_reach_the_parser() {
        let penalty = weighted_round_robin().error_utilization_penalty(f64::NAN);
        let list = PolicyConfig::from(penalty).to_list().unwrap();
        let error = Registry::standard().parse(&list).unwrap_err().to_string();
        assert!(
            error.contains("errorUtilizationPenalty: expected a finite number, found \"NaN\""),
            "{error}"
        );
        for settings in ["", "[]", "7", "{"] {
            let problem =
                outlier_detection(random_subsetting(1, custom("mine", settings))).0.to_list().unwrap_err();
            assert!(problem.starts_with("settings of \"mine\": expected a JSON object: "), "{problem}");
        }
    }
}
