//! Detection of duplicate addresses in a `ClusterLoadAssignment` (A27).

use std::collections::HashSet;
use std::net::SocketAddr;

use evenkeel_core::Address;

/// Addresses seen so far, with one of two ways to find duplicates.
pub(super) enum DuplicateCheck {
    /// Checks once at the end. Sorting all addresses costs less than one lookup per address.
    Deferred(AddressBatch),
    /// Checks each address, so that an error can name the field path of the duplicate.
    Immediate(HashSet<SocketAddr>),
}

/// Addresses as integers, which are cheap to sort.
#[derive(Default)]
pub(super) struct AddressBatch {
    v4: Vec<u64>,
    v6: Vec<(u128, u16)>,
}

impl DuplicateCheck {
    /// Adds an address. Returns true if it is a known duplicate. A deferred check always returns false.
    pub(super) fn is_duplicate(&mut self, address: SocketAddr) -> bool {
        match self {
            DuplicateCheck::Deferred(gathered) => {
                gathered.push(address);
                false
            }
            DuplicateCheck::Immediate(all) => !all.insert(address),
        }
    }
}

impl AddressBatch {
    pub(super) fn push(&mut self, address: SocketAddr) {
        match number(&address) {
            AddressKey::V4(number) => self.v4.push(number),
            AddressKey::V6(number) => self.v6.push(number),
        }
    }

    /// Returns true if an address was added twice, or is also in `others`.
    pub(super) fn has_duplicates<'a>(mut self, mut others: impl Iterator<Item = &'a Address>) -> bool {
        self.v4.sort_unstable();
        self.v6.sort_unstable();
        let has = |other: &Address| match other {
            Address::Ip(address) => match number(address) {
                AddressKey::V4(number) => self.v4.binary_search(&number).is_ok(),
                AddressKey::V6(number) => self.v6.binary_search(&number).is_ok(),
            },
            _ => false,
        };
        // Strictly ascending: equal neighbours are duplicates.
        let is_each_once = self.v4.is_sorted_by(|a, b| a < b) && self.v6.is_sorted_by(|a, b| a < b);
        !is_each_once || others.any(has)
    }
}

enum AddressKey {
    V4(u64),
    V6((u128, u16)),
}

/// Returns the address as an integer. Addresses in resources have no IPv6 scope, so the scope is not part of
/// it.
fn number(address: &SocketAddr) -> AddressKey {
    match address {
        SocketAddr::V4(v4) => AddressKey::V4(u64::from(v4.ip().to_bits()) << 16 | u64::from(v4.port())),
        SocketAddr::V6(v6) => AddressKey::V6((v6.ip().to_bits(), v6.port())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_duplicates(all: &[&str], others: &[&str]) -> bool {
        let mut gathered = AddressBatch::default();
        for address in all {
            gathered.push(address.parse().unwrap());
        }
        let others: Vec<Address> = others.iter().map(|other| Address::from(*other)).collect();
        gathered.has_duplicates(others.iter())
    }

    #[test]
    fn an_address_is_found_wherever_it_stands() {
        let all =
            ["10.0.0.3:80", "[::1]:80", "10.0.0.1:80", "10.0.0.1:81", "[::ffff:10.0.0.1]:80", "[::1]:81"];
        assert!(!has_duplicates(&[], &[]));
        assert!(!has_duplicates(&all, &["10.0.0.2:80", "[::2]:80", "unix:/10.0.0.1:80", "name"]));
        for again in all {
            assert!(has_duplicates(&[&all[..], &[again]].concat(), &[]), "{again}");
            assert!(has_duplicates(&all, &["10.0.0.2:80", again]), "{again}");
        }
    }
}
