//! Verifier of server certificates by the rules of a cluster: a trusted chain, and one SAN that the cluster accepts (A29).
//!
//! The host name is not checked. The SANs of the certificate are matched against the cluster's matchers or, with
//! `auto_sni_san_validation`, against the SNI that was sent (A101).

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use evenkeel_xds::resource::{SanKind, SanMatcher, SecurityConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use crate::credentials::san;

/// Maximum number of names and matchers in an error message, and maximum number of characters of each.
const SHOWN: usize = 4;
const SHOWN_CHARS: usize = 80;

/// Certificate verifier of one cluster.
#[derive(Debug)]
pub(super) struct SanVerifier {
    pub(super) roots: Arc<RootCertStore>,
    pub(super) security: Arc<SecurityConfig>,
    /// Replaces the cluster's matchers if set.
    pub(super) only: Option<SanMatcher>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl SanVerifier {
    /// Returns the matchers, one of which must match. Without any, every name is accepted.
    fn matchers(&self) -> &[SanMatcher] {
        match &self.only {
            Some(only) => std::slice::from_ref(only),
            None => &self.security.san_matchers,
        }
    }

    fn check_names(&self, certificate: &[u8]) -> Result<(), CertificateError> {
        let matchers = self.matchers();
        if matchers.is_empty() {
            return Ok(());
        }
        let names = san::names(certificate).ok_or(CertificateError::BadEncoding)?;
        let is_accepted = |(kind, name): &(SanKind, String)| matchers.iter().any(|m| m.matches(*kind, name));
        if names.iter().any(is_accepted) {
            return Ok(());
        }
        let found: Vec<String> = names.iter().map(|(kind, name)| format!("{kind} {name:?}")).collect();
        let accepted: Vec<String> = matchers.iter().map(ToString::to_string).collect();
        Err(CertificateError::Other(OtherError(Arc::new(SanMismatch { found, accepted }))))
    }
}

impl ServerCertVerifier for SanVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        // The chain first: names of an untrusted certificate are not parsed.
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        self.check_names(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Error of a valid certificate that has no SAN for this cluster.
#[derive(Debug)]
struct SanMismatch {
    found: Vec<String>,
    accepted: Vec<String>,
}

impl fmt::Display for SanMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accepted = listed(&self.accepted);
        match &self.found[..] {
            [] => write!(f, "the certificate has no SAN; the cluster accepts {accepted}"),
            found => write!(f, "the cluster accepts {accepted}; the certificate is for {}", listed(found)),
        }
    }
}

impl Error for SanMismatch {}

fn listed(all: &[String]) -> String {
    let cut = |text: &String| match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.clone(),
    };
    let shown = all.iter().take(SHOWN).map(cut).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CustomExtension, ExtendedKeyUsagePurpose, GeneralSubtree, NameConstraints, SanType};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, UnixTime};

    use super::*;
    use crate::credentials::tests::certificates::{Authority, Leaf, cryptography};
    use evenkeel_xds::resource::RootCertificates;

    /// Returns a verifier that trusts these authorities and accepts only this name if it is set.
    fn verifier(trusted: &[&Authority], only: Option<&str>) -> SanVerifier {
        let mut roots = RootCertStore::empty();
        for authority in trusted {
            roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
        }
        let security = SecurityConfig {
            roots: RootCertificates::System,
            identity: None,
            san_matchers: Vec::new(),
            sni: None,
            auto_host_sni: false,
            auto_sni_san_validation: false,
        };
        SanVerifier {
            roots: Arc::new(roots),
            security: Arc::new(security),
            only: only.map(SanMatcher::dns),
            algorithms: cryptography().signature_verification_algorithms,
        }
    }

    fn verify(
        verifier: &SanVerifier,
        der: &CertificateDer<'_>,
        between: &[&Authority],
    ) -> Result<(), String> {
        let between: Vec<_> = between
            .iter()
            .map(|authority| CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap())
            .collect();
        let name = ServerName::try_from("nobody-looks-at-it").unwrap();
        let outcome = verifier.verify_server_cert(der, &between, &name, &[], UnixTime::now());
        outcome.map(drop).map_err(|error| error.to_string())
    }

    fn uri(uri: &str) -> SanType {
        SanType::URI(uri.try_into().unwrap())
    }

    /// Fault 84, RT-4: a table of certificates, each with the expected error.
    #[test]
    fn a_table_of_certificates() {
        let [ca, other] = ["ca", "other"].map(Authority::new);
        let between = ca.below("between");
        let for_dns = |name: &str| NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName(name.to_owned())],
            excluded_subtrees: Vec::new(),
        };
        let narrow =
            Authority::with("narrow", |params| params.name_constraints = Some(for_dns("bank.example")));
        // Permits URIs of one host, as RFC 5280 encodes them: [0] { SEQUENCE { [6] "prod" } }.
        let of_uris = [0x30, 0x0a, 0xa0, 0x08, 0x30, 0x06, 0x86, 0x04, b'p', b'r', b'o', b'd'];
        let spiffe = Authority::with("spiffe", |params| {
            let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 30], of_uris.to_vec());
            extension.set_criticality(true);
            params.custom_extensions = vec![extension];
        });
        let all = [&ca, &narrow, &spiffe];
        let uris = |authority: &Authority, uris: &[&str]| {
            authority
                .sign(&[], |params| params.subject_alt_names = uris.iter().map(|name| uri(name)).collect())
        };
        let broken_names = ca.sign(&[], |params| {
            params.custom_extensions =
                vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], vec![0x30, 5, 0x82])];
        });
        let good = ca.leaf(&["pay.shop.example"]);
        let tampered = {
            let mut der = good.der().to_vec();
            *der.last_mut().unwrap() ^= 1;
            CertificateDer::from(der)
        };
        let cut = CertificateDer::from(good.der()[..100].to_vec());
        let none: &[&Authority] = &[];
        let [the_one, another] = [[&between], [&other]];
        let rows = [
            ("good", good.der(), none, Ok(())),
            ("a wildcard", ca.leaf(&["*.shop.example"]).der(), none, Ok(())),
            ("one name of many", ca.leaf(&["a", "10.0.0.1", "pay.shop.example"]).der(), none, Ok(())),
            ("with one between", between.leaf(&["pay.shop.example"]).der(), &the_one[..], Ok(())),
            ("that one is missing", between.leaf(&["pay.shop.example"]).der(), none, Err("UnknownIssuer")),
            ("of another CA", other.leaf(&["pay.shop.example"]).der(), none, Err("UnknownIssuer")),
            (
                "of another CA, shown",
                other.leaf(&["pay.shop.example"]).der(),
                &another[..],
                Err("UnknownIssuer"),
            ),
            ("expired", ca.expired(&["pay.shop.example"]).der(), none, Err("certificate expired")),
            (
                "of tomorrow",
                ca.of_tomorrow(&["pay.shop.example"]).der(),
                none,
                Err("certificate not valid yet"),
            ),
            (
                "for clients",
                ca.for_clients(&["pay.shop.example"]).der(),
                none,
                Err("does not allow extended key usage for server"),
            ),
            (
                "a CA's own",
                CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap(),
                none,
                Err("CaUsedAsEndEntity"),
            ),
            ("another name", ca.leaf(&["orders.example"]).der(), none, Err("SanMismatch")),
            ("no name", ca.leaf(&[]).der(), none, Err("SanMismatch { found: []")),
            ("the name as a URI", uris(&ca, &["pay.shop.example"]).der(), none, Err("SanMismatch")),
            ("names that cannot be read", broken_names.der(), none, Err("BadEncoding")),
            (
                "outside of the CA's names",
                narrow.leaf(&["pay.shop.example"]).der(),
                none,
                Err("NameConstraintViolation"),
            ),
            (
                "a URI under a CA of URIs",
                uris(&spiffe, &["spiffe://prod/pay"]).der(),
                none,
                Err("NameConstraintViolation"),
            ),
            ("tampered with", tampered, none, Err("BadSignature")),
            ("cut", cut, none, Err("BadEncoding")),
            ("garbage", CertificateDer::from(b"garbage".to_vec()), none, Err("BadEncoding")),
        ];
        let verifier = verifier(&all, Some("pay.shop.example"));
        let wrong = rows.iter().filter_map(|(what, der, between, expected)| {
            match (verify(&verifier, der, between), expected) {
                (Ok(()), Ok(())) => None,
                (Err(error), Err(part)) if error.contains(part) => None,
                (outcome, expected) => Some(format!("{what}: expected {expected:?}, found {outcome:?}")),
            }
        });
        assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
    }

    /// RT-4: without matchers, any name is accepted, but not any chain.
    #[test]
    fn without_matchers_the_chain_counts() {
        let [ca, other] = ["ca", "other"].map(Authority::new);
        let verifier = verifier(&[&ca], None);
        let leaves: [(&str, Leaf, bool); 5] = [
            ("named", ca.leaf(&["anybody"]), true),
            ("nameless", ca.leaf(&[]), true),
            ("of another CA", other.leaf(&["anybody"]), false),
            ("expired", ca.expired(&["anybody"]), false),
            (
                "for something else",
                ca.sign(&["anybody"], |params| {
                    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
                }),
                false,
            ),
        ];
        for (what, leaf, is_good) in leaves {
            assert_eq!(verify(&verifier, &leaf.der(), &[]).is_ok(), is_good, "{what}");
        }
    }

    #[test]
    fn rejected_names_are_reported_briefly() {
        let not_accepted = |found: &[&str], accepted: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
            SanMismatch { found: owned(found), accepted: owned(accepted) }.to_string()
        };
        assert_eq!(not_accepted(&[], &["a"]), "the certificate has no SAN; the cluster accepts a");
        assert_eq!(
            not_accepted(&["1", "2", "3", "4", "5", "6"], &["a", "b"]),
            "the cluster accepts a, b; the certificate is for 1, 2, 3, 4 and 2 more"
        );
        let long = "\u{e4}".repeat(100);
        assert_eq!(
            not_accepted(&[&long], &["a"]).chars().count(),
            "the cluster accepts a; the certificate is for ...".len() + SHOWN_CHARS
        );
    }
}
