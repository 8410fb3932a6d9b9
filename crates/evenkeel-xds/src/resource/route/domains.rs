//! Table from authorities to virtual hosts.

use std::collections::BTreeMap;

/// Indexes of virtual hosts by domain. Case is ignored, and the first of two equal domains is used.
#[derive(Clone, Debug, Default)]
pub(super) struct DomainTable {
    exact: BTreeMap<String, usize>,
    /// Parts after the asterisk.
    suffixes: WildcardDomains,
    /// Parts before the asterisk.
    prefixes: WildcardDomains,
    any: Option<usize>,
}

/// Wildcard domains by length, so that the longest match is found first.
type WildcardDomains = BTreeMap<usize, BTreeMap<String, usize>>;

/// Reason why a domain was not added.
pub(super) enum DomainError {
    /// The asterisk is neither first nor last.
    Invalid,
    /// The domain was added before.
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

    /// Returns the host with the best match: exact, then the longest suffix, then the longest prefix, then
    /// `*`. An asterisk matches at least one character, as in Envoy.
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
