//! The text of a scrape, and the pages and files that name its metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;

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
