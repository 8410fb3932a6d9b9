//! Checks the files of the bootstrap's certificate providers: readable, well-formed, matching and currently
//! valid.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel::Credentials;
use evenkeel_xds::bootstrap::{CertificateFiles, CertificateProvider};

/// Result of a check of all providers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CertificateReport {
    /// Descriptions of the providers with usable files.
    pub(super) usable: Vec<String>,
    /// Descriptions of all problems.
    pub(super) problems: Vec<String>,
}

pub(super) fn check(providers: &BTreeMap<String, CertificateProvider>, now: SystemTime) -> CertificateReport {
    let mut report = CertificateReport::default();
    for (name, provider) in providers {
        let checked = match provider {
            CertificateProvider::FileWatcher(files) => files_of(files, now),
            other => Err(vec![format!("is of an unknown kind: {other:?}")]),
        };
        match checked {
            Ok(found) => report.usable.push(format!("{name:?}: {found}")),
            Err(problems) => {
                let about = |problem| format!("certificate provider {name:?}: {problem}");
                report.problems.extend(problems.into_iter().map(about));
            }
        }
    }
    report
}

/// Returns a description of the files, or all problems with them.
fn files_of(files: &CertificateFiles, now: SystemTime) -> Result<String, Vec<String>> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    if let Some(file) = &files.ca_certificate_file {
        // The channel's own loader; its error names the file.
        match Credentials::tls().ca_file(file).build() {
            Ok(_) => match validity_of(file) {
                Ok(all) if all.iter().all(|period| !period.contains(now)) && !all.is_empty() => {
                    problems.push(format!("no root in {file} is valid now: {}", described(&all, now)));
                }
                Ok(all) => found.push(format!("{} roots", all.len())),
                Err(problem) => problems.push(problem),
            },
            Err(error) => problems.push(error.to_string()),
        }
    }
    if let Some(pair) = &files.identity {
        let file = &pair.certificate_file;
        // Credentials need roots, and this provider may have none. The certificate file serves as roots here.
        let tls = Credentials::tls().ca_file(file).identity_files(file, &pair.private_key_file);
        match tls.build() {
            Ok(_) => match validity_of(file) {
                // The first certificate is the leaf. The others are intermediates.
                Ok(chain) if chain.first().is_some_and(|period| !period.contains(now)) => {
                    problems.push(format!("the certificate in {file} {}", described(&chain[..1], now)));
                }
                Ok(chain) => {
                    let left = chain.first().map_or(Duration::ZERO, |period| period.left(now));
                    found.push(format!("a certificate for {}", in_words(left)));
                }
                Err(problem) => problems.push(problem),
            },
            Err(error) => problems.push(error.to_string()),
        }
    }
    if problems.is_empty() { Ok(found.join(", ")) } else { Err(problems) }
}

/// Validity period of a certificate, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ValidPeriod {
    from: i64,
    to: i64,
}

impl ValidPeriod {
    fn contains(self, now: SystemTime) -> bool {
        (self.from..=self.to).contains(&seconds(now))
    }

    fn left(self, now: SystemTime) -> Duration {
        Duration::from_secs(self.to.saturating_sub(seconds(now)).try_into().unwrap_or_default())
    }
}

fn described(periods: &[ValidPeriod], now: SystemTime) -> String {
    let now = seconds(now);
    let one = |period: &ValidPeriod| {
        let apart = |from: i64, to: i64| Duration::from_secs(to.saturating_sub(from).try_into().unwrap_or(0));
        if period.to < now {
            format!("expired {} ago", in_words(apart(period.to, now)))
        } else {
            format!("is not valid for another {}", in_words(apart(now, period.from)))
        }
    };
    periods.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn in_words(time: Duration) -> String {
    match time.as_secs() / 3600 {
        0 => format!("{} min", time.as_secs() / 60),
        hours @ 1..48 => format!("{hours} h"),
        hours => format!("{} days", hours / 24),
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}

/// Returns the validity periods of all certificates in a file.
fn validity_of(file: &str) -> Result<Vec<ValidPeriod>, String> {
    let text = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    let text = String::from_utf8_lossy(&text);
    let periods: Option<Vec<_>> = certificates(&text).iter().map(|der| valid_period(der)).collect();
    periods.ok_or_else(|| format!("{file}: a certificate in it cannot be read"))
}

/// Returns the certificates of a PEM text as DER (RFC 7468).
fn certificates(pem: &str) -> Vec<Vec<u8>> {
    let blocks = pem.split("-----BEGIN CERTIFICATE-----").skip(1);
    let bodies = blocks.filter_map(|block| block.split("-----END CERTIFICATE-----").next());
    bodies.map(from_base64).collect()
}

/// Decodes base64 and skips all other characters.
fn from_base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0_u32);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = (bits << 6) | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    bytes
}

/// Returns the validity period of a DER certificate (RFC 5280, section 4.1).
fn valid_period(der: &[u8]) -> Option<ValidPeriod> {
    let (_, certificate, _) = element(der)?;
    let (_, mut rest, _) = element(certificate)?;
    // The version is optional (default v1).
    if let Some((0xa0, _, after)) = element(rest) {
        rest = after;
    }
    // Skip serialNumber, signature and issuer, which precede validity.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest)?;
    let (kind, from, rest) = element(validity)?;
    let from = time_of(kind, from)?;
    let (kind, to, _) = element(rest)?;
    Some(ValidPeriod { from, to: time_of(kind, to)? })
}

/// Splits off the first DER element. Returns its tag, its contents and the remaining bytes.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk::<2>()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        let is_short = digits.len() <= 4;
        let length = digits.iter().fold(0_u64, |length, digit| (length << 8) | u64::from(*digit));
        (is_short.then_some(length)?.try_into().ok()?, rest)
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

/// Parses a `UTCTime` or `GeneralizedTime` into seconds since the Unix epoch.
fn time_of(kind: u8, text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match kind {
        0x17 => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        0x18 => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    if rest.len() != 10 || !rest.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day) = (part(0)?, part(2)?);
    // Days since the Unix epoch in the Gregorian calendar, with years that start in March.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year;
    Some((days - 719_468) * 86_400 + part(4)? * 3600 + part(6)? * 60 + part(8)?)
}

#[cfg(test)]
mod tests {
    use testkit::net::certs::Ca;

    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(time_of(0x17, b"700101000000Z"), Some(0));
        assert_eq!(time_of(0x17, b"240229123456Z"), Some(1_709_210_096));
        assert_eq!(time_of(0x18, b"20500101000000Z"), Some(2_524_608_000));
        for text in [&b""[..], b"Z", b"24022912345Z", b"2402291234567Z", b"240229123456", b"2402xx123456Z"] {
            assert_eq!(time_of(0x17, text), None);
        }
    }

    #[test]
    fn periods_of_certificates_are_read() {
        let expired = Ca::new("ours").issue_expired(&["a"]);
        let [der] = &certificates(&expired.pem)[..] else { panic!("one certificate") };
        assert_eq!(valid_period(der), Some(ValidPeriod { from: 1_577_836_800, to: 1_580_515_200 }));
        // Truncated input never panics.
        for length in 0..der.len() {
            let _ = valid_period(&der[..length]);
        }
        assert_eq!(certificates("-----BEGIN CERTIFICATE-----"), [Vec::<u8>::new()]);
        assert_eq!(valid_period(&[]), None);
    }
}
