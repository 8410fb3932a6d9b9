//! Credentials of a bootstrap, and shared parts of the tests of credentials.

pub(crate) mod certificates;

use std::fs;
use std::time::Duration;

use evenkeel_xds::bootstrap::{CertificateFiles, ChannelCredentials, IdentityFiles};

use self::certificates::Authority;
use crate::credentials::{Credentials, CredentialsError};

pub(super) fn error_of(outcome: Result<Credentials, CredentialsError>) -> String {
    outcome.map_or_else(|error| error.to_string(), |_| "nothing went wrong".to_owned())
}

#[test]
fn credentials_of_control_planes() {
    let ca = Authority::new("ca");
    let leaf = ca.leaf(&["me"]);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let files = CertificateFiles {
        ca_certificate_file: Some(file("ca", ca.pem())),
        identity: Some(IdentityFiles {
            certificate_file: file("chain", leaf.chain_pem()),
            private_key_file: file("key", leaf.key_pem()),
        }),
        refresh_interval: Duration::from_secs(7),
    };
    let of = Credentials::for_xds_server;
    assert!(of(&ChannelCredentials::Insecure).unwrap().tls_config_source().is_none());

    let both = of(&ChannelCredentials::Tls(files.clone())).unwrap();
    let source = both.tls_config_source().unwrap();
    assert_eq!(source.refresh_every, Duration::from_secs(7));
    let material = source.material.try_lock().unwrap();
    assert_eq!(material.roots.value.len(), 1);
    assert_eq!(material.identity.value.as_ref().unwrap().cert, [leaf.der()]);

    let only_ca = of(&ChannelCredentials::Tls(CertificateFiles { identity: None, ..files.clone() })).unwrap();
    assert!(only_ca.tls_config_source().unwrap().material.try_lock().unwrap().identity.value.is_none());

    let gone = CertificateFiles { ca_certificate_file: Some("/no/such/ca".to_owned()), ..files };
    let error = error_of(of(&ChannelCredentials::Tls(gone)));
    assert!(error.starts_with("CA file \"/no/such/ca\": cannot be read"), "{error}");
}
