//! Encoder of the Prometheus text format 0.0.4, by OpenTelemetry's rules of compatibility with Prometheus.
//!
//! Dots become underscores, units become suffixes, and a monotonic sum ends with `_total`. Series are sorted, so that two
//! scrapes without a change are equal. Exponential histograms are left out: the format has no form for them.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, HistogramDataPoint, Metric, MetricData, ResourceMetrics, ScopeMetrics,
};

/// Returns the collected metrics in the text format.
pub(super) fn encode(collected: &ResourceMetrics) -> String {
    let mut text = String::new();
    for metric in collected.scope_metrics().flat_map(ScopeMetrics::metrics) {
        match metric.data() {
            AggregatedMetrics::F64(data) => push_family(&mut text, metric, data),
            AggregatedMetrics::U64(data) => push_family(&mut text, metric, data),
            AggregatedMetrics::I64(data) => push_family(&mut text, metric, data),
        }
    }
    text
}

/// Appends a metric with its HELP, its TYPE and all its series.
fn push_family<T: Copy + Display>(text: &mut String, metric: &Metric, data: &MetricData<T>) {
    let kind = match data {
        MetricData::Sum(sum) if sum.is_monotonic() => "counter",
        MetricData::Sum(_) | MetricData::Gauge(_) => "gauge",
        MetricData::Histogram(_) => "histogram",
        MetricData::ExponentialHistogram(_) => return,
    };
    let name = family_name(metric.name(), metric.unit(), kind);
    let single = |labels: String, value: T| {
        let line = sample(&name, &labels, value);
        (labels, line)
    };
    let mut series: Vec<_> = match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().map(|point| single(labels(point.attributes()), point.value())).collect()
        }
        MetricData::Sum(sum) => {
            sum.data_points().map(|point| single(labels(point.attributes()), point.value())).collect()
        }
        MetricData::Histogram(histogram) => {
            let several = |point| {
                let labels = labels(HistogramDataPoint::attributes(point));
                let lines = buckets(&name, &labels, point);
                (labels, lines)
            };
            histogram.data_points().map(several).collect()
        }
        MetricData::ExponentialHistogram(_) => Vec::new(),
    };
    // The SDK returns the points in the order of a hash map.
    series.sort_unstable();
    if series.is_empty() {
        return;
    }
    // Cannot fail, here and below: the target is a `String`.
    if !metric.description().is_empty() {
        let help = metric.description().replace('\\', r"\\").replace('\n', r"\n");
        let _ = writeln!(text, "# HELP {name} {help}");
    }
    let _ = writeln!(text, "# TYPE {name} {kind}");
    text.extend(series.into_iter().map(|(_, lines)| lines));
}

/// Returns the lines of a histogram: cumulative buckets, sum and count.
fn buckets<T: Copy + Display>(name: &str, labels: &str, point: &HistogramDataPoint<T>) -> String {
    let mut lines = String::new();
    let separator = if labels.is_empty() { "" } else { "," };
    let bounds = point.bounds().map(number).chain(["+Inf".to_owned()]);
    let mut below = 0;
    for (bound, count) in bounds.zip(point.bucket_counts()) {
        below += count;
        let _ = writeln!(lines, "{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {below}");
    }
    lines.push_str(&sample(&format!("{name}_sum"), labels, point.sum()));
    lines.push_str(&sample(&format!("{name}_count"), labels, point.count()));
    lines
}

fn sample(name: &str, labels: &str, value: impl Display) -> String {
    let value = number(value);
    if labels.is_empty() { format!("{name} {value}\n") } else { format!("{name}{{{labels}}} {value}\n") }
}

/// Formats a number. Rust and Prometheus differ in the notation of infinity.
pub(super) fn number(value: impl Display) -> String {
    let text = value.to_string();
    match text.as_str() {
        "inf" => "+Inf".to_owned(),
        "-inf" => "-Inf".to_owned(),
        _ => text,
    }
}

/// Formats the labels of a series, sorted by name. Values of attributes whose names become equal are joined with `;`.
fn labels<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut values = BTreeMap::<String, String>::new();
    for attribute in attributes {
        let value = attribute.value.to_string();
        let value = value.replace('\\', r"\\").replace('\n', r"\n").replace('"', "\\\"");
        values
            .entry(sanitize(attribute.key.as_str()))
            .and_modify(|values| {
                values.push(';');
                values.push_str(&value);
            })
            .or_insert(value);
    }
    let pairs: Vec<_> = values.into_iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    pairs.join(",")
}

/// Returns the name of a metric with the suffixes of its unit and kind.
fn family_name(name: &str, unit: &str, kind: &str) -> String {
    let mut name = sanitize(name);
    let unit = match unit {
        "s" => "seconds".to_owned(),
        "By" => "bytes".to_owned(),
        "1" => if kind == "gauge" { "ratio" } else { "" }.to_owned(),
        // An annotation such as `{attempt}` is no unit.
        annotation if annotation.starts_with('{') => String::new(),
        other => sanitize(other),
    };
    for suffix in [unit.as_str(), if kind == "counter" { "total" } else { "" }] {
        if !suffix.is_empty() && !name.ends_with(&format!("_{suffix}")) {
            name.push('_');
            name.push_str(suffix);
        }
    }
    name
}

/// Replaces each run of characters that a name must not have with one underscore.
fn sanitize(name: &str) -> String {
    let mut valid = String::with_capacity(name.len());
    for character in name.chars() {
        if character.is_ascii_digit() && valid.is_empty() {
            valid.push('_');
        }
        match character {
            _ if character.is_ascii_alphanumeric() => valid.push(character),
            _ if valid.ends_with('_') => {}
            _ => valid.push('_'),
        }
    }
    valid
}
