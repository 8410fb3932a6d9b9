//! Resource names, old-style and new-style (A47).
//!
//! An old-style name is any text. A new-style name contains its authority and type:
//!
//! ```text
//! xdstp://xds.example.com/envoy.config.listener.v3.Listener/orders/eu?env=prod&zone=a
//!         authority       type                              id        context parameters
//! ```
//!
//! A name has many equivalent spellings: context parameters in any order, characters percent-encoded or not.
//! A [`ResourceName`] holds the canonical one, so that equal names denote the same resource.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::XdsLimits;
use crate::resource::ResourceType;
use crate::text::quoted;

/// Scheme of new-style names.
const SCHEME: &str = "xdstp:";

/// Resource name in its canonical form. Cheap to clone.
///
/// ```
/// use evenkeel_xds::resource::name::ResourceName;
/// use evenkeel_xds::resource::ResourceType::Listener;
///
/// let one = ResourceName::parse(Listener, "xdstp://a.com/envoy.config.listener.v3.Listener/orders?b=2&a=1")?;
/// let two = ResourceName::parse(Listener, "xdstp://a.com/envoy.config.listener.v3.Listener/%6Frders?a=1&b=2")?;
/// assert_eq!(one, two);
/// assert_eq!(one.to_string(), "xdstp://a.com/envoy.config.listener.v3.Listener/orders?a=1&b=2");
/// assert_eq!(one.authority(), Some("a.com"));
/// assert_eq!(ResourceName::parse(Listener, "orders")?.authority(), None);
/// # Ok::<(), evenkeel_xds::resource::name::ResourceNameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceName {
    canonical: Arc<str>,
    authority: Option<Arc<str>>,
}

impl ResourceName {
    /// Parses the name of a resource of type `kind`.
    ///
    /// A text with the scheme `xdstp:` must be a new-style name of that type. Any other text is an old-style
    /// name and stays unchanged. The last value of a repeated context parameter is used. Directives after a
    /// `#` are dropped, because they are not part of the identity.
    pub fn parse(kind: ResourceType, text: &str) -> Result<ResourceName, ResourceNameError> {
        let limit = XdsLimits::default().name_bytes;
        let fail = |problem: String| ResourceNameError { name: quoted(text), problem };
        if text.is_empty() {
            return Err(fail("must not be empty".to_owned()));
        }
        let name = if text.len() > limit {
            Err(format!("has {} bytes; at most {limit} are allowed", text.len()))
        } else if text.starts_with(SCHEME) {
            parse_xdstp(kind, text)
        } else {
            Ok(ResourceName { canonical: text.into(), authority: None })
        };
        let name = name.map_err(fail)?;
        // Percent-encoding can triple the length.
        if name.canonical.len() > limit {
            let bytes = name.canonical.len();
            return Err(fail(format!("has {bytes} bytes when percent-encoded; at most {limit} are allowed")));
        }
        Ok(name)
    }

    /// Returns the percent-decoded authority of a new-style name, which may be empty. `None` for an old-style
    /// name.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// Returns the canonical form of the name.
    pub fn as_str(&self) -> &str {
        &self.canonical
    }

    pub(crate) fn into_canonical(self) -> Arc<str> {
        self.canonical
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical)
    }
}

/// Error of a malformed resource name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNameError {
    name: String,
    problem: String,
}

impl ResourceNameError {
    /// Returns the description of the error without the name.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for ResourceNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resource name {}: {}", self.name, self.problem)
    }
}

impl std::error::Error for ResourceNameError {}

/// Returns true if a template produces new-style names. Values for its placeholders must then be
/// percent-encoded (A47).
pub(crate) fn is_xdstp(text: &str) -> bool {
    text.starts_with(SCHEME)
}

fn parse_xdstp(kind: ResourceType, text: &str) -> Result<ResourceName, String> {
    let form = "expected xdstp://AUTHORITY/TYPE/ID";
    let rest = text.strip_prefix("xdstp://").ok_or(form)?;
    // Directives are no part of the name.
    let rest = rest.split_once('#').map_or(rest, |(name, _directives)| name);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').ok_or(form)?;
    let (message, id) = path.split_once('/').ok_or(form)?;
    if decoded(message)? != kind.message() {
        return Err(format!("expected type {:?}, found {}", kind.message(), quoted(message)));
    }
    if id.is_empty() {
        return Err("has no id after its type".to_owned());
    }
    let authority = decoded(authority)?;
    let mut canonical = format!("xdstp://{}/{}", encode_authority(&authority), kind.message());
    // Decode by segment: an encoded slash is no separator.
    for segment in id.split('/') {
        canonical.push('/');
        encode(&decoded(segment)?, is_segment, &mut canonical);
    }
    let mut between = '?';
    for (key, value) in parameters(query)? {
        canonical.push(between);
        encode(&key, is_parameter, &mut canonical);
        canonical.push('=');
        encode(&value, is_parameter, &mut canonical);
        between = '&';
    }
    Ok(ResourceName { canonical: canonical.into(), authority: Some(authority.into()) })
}

/// Parses context parameters, sorted by key (TP1 "Normalization").
fn parameters(query: &str) -> Result<BTreeMap<String, String>, String> {
    // Sorted, since the order of context parameters has no meaning (FED-3).
    let mut parameters = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key.is_empty() {
            return Err(format!("context parameter {} has no name", quoted(pair)));
        }
        parameters.insert(decoded(key)?, decoded(value)?);
    }
    Ok(parameters)
}

/// Percent-encodes characters that are invalid in the path of a URI. Slashes stay (A47).
pub(crate) fn encode_path(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode(text, |byte| byte == b'/' || is_segment(byte), &mut out);
    out
}

/// Percent-encodes characters that are invalid in the authority of a URI. Slashes are encoded too.
pub(crate) fn encode_authority(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode(text, |byte| matches!(byte, b'[' | b']') || is_segment(byte), &mut out);
    out
}

fn encode(text: &str, keep: impl Fn(u8) -> bool, out: &mut String) {
    for &byte in text.as_bytes() {
        if keep(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// Returns the text with percent-encoding decoded.
pub(crate) fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let pair = [rest.next(), rest.next()].map(|digit| digit.and_then(|d| char::from(d).to_digit(16)));
            let [Some(high), Some(low)] = pair else {
                return Err(format!("{}: expected two hexadecimal digits after each %", quoted(text)));
            };
            bytes.push((high << 4 | low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| format!("{}: is not UTF-8 when percent-decoded", quoted(text)))
}

/// Returns true for characters of a path segment (`pchar` of RFC 3986).
fn is_segment(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte)
}

/// Returns true for characters that need no encoding in a key or value of a query.
fn is_parameter(byte: u8) -> bool {
    matches!(byte, b'/' | b'?') || (is_segment(byte) && !matches!(byte, b'&' | b'='))
}
