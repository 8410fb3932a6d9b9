//! Parser for the subject alternative names (SAN) of a certificate.
//!
//! The input comes from a server. It is parsed once, front to back, and malformed input yields `None`. The parser never
//! panics and never allocates more than the size of its input. The verifier checks everything else in the certificate.

use std::net::IpAddr;

use evenkeel_xds::resource::SanKind;

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
/// Context-specific tags `[0]` and `[3]` of a certificate.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// Tags of the obsolete unique ids of issuer and subject, primitive and constructed.
const UNIQUE_IDS: [u8; 4] = [0x81, 0xa1, 0x82, 0xa2];
/// Tags of the supported kinds of a general name (RFC 5280, 4.2.1.6).
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const IP: u8 = 0x87;

/// Object id of the SAN extension, 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// Value of a SAN extension with an empty list.
const NO_NAMES: &[u8] = &[SEQUENCE, 0];

/// Returns the names of the supported kinds, in the order of the certificate; `None` if they are malformed. Names with
/// invalid characters are skipped, since they match nothing.
pub(super) fn names(certificate: &[u8]) -> Option<Vec<(SanKind, String)>> {
    let mut all = DerReader(alt_names(certificate)?);
    let mut each = DerReader(all.take(SEQUENCE)?);
    if !all.is_empty() {
        return None;
    }
    let mut names = Vec::new();
    while !each.is_empty() {
        let (tag, content) = each.next()?;
        names.extend(name(tag, content));
    }
    Some(names)
}

fn name(tag: u8, content: &[u8]) -> Option<(SanKind, String)> {
    let kind = match tag {
        EMAIL => SanKind::Email,
        DNS => SanKind::Dns,
        URI => SanKind::Uri,
        IP => {
            let octets4 = <[u8; 4]>::try_from(content).map(IpAddr::from);
            let address = octets4.or_else(|_| <[u8; 16]>::try_from(content).map(IpAddr::from)).ok()?;
            return Some((SanKind::Ip, address.to_string()));
        }
        _ => return None,
    };
    let is_text = !content.is_empty() && content.iter().all(u8::is_ascii_graphic);
    is_text.then(|| (kind, String::from_utf8_lossy(content).into_owned()))
}

/// Returns the value of the SAN extension: an empty list if it is missing, `None` if the certificate is malformed.
fn alt_names(certificate: &[u8]) -> Option<&[u8]> {
    let mut certificate = DerReader(DerReader(certificate).take(SEQUENCE)?);
    let mut signed = DerReader(certificate.take(SEQUENCE)?);
    // Absent in version 1, which is the default (RFC 5280, 4.1).
    if signed.peek() == Some(VERSION) {
        signed.next()?;
    }
    signed.take(INTEGER)?;
    // Algorithm, issuer, validity, subject, key.
    for _ in 0..5 {
        signed.take(SEQUENCE)?;
    }
    while signed.peek().is_some_and(|tag| UNIQUE_IDS.contains(&tag)) {
        signed.next()?;
    }
    if signed.is_empty() {
        return Some(NO_NAMES);
    }
    let mut extensions = DerReader(DerReader(signed.take(EXTENSIONS)?).take(SEQUENCE)?);
    let mut found = None;
    while !extensions.is_empty() {
        let mut extension = DerReader(extensions.take(SEQUENCE)?);
        let id = extension.take(OBJECT_ID)?;
        // The critical flag, absent if false (RFC 5280, 4.1).
        if extension.peek() == Some(BOOLEAN) {
            extension.next()?;
        }
        let value = extension.take(OCTET_STRING)?;
        // A second SAN extension is invalid. Neither may be selected, or verifiers would disagree.
        if id == SUBJECT_ALT_NAME && found.replace(value).is_some() {
            return None;
        }
    }
    Some(found.unwrap_or(NO_NAMES))
}

/// Reader of the remaining DER elements: each has a tag, a length and a content.
struct DerReader<'a>(&'a [u8]);

impl<'a> DerReader<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// Returns the content of the next element if it has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, content) = self.next()?;
        (found == tag).then_some(content)
    }

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, length], mut rest) = self.0.split_first_chunk()?;
        // A tag number above 30 takes further bytes; certificates have none.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let mut len = usize::from(length);
        if length >= 0x80 {
            let digits = usize::from(length & 0x7f);
            // TLS limits a certificate to 16 MiB, so no length needs more than three bytes.
            if !(1..=3).contains(&digits) {
                return None;
            }
            let (bytes, after) = rest.split_at_checked(digits)?;
            len = bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
            rest = after;
        }
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use rcgen::{CertificateParams, CustomExtension, KeyPair, SanType};

    use super::*;

    fn certificate(params: &CertificateParams) -> Vec<u8> {
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn with(sans: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = sans;
        certificate(&params)
    }

    /// Returns a certificate with one SAN extension per value.
    fn with_value(values: &[&[u8]]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        let extension = |value: &&[u8]| CustomExtension::from_oid_content(&[2, 5, 29, 17], value.to_vec());
        params.custom_extensions = values.iter().map(extension).collect();
        certificate(&params)
    }

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    #[test]
    fn every_kind_of_name_is_read() {
        let v6: Ipv6Addr = "2001:DB8:0::01".parse().unwrap();
        let certificate = with(vec![
            SanType::DnsName("*.pay.internal".try_into().unwrap()),
            SanType::URI("spiffe://prod/ns/shop/sa/pay".try_into().unwrap()),
            SanType::Rfc822Name("pay@shop.example".try_into().unwrap()),
            SanType::IpAddress("10.0.0.1".parse().unwrap()),
            SanType::IpAddress(v6.into()),
            SanType::OtherName((vec![1, 2, 3], "other".into())),
            SanType::DnsName("x".repeat(300).as_str().try_into().unwrap()),
        ]);
        let names = names(&certificate).unwrap();
        let found: Vec<_> = names.iter().map(|(kind, name)| (*kind, name.as_str())).collect();
        let long = "x".repeat(300);
        let expected = [
            (SanKind::Dns, "*.pay.internal"),
            (SanKind::Uri, "spiffe://prod/ns/shop/sa/pay"),
            (SanKind::Email, "pay@shop.example"),
            (SanKind::Ip, "10.0.0.1"),
            (SanKind::Ip, "2001:db8::1"),
            (SanKind::Dns, long.as_str()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn certificates_without_names() {
        assert_eq!(names(&with(Vec::new())), Some(Vec::new()));
        assert_eq!(names(&with_value(&[&[SEQUENCE, 0]])), Some(Vec::new()));
    }

    /// Fault 84, the parser: invalid names are skipped, and malformed extensions are rejected.
    #[test]
    fn odd_names_and_broken_ones() {
        let list = |names: &[Vec<u8>]| element(SEQUENCE, &names.concat());
        let good = element(DNS, b"pay");
        let expected = vec![(SanKind::Dns, "pay".to_owned())];
        let odd: [&[u8]; 6] = [b"", b"pay\0.evil", b"a b", "p\u{e4}y".as_bytes(), b"\xff", b"\n"];
        for name in odd {
            for tag in [DNS, URI, EMAIL] {
                let value = list(&[element(tag, name), good.clone()]);
                assert_eq!(names(&with_value(&[&value])), Some(expected.clone()), "{name:?}");
            }
        }
        for octets in [&[][..], &[1, 2, 3], &[0; 5], &[0; 15], &[0; 17]] {
            let value = list(&[element(IP, octets), good.clone()]);
            assert_eq!(names(&with_value(&[&value])), Some(expected.clone()), "{octets:?}");
        }
        let whole = list(std::slice::from_ref(&good));
        let broken: [&[&[u8]]; 8] = [
            &[&[]],
            &[&whole[..whole.len() - 1]],
            &[&[&whole[..], &[0]].concat()],
            &[&good],
            &[&[SEQUENCE, 3, DNS, 0x82, 0xff]],
            &[&[SEQUENCE, 2, 0x9f, 0]],
            &[&[SEQUENCE, 0x84, 0, 0, 0, 0]],
            &[&whole, &whole],
        ];
        for values in broken {
            assert_eq!(names(&with_value(values)), None, "{values:?}");
        }
    }

    /// Every prefix of a certificate, and a certificate with any byte changed, yields a bounded result.
    #[test]
    fn hostile_bytes_give_a_bounded_result() {
        let whole = with(vec![
            SanType::DnsName("pay".try_into().unwrap()),
            SanType::IpAddress("10.0.0.1".parse().unwrap()),
        ]);
        assert_eq!(names(&whole).unwrap().len(), 2);
        let end_of_names = whole.windows(4).position(|bytes| bytes == [10, 0, 0, 1]).unwrap() + 4;
        for end in 0..end_of_names {
            assert_eq!(names(&whole[..end]), None, "{end} bytes");
        }
        for i in 0..whole.len() {
            for value in [0, 1, 0x30, 0x7f, 0x80, 0x81, 0x84, 0xff, whole[i] ^ 1] {
                let mut changed = whole.clone();
                changed[i] = value;
                assert!(names(&changed).is_none_or(|names| names.len() <= 16));
            }
        }
    }
}
