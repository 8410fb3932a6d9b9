//! Which virtual host an authority belongs to.

use std::collections::BTreeMap;

/// Domains to the indices of virtual hosts. Case does not matter; of two equal domains the first counts.
#[derive(Clone, Debug, Default)]
pub(super) struct DomainTable {
    exact: BTreeMap<String, usize>,
    /// What comes after the asterisk.
    suffixes: WildcardDomains,
    /// What comes before the asterisk.
    prefixes: WildcardDomains,
    any: Option<usize>,
}

/// Parts of names by their length, so that the longest can be found first.
type WildcardDomains = BTreeMap<usize, BTreeMap<String, usize>>;

/// Why a domain was not added as it is.
pub(super) enum DomainError {
    /// An asterisk in the middle.
    Invalid,
    /// It was there before.
    Duplicate,
}

impl DomainTable {
    pub(super) fn add(&mut self, domain: &str, host: usize) -> Result<(), DomainError> {
        let domain = domain.to_ascii_lowercase();
        if domain == "*" {
            if self.any.is_some() {
                return Err(DomainError::Duplicate);
            }
            self.any = Some(host);
            return Ok(());
        }
        let (map, part) = if let Some(suffix) = domain.strip_prefix('*') {
            (self.suffixes.entry(suffix.len()).or_default(), suffix)
        } else if let Some(prefix) = domain.strip_suffix('*') {
            (self.prefixes.entry(prefix.len()).or_default(), prefix)
        } else {
            (&mut self.exact, domain.as_str())
        };
        if part.is_empty() || part.contains('*') {
            return Err(DomainError::Invalid);
        }
        if map.contains_key(part) {
            return Err(DomainError::Duplicate);
        }
        map.insert(part.to_owned(), host);
        Ok(())
    }

    /// The host with the best domain: exact, then the longest suffix, then the longest prefix, then any. An asterisk
    /// stands for at least one character, as in Envoy.
    pub(super) fn find(&self, authority: &str) -> Option<usize> {
        let name = authority.to_ascii_lowercase();
        let shorter = ..name.len();
        let suffix = || {
            let mut ends = self.suffixes.range(shorter).rev();
            ends.find_map(|(len, parts)| parts.get(name.get(name.len().checked_sub(*len)?..)?))
        };
        let prefix = || {
            let mut starts = self.prefixes.range(shorter).rev();
            starts.find_map(|(len, parts)| parts.get(name.get(..*len)?))
        };
        self.exact.get(&name).or_else(suffix).or_else(prefix).copied().or(self.any)
    }
}
