//! The `grpc-timeout` header: at most eight digits and a unit, from hours to nanoseconds.
//!
//! A malformed header is ignored and sets no deadline. Formatting uses the finest unit that fits and rounds up, so that a
//! server's deadline is never before its client's.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

/// Name of the header.
pub(crate) static NAME: HeaderName = HeaderName::from_static("grpc-timeout");

/// Maximum number of digits in the header, and the largest number that fits.
const MAX_DIGITS: usize = 8;
const MAX: u64 = 99_999_999;

/// Parses the header; `None` if it is malformed.
pub(crate) fn parse(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    if !(1..=MAX_DIGITS).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Cannot overflow: eight digits, times 3600 at most.
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Formats a timeout, rounded up to eight digits. The maximum is about 11,000 years.
pub(crate) fn format(timeout: Duration) -> HeaderValue {
    let (seconds, nanos) = (timeout.as_secs(), u64::from(timeout.subsec_nanos()));
    let fine = |per_second: u64| {
        let part = nanos.div_ceil(1_000_000_000 / per_second);
        seconds.saturating_mul(per_second).saturating_add(part)
    };
    let coarse = seconds.saturating_add(u64::from(nanos > 0));
    let units = [
        (fine(1_000_000_000), b'n'),
        (fine(1_000_000), b'u'),
        (fine(1_000), b'm'),
        (coarse, b'S'),
        (coarse.div_ceil(60), b'M'),
        (coarse.div_ceil(3600), b'H'),
    ];
    let (number, unit) = units.into_iter().find(|(number, _)| *number <= MAX).unwrap_or((MAX, b'H'));
    write(number, unit)
}

/// Formats a number of at most eight digits.
fn write(mut number: u64, unit: u8) -> HeaderValue {
    let mut text = [unit; MAX_DIGITS + 1];
    let mut from = MAX_DIGITS;
    for (i, digit) in text.iter_mut().enumerate().take(MAX_DIGITS).rev() {
        // A remainder of ten is a single digit.
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        from = i;
        if number == 0 {
            break;
        }
    }
    HeaderValue::from_bytes(text.split_at(from).1).expect("digits and a letter are a valid header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn read(text: &[u8]) -> Option<Duration> {
        parse(&HeaderValue::from_bytes(text).unwrap())
    }

    /// RT-1: a value of one to eight digits and a unit is parsed, and any other value is rejected.
    #[test]
    fn timeouts_are_read() {
        for (text, timeout) in [
            ("1H", Duration::from_secs(3600)),
            ("5M", Duration::from_secs(300)),
            ("1S", Duration::from_secs(1)),
            ("100m", Duration::from_millis(100)),
            ("7u", Duration::from_micros(7)),
            ("9n", Duration::from_nanos(9)),
            ("0n", Duration::ZERO),
            ("00000001S", Duration::from_secs(1)),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
            ("99999999n", Duration::from_nanos(99_999_999)),
        ] {
            assert_eq!(read(text.as_bytes()), Some(timeout), "{text}");
        }
        let bad = [
            "",
            "1",
            "S",
            "1s",
            "1h",
            "1 S",
            " 1S",
            "1S ",
            "+1S",
            "-1S",
            "1.5S",
            "0x1S",
            "1Sm",
            "123456789n",
        ];
        for text in bad {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(read(b"1\xff"), None);
        assert_eq!(read(b"\xff1S"), None);
    }

    /// RT-1: a timeout is formatted in the finest unit for which eight digits suffice, and rounded up.
    #[test]
    fn timeouts_are_written_as_finely_as_eight_digits_allow() {
        for (seconds, nanos, text) in [
            (0, 0, "0n"),
            (0, 1, "1n"),
            (0, 10, "10n"),
            (0, 99_999_999, "99999999n"),
            (0, 100_000_000, "100000u"),
            (0, 100_000_001, "100001u"),
            (1, 0, "1000000u"),
            (99, 999_999_000, "99999999u"),
            (99, 999_999_001, "100000m"),
            (100, 0, "100000m"),
            (99_999, 999_000_000, "99999999m"),
            (99_999, 999_000_001, "100000S"),
            (99_999_999, 0, "99999999S"),
            (99_999_999, 1, "1666667M"),
            (99_999_999 * 60, 0, "99999999M"),
            (99_999_999 * 60, 1, "1666667H"),
            (99_999_999 * 3600, 0, "99999999H"),
            (99_999_999 * 3600, 1, "99999999H"),
            (u64::MAX, 999_999_999, "99999999H"),
        ] {
            assert_eq!(format(Duration::new(seconds, nanos)), text, "{seconds} s {nanos} ns");
        }
    }

    /// RT-1: an encoded timeout is parsed as no shorter, and at most one part in a million longer, which is the
    /// precision of eight digits.
    #[test]
    fn what_is_written_is_read() {
        let mut nanos: u64 = 1;
        while nanos < u64::MAX / 3 {
            for nanos in [nanos, nanos + 1, nanos * 2 - 1] {
                let timeout = Duration::from_nanos(nanos);
                let read = parse(&format(timeout)).unwrap();
                let excess = read.saturating_sub(timeout).as_nanos();
                let most = if nanos < 99_999_999 * SECOND { nanos / 99_999 } else { 3600 * SECOND };
                assert!(read >= timeout && excess <= u128::from(most), "{timeout:?} {read:?}");
            }
            nanos += nanos / 3 + 1;
        }
    }
}
