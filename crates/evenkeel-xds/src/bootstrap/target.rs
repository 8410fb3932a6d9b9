//! From the target of a channel, or the address of a server, to the listener that it asks for (A47).

use std::fmt;

use crate::bootstrap::Bootstrap;
use crate::resource::ResourceType;
use crate::resource::name::{ResourceName, decoded, encode_authority, encode_path, is_xdstp};
use crate::text::{listed, quoted};

/// What a channel asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsTarget {
    /// The listener. If its name has an authority, the bootstrap knows it.
    pub listener: ResourceName,
    /// The authority of the channel's calls, by which the virtual host is chosen: the path of the target, whatever
    /// authority the listener comes from.
    pub authority: String,
}

/// A target that leads nowhere. The text says whether the target or the bootstrap must change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsTargetError {
    what: &'static str,
    given: String,
    problem: String,
}

impl fmt::Display for XdsTargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.what, self.given, self.problem)
    }
}

impl std::error::Error for XdsTargetError {}

impl Bootstrap {
    /// The listener that a channel to `target` asks for, and the authority of its calls.
    ///
    /// A target is `xds:///orders`, `xds:orders` or just `orders`, for the control planes of the bootstrap, or
    /// `xds://AUTHORITY/orders` for one of its authorities.
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
    pub fn listener_name(&self, target: &str) -> Result<XdsTarget, XdsTargetError> {
        let fail = |problem| XdsTargetError { what: "target", given: quoted(target), problem };
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

    /// The listener that a server on `address` (`0.0.0.0:8080`) asks for (A36). There is no default for how it is called:
    /// a bootstrap that does not say is no bootstrap for servers.
    pub fn server_listener_name(&self, address: &str) -> Result<ResourceName, XdsTargetError> {
        let fail = |problem| XdsTargetError { what: "server", given: quoted(address), problem };
        let field = "server_listener_resource_name_template";
        let Some(template) = &self.server_listener_resource_name_template else {
            return Err(fail(format!("{field} is not set in the bootstrap")));
        };
        self.fill_template(template, field, address).map_err(fail)
    }

    fn fill_template(&self, template: &str, field: &str, with: &str) -> Result<ResourceName, String> {
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

/// The authority of a target, if it has one, and its path, neither percent-encoded.
fn split(target: &str) -> Result<(Option<String>, String), String> {
    let rest = match target.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("xds") => rest,
        Some((scheme, rest)) if rest.starts_with("//") => {
            return Err(format!("expected scheme xds, found {}", quoted(scheme)));
        }
        // `orders:80` is a name with a port.
        _ => target,
    };
    if let Some(mark) = rest.chars().find(|c| matches!(c, '?' | '#')) {
        let escaped = u32::from(mark);
        return Err(format!("{mark} has no meaning in a target; write %{escaped:02X} if the name has one"));
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
