//! Retry policy: decides if and when a failed call is retried (A6, A44).
//!
//! Pure decisions, without a clock, randomness or I/O. The call passes the outcome of each attempt to [`RetryState`] and waits
//! for the returned backoff. Transparent retries are not part of this module: they count neither as attempts nor as
//! failures.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_core::Code;
use evenkeel_xds::routing;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Header with the number of earlier attempts. The first attempt has none.
pub(crate) static PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

/// Trailer with the server's delay before the next attempt in milliseconds. Negative means no retry.
pub(crate) static PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Maximum number of attempts. A policy with more is treated as if it had this many (A6).
pub(crate) const MAX_ATTEMPTS: u32 = 5;

/// Jitter of a backoff, as a fraction of its length (A6).
const JITTER: f64 = 0.2;

/// One token of a [`RetryThrottle`], which counts in thousandths.
const TOKEN: u32 = 1_000;

/// Settings for retries of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetryPolicy {
    /// Maximum number of attempts, including the first.
    pub(crate) max_attempts: u32,
    /// First backoff, before jitter.
    pub(crate) initial_backoff: Duration,
    /// Maximum backoff, before jitter.
    pub(crate) max_backoff: Duration,
    /// Factor between consecutive backoffs; above zero.
    pub(crate) multiplier: f64,
    /// Status codes that are retried.
    pub(crate) codes: CodeSet,
}

impl RetryPolicy {
    /// Returns the backoff after `retries` retries since the last pushback. `random` is from 0 to 1.
    fn backoff(&self, retries: u32, random: f64) -> Duration {
        // The number of attempts is at most `MAX_ATTEMPTS`.
        let growth = self.multiplier.powi(retries.min(MAX_ATTEMPTS).cast_signed());
        let nominal = (self.initial_backoff.as_secs_f64() * growth).min(self.max_backoff.as_secs_f64());
        let jitter = 1.0 + JITTER * (2.0 * random - 1.0);
        Duration::try_from_secs_f64(nominal * jitter).unwrap_or(self.max_backoff)
    }
}

impl From<&routing::XdsRetryPolicy> for RetryPolicy {
    fn from(policy: &routing::XdsRetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_attempts: policy.max_attempts.min(MAX_ATTEMPTS),
            initial_backoff: policy.base_interval,
            max_backoff: policy.max_interval,
            multiplier: f64::from(routing::XdsRetryPolicy::MULTIPLIER),
            codes: policy.retry_on.iter().copied().collect(),
        }
    }
}

/// Set of status codes, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeSet(u32);

impl CodeSet {
    pub(crate) fn contains(self, code: Code) -> bool {
        // The 17 codes fit into 32 bits.
        self.0 & 1 << code as u8 != 0
    }
}

impl FromIterator<Code> for CodeSet {
    fn from_iter<I: IntoIterator<Item = Code>>(codes: I) -> CodeSet {
        CodeSet(codes.into_iter().fold(0, |all, code| all | 1 << code as u8))
    }
}

/// Pushback of the server for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPushback {
    /// Retry after exactly this time.
    After(Duration),
    /// Do not retry the call.
    Never,
}

impl RetryPushback {
    /// Reads the pushback of a Trailers-only response. A negative or malformed number means no retry (A6), and so does a
    /// repeated header, which is ambiguous.
    pub(crate) fn read(headers: &HeaderMap) -> Option<RetryPushback> {
        let mut values = headers.get_all(&PUSHBACK).iter();
        let value = values.next()?;
        let millis = value.to_str().ok().and_then(|text| text.parse::<i32>().ok());
        match millis.and_then(|millis| u64::try_from(millis).ok()) {
            Some(millis) if values.next().is_none() => {
                Some(RetryPushback::After(Duration::from_millis(millis)))
            }
            _ => Some(RetryPushback::Never),
        }
    }
}

/// Retry state of one call.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// `None` if the call has one attempt. Boxed, because most calls have none and a call is moved often.
    policy: Option<Box<RetryPolicy>>,
    /// Number of retries so far.
    retried: u32,
    /// Number of retries since the last pushback with a delay.
    since_pushback: u32,
}

impl RetryState {
    /// Creates the state of a call before its first attempt.
    pub(crate) fn new(policy: impl Into<Option<RetryPolicy>>) -> RetryState {
        RetryState { policy: policy.into().map(Box::new), retried: 0, since_pushback: 0 }
    }

    /// Records the end of an attempt: its code, the server's pushback, and if the call is committed to this attempt (A6:
    /// headers arrived, or the request can no longer be sent again). `random` is from 0 to 1.
    ///
    /// Returns the backoff before the next attempt, `None` if there is none. The end of every attempt must be recorded,
    /// including success, since `throttle` counts all of them.
    pub(crate) fn next(
        &mut self,
        code: Code,
        pushback: Option<RetryPushback>,
        committed: bool,
        throttle: Option<&RetryThrottle>,
        random: f64,
    ) -> Option<Duration> {
        if code == Code::Ok {
            if let Some(throttle) = throttle {
                throttle.record_success();
            }
            return None;
        }
        let retryable = self.policy.as_ref().is_some_and(|policy| policy.codes.contains(code));
        // A retryable failure or a pushback without retry takes a token, even if the call is not retried (A6).
        let counts = retryable || pushback == Some(RetryPushback::Never);
        let allowed = throttle.filter(|_| counts).is_none_or(RetryThrottle::record_failure);
        let policy = self.policy.as_ref().filter(|_| retryable && allowed && !committed)?;
        // The first attempt counts too.
        if self.retried + 1 >= policy.max_attempts {
            return None;
        }
        let wait = match pushback {
            Some(RetryPushback::Never) => return None,
            Some(RetryPushback::After(wait)) => {
                // After a pushback the backoffs start again with the initial one (A6).
                self.since_pushback = 0;
                wait
            }
            None => {
                let wait = policy.backoff(self.since_pushback, random);
                self.since_pushback += 1;
                wait
            }
        };
        self.retried += 1;
        Some(wait)
    }

    /// Returns the value of [`PREVIOUS_ATTEMPTS`] for the next attempt; `None` for the first.
    pub(crate) fn previous_attempts(&self) -> Option<HeaderValue> {
        (self.retried > 0).then(|| HeaderValue::from(self.retried))
    }
}

/// Settings of a [`RetryThrottle`], in thousandths of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryThrottlingConfig {
    /// Initial and maximum number of tokens: above 0, at most 1,000,000 (1000 tokens).
    pub(crate) max_tokens: u32,
    /// Number of tokens that a success returns; above 0.
    pub(crate) token_ratio: u32,
}

/// Retry throttle, which keeps retries from overloading a failing server. Failures take tokens and successes return them.
/// Calls are retried only while more than half of the tokens remain (A6). A channel has one for all calls; it never blocks.
#[derive(Debug)]
pub(crate) struct RetryThrottle {
    settings: RetryThrottlingConfig,
    tokens: AtomicU32,
}

impl RetryThrottle {
    /// Creates a throttle with all tokens.
    pub(crate) fn new(settings: RetryThrottlingConfig) -> RetryThrottle {
        RetryThrottle { settings, tokens: AtomicU32::new(settings.max_tokens) }
    }

    /// Takes a token for a failure. Returns true if calls may be retried.
    fn record_failure(&self) -> bool {
        let take = |tokens: u32| tokens.saturating_sub(TOKEN);
        let before =
            // Relaxed: the number orders no other memory.
            self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| Some(take(tokens)));
        // Always `Ok`: the closure never returns `None`.
        let (Ok(before) | Err(before)) = before;
        take(before) > self.settings.max_tokens / 2
    }

    /// Returns tokens for a success. Writes nothing if all tokens are present, which is the common case.
    fn record_success(&self) {
        let RetryThrottlingConfig { max_tokens, token_ratio } = self.settings;
        // `Err` if all tokens are present.
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| {
            (tokens < max_tokens).then(|| tokens.saturating_add(token_ratio).min(max_tokens))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// In the middle: no jitter.
    const MIDDLE: f64 = 0.5;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 5,
        initial_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_millis(300),
        multiplier: 2.0,
        // UNAVAILABLE and INTERNAL.
        codes: CodeSet(1 << 14 | 1 << 13),
    };

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn tokens(max_tokens: u32, token_ratio: u32) -> RetryThrottle {
        RetryThrottle::new(RetryThrottlingConfig { max_tokens, token_ratio })
    }

    /// Returns the delay before the retry after each attempt, or `None` if there is no retry.
    fn waits(
        policy: impl Into<Option<RetryPolicy>>,
        ends: &[(Code, Option<RetryPushback>)],
    ) -> Vec<Option<Duration>> {
        let mut retries = RetryState::new(policy);
        ends.iter().map(|(code, pushback)| retries.next(*code, *pushback, false, None, MIDDLE)).collect()
    }

    #[test]
    fn backoffs_grow_up_to_the_longest_and_attempts_end() {
        let unavailable = [(Code::Unavailable, None); 6];
        let expected = [Some(ms(100)), Some(ms(200)), Some(ms(300)), Some(ms(300)), None, None];
        assert_eq!(waits(POLICY, &unavailable), expected);
        let two = RetryPolicy { max_attempts: 2, ..POLICY };
        assert_eq!(waits(two, &unavailable[..3]), [Some(ms(100)), None, None]);
        assert_eq!(waits(None, &unavailable[..2]), [None, None]);
        let shrinking = RetryPolicy { multiplier: 0.5, ..POLICY };
        assert_eq!(waits(shrinking, &unavailable[..3]), [Some(ms(100)), Some(ms(50)), Some(ms(25))]);
        let first_is_longest = RetryPolicy { initial_backoff: ms(900), ..POLICY };
        assert_eq!(waits(first_is_longest, &unavailable[..1]), [Some(ms(300))]);
        let huge = Duration::MAX;
        let endless =
            RetryPolicy { initial_backoff: huge, max_backoff: huge, multiplier: f64::MAX, ..POLICY };
        assert_eq!(waits(endless, &unavailable[..2]), [Some(huge), Some(huge)]);
    }

    #[test]
    fn jitter_is_a_fifth_either_way() {
        for (random, wait) in [(0.0, 80), (0.25, 90), (0.5, 100), (0.75, 110), (1.0, 120)] {
            let mut retries = RetryState::new(POLICY);
            assert_eq!(
                retries.next(Code::Unavailable, None, false, None, random),
                Some(ms(wait)),
                "{random}"
            );
        }
        // Jitter is applied after the maximum, so the backoff may exceed it (A6).
        let mut retries = RetryState::new(RetryPolicy { max_backoff: ms(100), ..POLICY });
        assert_eq!(retries.next(Code::Unavailable, None, false, None, 1.0), Some(ms(120)));
        assert_eq!(retries.next(Code::Unavailable, None, false, None, 1.0), Some(ms(120)));
    }

    #[test]
    fn only_the_codes_of_the_policy_are_tried_again() {
        use Code::{Cancelled, Internal, Unauthenticated, Unavailable, Unknown};
        assert_eq!(waits(POLICY, &[(Internal, None), (Unavailable, None)]), [Some(ms(100)), Some(ms(200))]);
        for code in [Code::Ok, Cancelled, Unknown, Unauthenticated, Code::DeadlineExceeded] {
            assert_eq!(waits(POLICY, &[(code, None)]), [None], "{code:?}");
            // Server pushback does not make the code retryable.
            assert_eq!(waits(POLICY, &[(code, Some(RetryPushback::After(ms(5))))]), [None], "{code:?}");
        }
        let all = [Cancelled, Unknown, Unauthenticated];
        let codes: CodeSet = all.into_iter().collect();
        assert!(all.into_iter().all(|code| codes.contains(code)));
        assert!(!codes.contains(Code::Ok) && !codes.contains(Unavailable));
    }

    #[test]
    fn pushback_sets_the_delay_and_resets_the_backoff() {
        let failed = (Code::Unavailable, None);
        let after = |millis| (Code::Unavailable, Some(RetryPushback::After(ms(millis))));
        let never = (Code::Unavailable, Some(RetryPushback::Never));
        let cases: [(&[_], &[Option<u64>]); 5] = [
            (&[failed, failed, after(7), failed, failed], &[Some(100), Some(200), Some(7), Some(100), None]),
            (&[after(5000), after(0), failed], &[Some(5000), Some(0), Some(100)]),
            (&[failed, never], &[Some(100), None]),
            (&[never], &[None]),
            // Server pushback does not raise the maximum number of attempts.
            (
                &[after(1), after(2), after(3), after(4), after(5)],
                &[Some(1), Some(2), Some(3), Some(4), None],
            ),
        ];
        for (ends, expected) in cases {
            let expected: Vec<_> = expected.iter().map(|wait| wait.map(ms)).collect();
            assert_eq!(waits(POLICY, ends), expected);
        }
    }

    #[test]
    fn a_committed_call_is_not_tried_again_but_counts() {
        let throttle = tokens(10_000, 100);
        let mut retries = RetryState::new(POLICY);
        assert_eq!(retries.next(Code::Unavailable, None, true, Some(&throttle), MIDDLE), None);
        assert_eq!(throttle.tokens.load(Ordering::Relaxed), 9_000);
        assert_eq!(retries.previous_attempts(), None);
    }

    #[test]
    fn pushback_is_read_from_headers() {
        let after = |millis| Some(RetryPushback::After(ms(millis)));
        let never = Some(RetryPushback::Never);
        for (text, pushback) in [
            ("0", after(0)),
            ("15", after(15)),
            ("007", after(7)),
            ("2147483647", after(2_147_483_647)),
            ("-1", never),
            ("-2147483648", never),
            ("2147483648", never),
            ("99999999999999999999", never),
            ("", never),
            ("soon", never),
            ("1.5", never),
            ("1 ", never),
            ("0x10", never),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-retry-pushback-ms", HeaderValue::from_str(text).unwrap());
            assert_eq!(RetryPushback::read(&headers), pushback, "{text}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(RetryPushback::read(&headers), None);
        headers.append("grpc-retry-pushback-ms", HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(RetryPushback::read(&headers), never);
        let mut headers = HeaderMap::new();
        headers.append("grpc-retry-pushback-ms", HeaderValue::from_static("1"));
        headers.append("grpc-retry-pushback-ms", HeaderValue::from_static("1"));
        assert_eq!(RetryPushback::read(&headers), never);
    }

    #[test]
    fn attempts_carry_the_number_of_previous_ones() {
        let mut retries = RetryState::new(POLICY);
        assert_eq!(retries.previous_attempts(), None);
        for previous in ["1", "2", "3", "4"] {
            retries.next(Code::Unavailable, None, false, None, MIDDLE);
            assert_eq!(retries.previous_attempts().unwrap(), previous);
        }
        assert_eq!(PREVIOUS_ATTEMPTS, "grpc-previous-rpc-attempts");
    }

    /// Tokens in the throttle after each call, in thousandths, and if the call was retried.
    #[test]
    fn tokens_are_taken_and_given_back() {
        let after = Some(RetryPushback::After(ms(1)));
        let never = Some(RetryPushback::Never);
        let throttle = tokens(4_000, 546);
        for (i, (code, pushback, left, retried)) in [
            // The number of tokens has a maximum.
            (Code::Ok, None, 4_000, false),
            (Code::Unavailable, None, 3_000, true),
            (Code::Ok, None, 3_546, false),
            // A failure that the caller caused.
            (Code::InvalidArgument, None, 3_546, false),
            (Code::InvalidArgument, after, 3_546, false),
            (Code::InvalidArgument, never, 2_546, false),
            (Code::Ok, None, 3_092, false),
            (Code::Ok, None, 3_638, false),
            (Code::Internal, after, 2_638, true),
            (Code::Unavailable, never, 1_638, false),
            (Code::Ok, None, 2_184, false),
            (Code::Ok, None, 2_730, false),
            (Code::Ok, None, 3_276, false),
            // One token for both reasons together.
            (Code::Unavailable, never, 2_276, false),
            (Code::Unavailable, None, 1_276, false),
            (Code::Unavailable, after, 276, false),
            (Code::Unavailable, None, 0, false),
            (Code::Unavailable, None, 0, false),
            (Code::Ok, None, 546, false),
        ]
        .into_iter()
        .enumerate()
        {
            let wait = RetryState::new(POLICY).next(code, pushback, false, Some(&throttle), MIDDLE);
            assert_eq!(wait.is_some(), retried, "{i}: {code:?} {pushback:?}");
            assert_eq!(throttle.tokens.load(Ordering::Relaxed), left, "{i}: {code:?} {pushback:?}");
        }
    }

    #[test]
    fn exactly_half_of_the_tokens_is_too_few() {
        // From 3 to 2 of 4, to 2.001 of 4, and to 2 of 3.
        for (max, start, retried) in [(4_000, 3_000, false), (4_000, 3_001, true), (3_000, 3_000, true)] {
            let throttle = tokens(max, 1);
            throttle.tokens.store(start, Ordering::Relaxed);
            let wait = RetryState::new(POLICY).next(Code::Unavailable, None, false, Some(&throttle), MIDDLE);
            assert_eq!(wait.is_some(), retried, "{start} of {max}");
        }
    }

    #[test]
    fn calls_without_a_policy_feed_the_throttle_too() {
        let throttle = tokens(10_000, 500);
        let end = |code, pushback| {
            RetryState::default().next(code, pushback, false, Some(&throttle), MIDDLE);
            throttle.tokens.load(Ordering::Relaxed)
        };
        assert_eq!(end(Code::Unavailable, None), 10_000);
        assert_eq!(end(Code::Unavailable, Some(RetryPushback::Never)), 9_000);
        assert_eq!(end(Code::Ok, None), 9_500);
    }

    #[test]
    fn no_token_is_lost_between_threads() {
        let throttle = tokens(1_000_000, 1_000);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        throttle.record_failure();
                    }
                });
            }
        });
        assert_eq!(throttle.tokens.load(Ordering::Relaxed), 200_000);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        throttle.record_success();
                    }
                });
            }
        });
        assert_eq!(throttle.tokens.load(Ordering::Relaxed), 600_000);
        let tiny = tokens(1, u32::MAX);
        assert!(!tiny.record_failure());
        tiny.record_success();
        assert_eq!(tiny.tokens.load(Ordering::Relaxed), 1);
    }

    /// A44: the route's intervals, codes and attempts, and a multiplier of 2.
    #[test]
    fn policies_of_routes_are_taken() {
        let route = routing::XdsRetryPolicy {
            retry_on: vec![Code::Cancelled, Code::Unavailable],
            max_attempts: 4,
            base_interval: ms(25),
            max_interval: ms(60),
        };
        let policy = RetryPolicy::from(&route);
        let ends = [(Code::Cancelled, None), (Code::Unavailable, None), (Code::Unavailable, None)];
        assert_eq!(waits(policy, &ends), [Some(ms(25)), Some(ms(50)), Some(ms(60))]);
        assert_eq!(waits(policy, &[(Code::Internal, None)]), [None]);
        assert_eq!(policy.max_attempts, 4);
    }
}
