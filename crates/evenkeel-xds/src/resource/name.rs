//! Names of resources, old and new (A47).
//!
//! An old-style name is any text. A new-style name says where it belongs:
//!
//! ```text
//! xdstp://xds.example.com/envoy.config.listener.v3.Listener/orders/eu?env=prod&zone=a
//!         authority       type                              id        context parameters
//! ```
//!
//! One resource has many spellings: context parameters in any order, characters percent-encoded or not. A
//! [`ResourceName`] holds the one spelling that stands for all of them, so that comparing names compares resources.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::XdsLimits;
use crate::resource::ResourceType;
use crate::text::quoted;

/// What new-style names start with.
const SCHEME: &str = "xdstp:";

/// The name of a resource in its canonical spelling. Cheap to clone.
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
    /// Reads the name of a resource of type `kind`.
    ///
    /// A text that starts with `xdstp:` must be a new-style name of that type; any other text is an old-style name and
    /// stays as it is. Where a context parameter stands twice the last value counts. What stands after a `#` tells
    /// a client how to process the resource, not which one it is, and is left out.
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
        if name.canonical.len() > limit {
            let bytes = name.canonical.len();
            return Err(fail(format!("has {bytes} bytes when percent-encoded; at most {limit} are allowed")));
        }
        Ok(name)
    }

    /// The authority of a new-style name, not percent-encoded, and possibly empty; `None` for an old-style name.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// The canonical spelling.
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

/// A text that is not the name of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNameError {
    name: String,
    problem: String,
}

impl ResourceNameError {
    /// What is wrong with it, without the name.
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

/// Whether a template makes new-style names, so that what is filled in must be percent-encoded (A47).
pub(crate) fn is_xdstp(text: &str) -> bool {
    text.starts_with(SCHEME)
}

fn parse_xdstp(kind: ResourceType, text: &str) -> Result<ResourceName, String> {
    let form = "expected xdstp://AUTHORITY/TYPE/ID";
    let rest = text.strip_prefix("xdstp://").ok_or(form)?;
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
    // By segments, so that an encoded slash is not taken for one that separates.
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

/// Context parameters, sorted (TP1 "Normalization").
fn parameters(query: &str) -> Result<BTreeMap<String, String>, String> {
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

/// Percent-encodes what may not stand in the path of a URI; slashes stay (A47).
pub(crate) fn encode_path(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode(text, |byte| byte == b'/' || is_segment(byte), &mut out);
    out
}

/// Percent-encodes what may not stand in the authority of a URI; slashes are encoded too.
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

/// Without percent-encoding.
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

/// What RFC 3986 lets stand in a segment of a path (`pchar`).
fn is_segment(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte)
}

/// What may stand in the key or value of a query without ending it.
fn is_parameter(byte: u8) -> bool {
    matches!(byte, b'/' | b'?') || (is_segment(byte) && !matches!(byte, b'&' | b'='))
}
