//! Out-of-band load report streams on virtual time: retries and their backoff.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use evenkeel::{Address, Channel, Connector, Io};
use h2::server::{self, SendResponse};
use http::{HeaderMap, HeaderValue, Response};
use testkit::{Log, lock};
use tokio::io::duplex;
use tokio::time::{Instant, sleep};
use tonic::Code;

/// Scripted behaviour for consecutive streams. Later streams get no response.
#[derive(Clone, Copy)]
enum Answer {
    Fails(Code),
    /// Sends a report, and ends after this time.
    ReportsFor(Duration),
    /// Sends a malformed report, and ends after this time.
    GarbageFor(Duration),
}

/// Backends at the ends of pipes, with the start times of the streams.
#[derive(Clone, Default)]
struct Backends {
    scripts: BTreeMap<String, Vec<Answer>>,
    asked: Arc<Mutex<BTreeMap<String, Vec<Instant>>>>,
}

impl Backends {
    fn with(mut self, address: &str, script: &[Answer]) -> Backends {
        self.scripts.insert(address.to_owned(), script.to_vec());
        self
    }

    fn asked(&self, address: &str) -> Vec<Instant> {
        let asked = lock(&self.asked);
        asked.get(address).cloned().unwrap_or_default()
    }

    /// Returns the intervals between consecutive streams, in seconds.
    fn gaps(&self, address: &str) -> Vec<f64> {
        let asked = self.asked(address);
        asked.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
    }
}

impl Connector for Backends {
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        let address = address.to_string();
        let mut script = VecDeque::from(self.scripts[&address].clone());
        let asked = self.asked.clone();
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(async move {
            let mut connection = server::handshake(theirs).await.expect("HTTP/2");
            while let Some(Ok((request, respond))) = connection.accept().await {
                assert_eq!(request.uri().path(), "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics");
                let mut asked = lock(&asked);
                asked.entry(address.clone()).or_default().push(Instant::now());
                tokio::spawn(answer(script.pop_front(), respond));
            }
        });
        Box::pin(async { Ok(Box::new(ours) as Box<dyn Io>) })
    }
}

async fn answer(answer: Option<Answer>, mut respond: SendResponse<Bytes>) {
    let head = || Response::builder().header("content-type", "application/grpc");
    let report: &[u8] = match answer {
        Some(Answer::Fails(code)) => {
            let head = head().header("grpc-status", code as i32).body(()).expect("a head");
            respond.send_response(head, true).expect("a stream");
            return;
        }
        // An empty message is a report without values.
        Some(Answer::ReportsFor(_)) => &[0, 0, 0, 0, 0],
        Some(Answer::GarbageFor(_)) => &[0, 0, 0, 0, 1, 0xff],
        None => std::future::pending().await,
    };
    let mut body = respond.send_response(head().body(()).expect("a head"), false).expect("a stream");
    body.send_data(Bytes::from_static(report), false).expect("a stream");
    if let Some(Answer::ReportsFor(time) | Answer::GarbageFor(time)) = answer {
        sleep(time).await;
    }
    let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from(0))]);
    // The channel may have been dropped.
    let _ = body.send_trailers(trailers);
}

/// Returns a connected channel with out-of-band reports from both backends.
async fn channel(backends: &Backends) -> Channel {
    let policy = r#"{"loadBalancingConfig": [{"weighted_round_robin": {"enableOobLoadReport": true}}]}"#;
    let channel = crate::builder("ipv4:10.0.0.1:80,10.0.0.2:80")
        .service_config(policy)
        .connector(backends.clone())
        .build()
        .expect("a channel");
    channel.ready().await.expect("backends");
    channel
}

const FIRST: &str = "10.0.0.1:80";
const SECOND: &str = "10.0.0.2:80";

/// ORCA-9: a failed stream is retried after 1 s, 1.6 s and so on up to 120 s, with 20 % jitter. Any message
/// before the end resets the backoff, and the next attempt is immediate, at most once per second.
#[tokio::test(start_paused = true)]
async fn streams_that_end_are_retried() {
    let seconds = Duration::from_secs;
    let mut script = vec![Answer::Fails(Code::Unavailable); 13];
    script.push(Answer::ReportsFor(seconds(5)));
    script.push(Answer::ReportsFor(Duration::ZERO));
    script.push(Answer::Fails(Code::Internal));
    script.push(Answer::Fails(Code::Unknown));
    script.push(Answer::GarbageFor(seconds(7)));
    let backends = Backends::default().with(FIRST, &script).with(SECOND, &[]);
    let channel = channel(&backends).await;
    sleep(seconds(3600)).await;
    let gaps = backends.gaps(FIRST);
    assert_eq!(gaps.len(), script.len(), "{gaps:?}");
    let mut nominal = 1.0;
    let failures = (0..13).map(|_| {
        let jittered = (nominal * 0.8, nominal * 1.2);
        nominal = f64::min(nominal * 1.6, 120.0);
        jittered
    });
    let failures: Vec<_> = failures.collect();
    let others = [(5.0, 5.0), (1.0, 1.0), (0.8, 1.2), (1.28, 1.92), (7.0, 7.0)];
    for (gap, (least, most)) in gaps.iter().zip(failures.into_iter().chain(others)) {
        // Timers have millisecond resolution.
        assert!((least - 0.005..=most + 0.005).contains(gap), "{gap} in {gaps:?}");
    }
    assert_eq!(backends.asked(SECOND).len(), 1, "an open stream is not started again");
    drop(channel);
}

/// fault 59, ORCA-9: a backend without the service gets one stream, with one error in the log. The channel continues
/// without reports.
#[tokio::test(start_paused = true)]
async fn a_backend_without_the_service_is_called_once() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let fails = [Answer::Fails(Code::Unimplemented); 3];
    let backends = Backends::default().with(FIRST, &fails).with(SECOND, &[]);
    let channel = channel(&backends).await;
    sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(backends.asked(FIRST).len(), 1);
    let errors = log.at("ERROR");
    assert_eq!(
        errors,
        [format!(
            "ERROR out-of-band load reports disabled for this connection: the backend returned UNIMPLEMENTED address={FIRST}"
        )]
    );
    drop(channel);
}
