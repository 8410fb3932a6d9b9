//! Which authority a name belongs to, and the one spelling under which it is kept.

use std::sync::Arc;

use crate::resource::ResourceType;

/// The place of a resource in the cache (A47: authority, then type, then name).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// The index of the authority.
    pub(super) authority: usize,
    pub(super) kind: ResourceType,
    /// The canonical spelling, which is also what goes over the wire.
    pub(super) name: Arc<str>,
}

/// The authority of a name (`None` for an old-style one) and its canonical spelling.
pub(super) fn canonical(kind: ResourceType, text: &str) -> Result<(Option<String>, Arc<str>), String> {
    let Some(rest) = text.strip_prefix("xdstp:") else { return Ok((None, text.into())) };
    let form = format!("expected xdstp://AUTHORITY/{}/ID", kind.message());
    let path = rest.strip_prefix("//").and_then(|rest| rest.split_once('/'));
    let Some((authority, path)) = path else { return Err(form) };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    if !path.strip_prefix(kind.message()).is_some_and(|id| id.len() > 1 && id.starts_with('/')) {
        return Err(form);
    }
    let mut parameters: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    parameters.sort_unstable();
    let mark = if parameters.is_empty() { "" } else { "?" };
    let name = format!("xdstp://{authority}/{path}{mark}{}", parameters.join("&"));
    Ok((Some(authority.to_owned()), name.into()))
}

/// Whether two spellings name one resource.
pub(super) fn is_same(kind: ResourceType, one: &str, other: &str) -> bool {
    one == other
        || matches!((canonical(kind, one), canonical(kind, other)), (Ok(one), Ok(other)) if one == other)
}
