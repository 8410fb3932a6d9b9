//! The text of a scrape, and the pages and files that name its metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;
use serde_json::Value;

use super::*;
use crate::telemetry::metrics::ChannelMetrics;
use crate::telemetry::metrics::otel::tests::feed;

/// Units, kinds and escapes, in the text that Prometheus receives.
#[test]
fn names_and_values_are_escaped() {
    let reader = SharedReader(Arc::new(ManualReader::builder().build()));
    let provider = SdkMeterProvider::builder().with_reader(reader.clone()).build();
    let meter = provider.meter("test");
    let sent = meter.u64_counter("first.sent-bytes").with_unit("By").with_description("a \\ b\nc").build();
    sent.add(7, &[KeyValue::new("x.y", "say \"hi\"\n\\o/"), KeyValue::new("1", true)]);
    sent.add(5, &[]);
    meter.u64_counter("never.used").build();
    meter.i64_up_down_counter("open.streams_total").with_unit("{stream}").build().add(-3, &[]);
    let full = meter.f64_gauge("full").with_unit("1").build();
    full.record(0.5, &[KeyValue::new("a.b", 1), KeyValue::new("a_b", 2)]);
    let wait = meter.f64_histogram("wait").with_unit("s").with_boundaries(vec![0.0, 0.00001, 2.5]).build();
    for seconds in [-1.0, 0.00001, 0.5, 3.0] {
        wait.record(seconds, &[KeyValue::new("m", "s/M")]);
    }
    meter.u64_histogram("tries").with_unit("try").with_boundaries(vec![1.0]).build().record(2, &[]);
    let mut collected = ResourceMetrics::default();
    reader.collect(&mut collected).expect("a provider");
    let expected = r#"# HELP first_sent_bytes_total a \\ b\nc
# TYPE first_sent_bytes_total counter
first_sent_bytes_total 5
first_sent_bytes_total{_1="true",x_y="say \"hi\"\n\\o/"} 7
# TYPE open_streams_total gauge
open_streams_total -3
# TYPE full_ratio gauge
full_ratio{a_b="1;2"} 0.5
# TYPE wait_seconds histogram
wait_seconds_bucket{m="s/M",le="0"} 1
wait_seconds_bucket{m="s/M",le="0.00001"} 2
wait_seconds_bucket{m="s/M",le="2.5"} 3
wait_seconds_bucket{m="s/M",le="+Inf"} 4
wait_seconds_sum{m="s/M"} 2.50001
wait_seconds_count{m="s/M"} 4
# TYPE tries_try histogram
tries_try_bucket{le="1"} 0
tries_try_bucket{le="+Inf"} 1
tries_try_sum 2
tries_try_count 1
"#;
    assert_eq!(text_format::encode(&collected), expected);
    let numbers = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e21].map(text_format::number);
    assert_eq!(numbers, ["+Inf", "-Inf", "NaN", "1000000000000000000000"]);
}

/// Returns a file of the repository.
fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Type and labels of each exported metric.
type ExportedMetrics = BTreeMap<String, (String, BTreeSet<String>)>;

/// Records every metric and returns what a scrape has.
async fn exported() -> ExportedMetrics {
    let prometheus = PrometheusMetrics::new();
    let metrics = ChannelMetrics::from(prometheus.metrics()).for_target("xds:///orders".into());
    let xds = feed(&metrics).await;
    let text = prometheus.encode();
    drop(xds);
    let mut all = ExportedMetrics::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').expect("a name and a type");
            assert!(
                all.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new())).is_none(),
                "{name} twice"
            );
        } else if !line.starts_with('#') {
            let (name, rest) = line.split_once('{').expect("labels");
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix).filter(|name| all.contains_key(*name)))
                .unwrap_or(name);
            let (_, labels) = all.get_mut(name).unwrap_or_else(|| panic!("{name} has no TYPE"));
            // The values of `feed` have neither `",` nor `="` inside, apart from those of localities.
            let rest = rest.replace("\\\"", "");
            labels.extend(rest.split("\",").filter_map(|pair| Some(pair.split_once("=\"")?.0.to_owned())));
            labels.remove("le");
        }
    }
    assert_eq!(all.len(), Metric::ALL.len());
    all
}

/// The table of `docs/metrics.md` has every exported metric with its type and labels.
#[tokio::test(start_paused = true)]
async fn the_documented_metrics_are_exported() {
    let page = file("docs/metrics.md");
    let names =
        |cell: &str| -> BTreeSet<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let rows = page.lines().filter(|line| line.starts_with("| `grpc_") || line.starts_with("| `evenkeel_"));
    let documented: ExportedMetrics = rows
        .map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let [_, name, kind, labels, ..] = &cells[..] else { panic!("{row}") };
            let mut labels = names(labels);
            labels.insert("grpc_target".to_owned());
            (name.trim_matches('`').to_owned(), ((*kind).to_owned(), labels))
        })
        .collect();
    assert_eq!(documented, exported().await);
}

/// Parts of a PromQL expression, without strings and ranges.
fn tokens(query: &str) -> Vec<String> {
    let mut tokens = Vec::<String>::new();
    let mut characters = query.chars();
    let mut is_word = false;
    while let Some(character) = characters.next() {
        let was_word = std::mem::replace(&mut is_word, false);
        match character {
            '"' => assert!(characters.any(|end| end == '"'), "{query}: an open string"),
            '[' => assert!(characters.any(|end| end == ']'), "{query}: an open range"),
            _ if character.is_whitespace() => {}
            _ if character.is_ascii_alphanumeric() || "_:$.".contains(character) => {
                is_word = true;
                match tokens.last_mut().filter(|_| was_word) {
                    Some(word) => word.push(character),
                    None => tokens.push(character.into()),
                }
            }
            _ => tokens.push(character.into()),
        }
    }
    tokens
}

/// Metric name and labels that a PromQL expression uses.
#[derive(Debug, Default, PartialEq)]
struct QueryNames {
    /// Labels in braces after each metric.
    selectors: Vec<(String, BTreeSet<String>)>,
    /// Labels that the result is grouped by or matched on.
    grouping: BTreeSet<String>,
}

impl QueryNames {
    fn parse(query: &str) -> QueryNames {
        let mut names = QueryNames::default();
        let tokens = tokens(query);
        let until = |from: usize, end: &str| {
            let length = tokens[from..].iter().position(|token| token == end);
            from + length.unwrap_or_else(|| panic!("{query}: no {end}"))
        };
        let is_name =
            |token: &str| token.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        let mut next = 0;
        while let Some(token) = tokens.get(next) {
            next += 1;
            let following = tokens.get(next).map(String::as_str);
            match (token.as_str(), following) {
                ("by" | "without" | "on" | "ignoring" | "group_left" | "group_right", Some("(")) => {
                    let end = until(next, ")");
                    names.grouping.extend(tokens[next..end].iter().filter(|token| is_name(token)).cloned());
                    next = end;
                }
                ("and" | "or" | "unless" | "bool", _) | (_, Some("(" | "by" | "without")) => {}
                (metric, _) if is_name(metric) => {
                    let mut labels = BTreeSet::new();
                    if following == Some("{") {
                        let end = until(next, "}");
                        labels.extend(tokens[next..end].iter().filter(|token| is_name(token)).cloned());
                        next = end;
                    }
                    names.selectors.push((metric.to_owned(), labels));
                }
                _ => {}
            }
        }
        names
    }

    /// Panics if a metric or a label is not exported. `shown` are labels that a text shows, as `{{label}}`.
    fn check(&self, query: &str, shown: &BTreeSet<String>, exported: &ExportedMetrics) {
        assert!(!self.selectors.is_empty(), "{query}: no metric");
        let is_grouped = query.contains(" by ");
        for label in shown {
            assert!(!is_grouped || self.grouping.contains(label), "{query}: the text shows {label}");
        }
        for (name, labels) in &self.selectors {
            let suffix = ["_bucket", "_sum", "_count"].into_iter().find(|suffix| name.ends_with(suffix));
            let family = suffix.and_then(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            let (kind, known) =
                exported.get(family).unwrap_or_else(|| panic!("{query}: {name} is not exported"));
            assert_eq!(kind == "histogram", suffix.is_some(), "{query}: {name} is a {kind}");
            for label in labels.iter().chain(&self.grouping) {
                let is_known = known.contains(label)
                    // Prometheus adds these to every series of a target.
                    || matches!(label.as_str(), "job" | "instance")
                    || label == "le" && suffix == Some("_bucket");
                assert!(is_known, "{query}: {name} has no label {label}");
            }
        }
    }
}

/// Returns the labels that a text shows: `{{label}}` in a legend, `{{ $labels.label }}` in an alert.
fn shown_labels(text: &str) -> BTreeSet<String> {
    let inside = text.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap_or_default().trim());
    let labels = inside.filter(|name| !name.starts_with("$value"));
    labels.map(|name| name.strip_prefix("$labels.").unwrap_or(name).to_owned()).collect()
}

#[test]
fn queries_are_parsed() {
    let names = |list: &[&str]| -> BTreeSet<String> { list.iter().map(|name| (*name).to_owned()).collect() };
    let query = r#"sum by (le, a) (rate(m_bucket{b=~"x|y", c!="{d}"}[$__rate_interval])) / scalar(n) > 0.05
        unless on (e) (o == 1e3)"#;
    let expected = QueryNames {
        selectors: vec![
            ("m_bucket".to_owned(), names(&["b", "c"])),
            ("n".to_owned(), names(&[])),
            ("o".to_owned(), names(&[])),
        ],
        grouping: names(&["a", "e", "le"]),
    };
    assert_eq!(QueryNames::parse(query), expected);
    assert_eq!(shown_labels("{{a}} of {{ $labels.b }}, {{ $value | humanize }}"), names(&["a", "b"]));
}

/// Every metric and label in the dashboard is exported.
#[tokio::test(start_paused = true)]
async fn the_dashboard_uses_exported_metrics() {
    let exported = exported().await;
    let dashboard: Value = serde_json::from_str(&file("deploy/grafana/evenkeel.json")).expect("JSON");
    let mut used = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("an expression");
            let names = QueryNames::parse(query);
            names.check(query, &shown_labels(target["legendFormat"].as_str().expect("a legend")), &exported);
            used.extend(names.selectors.into_iter().map(|(name, _)| name));
        }
    }
    assert!(used.len() > 15, "{used:?}");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let query = variable["query"]["query"].as_str().expect("a query");
        let values = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = values.and_then(|values| values.rsplit_once(", ")).expect("label_values");
        let mut names = QueryNames::parse(selector);
        names.grouping.insert(label.to_owned());
        names.check(query, &BTreeSet::new(), &exported);
    }
}

/// Every metric and label in the alerts is exported.
#[tokio::test(start_paused = true)]
async fn the_alerts_use_exported_metrics() {
    let exported = exported().await;
    let rules: Value = serde_saphyr::from_str(&file("deploy/prometheus/alerts.yaml")).expect("YAML");
    let mut alerts = BTreeSet::new();
    for rule in rules["groups"][0]["rules"].as_array().expect("rules") {
        let query = rule["expr"].as_str().expect("an expression");
        let texts = rule["annotations"].as_object().expect("annotations").values();
        let shown = texts.flat_map(|text| shown_labels(text.as_str().expect("a text"))).collect();
        QueryNames::parse(query).check(query, &shown, &exported);
        assert!(rule["for"].is_string() && rule["labels"]["severity"].is_string(), "{rule}");
        alerts.insert(rule["alert"].as_str().expect("a name").to_owned());
    }
    let expected =
        ["ControlPlaneLost", "ErrorRatio", "NoReadyEndpoint", "ResourceMissing", "ResourceRejected"];
    assert_eq!(alerts, expected.map(|name| format!("Evenkeel{name}")).into());
}
