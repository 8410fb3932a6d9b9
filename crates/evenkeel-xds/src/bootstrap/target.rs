//! Listener names of channel targets and of server addresses (A47).

use std::fmt;

use crate::bootstrap::Bootstrap;
use crate::resource::ResourceType;
use crate::resource::name::{ResourceName, decoded, encode_authority, encode_path, is_xdstp};
use crate::text::{listed, quoted};

/// Listener and authority that a channel's target stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsTarget {
    /// Listener to subscribe to. If its name has an authority, the bootstrap contains it.
    pub listener: ResourceName,
    /// Authority of the channel's calls, which selects the virtual host. It is the path of the target, independent of
    /// the listener's authority.
    pub authority: String,
}

/// Error of an invalid target. The text states whether the target or the bootstrap must change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetError {
    what: &'static str,
    given: String,
    problem: String,
}

impl TargetError {
    /// Creates an error for text that was given as `what`, such as `target`. Escapes and truncates the text.
    pub fn new(what: &'static str, given: &str, problem: impl Into<String>) -> TargetError {
        TargetError { what, given: quoted(given), problem: problem.into() }
    }

    /// Returns the message without the invalid text.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.what, self.given, self.problem)
    }
}

impl std::error::Error for TargetError {}

impl Bootstrap {
    /// Returns the listener for a channel to `target`, and the authority of its calls.
    ///
    /// The targets `xds:///orders`, `xds:orders` and `orders` use the control planes of the bootstrap. The target
    /// `xds://AUTHORITY/orders` uses one of its authorities.
    ///
    /// ```
    /// use evenkeel_xds::bootstrap::Bootstrap;
    ///
    /// let bootstrap = Bootstrap::from_json(
    ///     r#"{
    ///         "xds_servers": [{"server_uri": "localhost:18000", "channel_creds": [{"type": "insecure"}]}],
    ///         "authorities": {"eu.example.com": {}}
    ///     }"#,
    /// )?;
    /// let target = bootstrap.listener_name("xds:///orders:80")?;
    /// assert_eq!(target.listener.as_str(), "orders:80");
    /// let target = bootstrap.listener_name("xds://eu.example.com/orders:80")?;
    /// assert_eq!(target.listener.as_str(), "xdstp://eu.example.com/envoy.config.listener.v3.Listener/orders:80");
    /// assert_eq!(target.authority, "orders:80");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listener_name(&self, target: &str) -> Result<XdsTarget, TargetError> {
        let fail = |problem: String| TargetError::new("target", target, problem);
        let (authority, path) = split(target).map_err(fail)?;
        let (template, field) = match &authority {
            None => (
                &self.client_default_listener_resource_name_template,
                "client_default_listener_resource_name_template",
            ),
            Some(name) => match self.authorities.get(name) {
                Some(authority) => (
                    &authority.client_listener_resource_name_template,
                    "client_listener_resource_name_template",
                ),
                None => return Err(fail(self.unknown_authority(name))),
            },
        };
        let listener = self.fill_template(template, field, &path).map_err(fail)?;
        Ok(XdsTarget { listener, authority: encode_authority(&path) })
    }

    /// Returns the listener for a server on `address` (`0.0.0.0:8080`), as specified by A36. The template has no
    /// default, so a bootstrap without it is an error for servers.
    pub fn server_listener_name(&self, address: &str) -> Result<ResourceName, TargetError> {
        let fail = |problem: String| TargetError::new("server", address, problem);
        let field = "server_listener_resource_name_template";
        let Some(template) = &self.server_listener_resource_name_template else {
            return Err(fail(format!("{field} is not set in the bootstrap")));
        };
        self.fill_template(template, field, address).map_err(fail)
    }

    fn fill_template(&self, template: &str, field: &str, with: &str) -> Result<ResourceName, String> {
        // Only new-style names are URIs, so only they need the percent-encoding.
        let text = if is_xdstp(template) {
            template.replace("%s", &encode_path(with))
        } else {
            template.replace("%s", with)
        };
        let listener = ResourceName::parse(ResourceType::Listener, &text)
            .map_err(|error| format!("{error} (from {field} of the bootstrap)"))?;
        match listener.authority() {
            Some(name) if !self.authorities.contains_key(name) => {
                Err(format!("{} (from {field} of the bootstrap)", self.unknown_authority(name)))
            }
            _ => Ok(listener),
        }
    }

    fn unknown_authority(&self, authority: &str) -> String {
        let known = listed(self.authorities.keys().map(String::as_str));
        let known = if known.is_empty() { "none" } else { &known };
        let authority = quoted(authority);
        format!("authority {authority} is not in authorities of the bootstrap, which has {known}")
    }
}

/// Splits a target into its authority, if any, and its path. Both are percent-decoded.
fn split(target: &str) -> Result<(Option<String>, String), String> {
    let rest = match target.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("xds") => rest,
        Some((scheme, rest)) if rest.starts_with("//") => {
            return Err(format!("expected scheme xds, found {}", quoted(scheme)));
        }
        // The scheme is optional: `orders:80` is a name with a port.
        _ => target,
    };
    if let Some(mark) = rest.chars().find(|c| matches!(c, '?' | '#')) {
        let escaped = u32::from(mark);
        return Err(format!(
            "{mark} is not allowed in a target; write %{escaped:02X} if the name contains it"
        ));
    }
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_once('/').unwrap_or((rest, "")),
        None => ("", rest.strip_prefix('/').unwrap_or(rest)),
    };
    if path.is_empty() {
        return Err("expected the name of a service, as in xds:///orders".to_owned());
    }
    let authority = decoded(authority)?;
    Ok(((!authority.is_empty()).then_some(authority), decoded(path)?))
}
