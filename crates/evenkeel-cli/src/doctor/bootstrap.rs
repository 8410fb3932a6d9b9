//! First step of an xDS target: finds the bootstrap and checks that it is usable.

use std::fs;
use std::io;

use evenkeel::{Bootstrap, Credentials};
use evenkeel_xds::bootstrap::{BOOTSTRAP_CONFIG_ENV, BOOTSTRAP_FILE_ENV, ChannelCredentials, ServerConfig};

use super::report::Diagnosis;
use crate::ui::{self, CliExit};

/// Returns the bootstrap and a description of its source.
pub(super) fn read(file: Option<&str>) -> Result<(Bootstrap, String), Diagnosis> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (text, origin) = match (file, variable(BOOTSTRAP_FILE_ENV), variable(BOOTSTRAP_CONFIG_ENV)) {
        (Some(file), _, _) => (read_file(file, "--bootstrap")?, format!("{file} (--bootstrap)")),
        (None, Some(file), _) => {
            (read_file(&file, BOOTSTRAP_FILE_ENV)?, format!("{file} ({BOOTSTRAP_FILE_ENV})"))
        }
        (None, None, Some(text)) => (text, format!("the text in {BOOTSTRAP_CONFIG_ENV}")),
        (None, None, None) => return Err(unset()),
    };
    let bootstrap = Bootstrap::from_json(&text).map_err(|error| invalid(&error.to_string(), &origin))?;
    Ok((bootstrap, origin))
}

fn bootstrap_diagnosis(found: impl Into<String>) -> Diagnosis {
    Diagnosis::new("bootstrap", CliExit::Usage, found)
}

fn unset() -> Diagnosis {
    bootstrap_diagnosis(format!(
        "neither {BOOTSTRAP_FILE_ENV} nor {BOOTSTRAP_CONFIG_ENV} is set, and there is no --bootstrap"
    ))
    .expected("a bootstrap with the address of the control plane")
    .likely("the variable is set for the service, but not in this shell")
    .next(format!(
        "{BOOTSTRAP_FILE_ENV}=/path/to/bootstrap.json evenkeel doctor ..., or use --bootstrap FILE"
    ))
}

fn read_file(file: &str, named_by: &str) -> Result<String, Diagnosis> {
    fs::read_to_string(file).map_err(|error| {
        let (likely, next) = match error.kind() {
            io::ErrorKind::NotFound => (
                "a wrong path, or the file has not been written yet",
                "check the path; a relative one starts at the current folder",
            ),
            io::ErrorKind::PermissionDenied => {
                ("the file belongs to another user", "run this as the user of the service")
            }
            _ => ("it is not a text file", "check what the path leads to"),
        };
        let found = format!("{file} cannot be read: {error}");
        bootstrap_diagnosis(found)
            .expected(format!("the file that {named_by} names"))
            .likely(likely)
            .next(next)
    })
}

fn invalid(error: &str, origin: &str) -> Diagnosis {
    let found = ui::safe(&format!("{origin}: {}", error.strip_prefix("bootstrap: ").unwrap_or(error)));
    let (expected, likely, next) = if error.contains("cannot be read as JSON") {
        (
            "JSON",
            "a comma too many or too few, or a template that was not filled in",
            "look at the line and column above",
        )
    } else if error.contains("is an xDS target itself") {
        (
            "the address of a control plane: HOST:PORT, dns:///HOST:PORT, unix:/path",
            "server_uri is the target of the service instead of the control plane's address",
            "correct server_uri in the bootstrap; xds: targets are for channels of the application",
        )
    } else if error.contains("].server_uri: \"") {
        (
            "the address of a control plane: HOST:PORT, dns:///HOST:PORT, unix:/path",
            "a misspelt address, a scheme that gRPC does not have, or a template that was not filled in",
            "correct server_uri in the bootstrap",
        )
    } else if error.contains("\"google_default\"") {
        (
            "supported credentials: insecure or tls",
            "the bootstrap was written for Google's control plane, whose access tokens are not supported",
            "use a control plane that accepts insecure or tls",
        )
    } else if error.contains("channel_creds") {
        (
            "supported credentials: insecure or tls",
            "the bootstrap was written for another language's gRPC, or a kind is misspelt",
            "add {\"type\": \"tls\"} or {\"type\": \"insecure\"} to channel_creds; the first supported kind is used",
        )
    } else if error.contains("xds_servers") {
        (
            "xds_servers with at least one control plane (A27)",
            "the bootstrap is of another kind (Envoy's has the same name), or is not complete",
            "add \"xds_servers\": [{\"server_uri\": \"HOST:PORT\", \"channel_creds\": [{\"type\": \"insecure\"}]}]",
        )
    } else {
        (
            "a valid bootstrap (A27)",
            "a mistake in the fields above",
            "correct them; evenkeel validate reads bootstraps too",
        )
    };
    bootstrap_diagnosis(found).expected(expected).likely(likely).next(next)
}

/// Returns the credentials for a control plane; `None` for plaintext.
pub(super) fn credentials(server: &ServerConfig) -> Result<Option<Credentials>, Diagnosis> {
    let files = match &server.credentials {
        ChannelCredentials::Insecure => return Ok(None),
        ChannelCredentials::Tls(files) => files,
        other => {
            return Err(bootstrap_diagnosis(format!(
                "{other:?} for control plane {}",
                ui::safe(&server.uri)
            ))
            .expected("supported credentials: insecure or tls")
            .likely("the bootstrap was written for another language's gRPC")
            .next("use a control plane that accepts insecure or tls"));
        }
    };
    let mut tls = Credentials::tls();
    if let Some(file) = &files.ca_certificate_file {
        tls = tls.ca_file(file);
    }
    if let Some(pair) = &files.identity {
        tls = tls.identity_files(&pair.certificate_file, &pair.private_key_file);
    }
    tls.build().map(Some).map_err(|error| {
        bootstrap_diagnosis(error.to_string())
            .expected(format!("the certificate files that channel_creds of {} names", ui::safe(&server.uri)))
            .likely("the files have not been written yet, are incomplete, or belong to another user")
            .next("check the paths and their contents: openssl x509 -text -noout -in FILE")
    })
}
