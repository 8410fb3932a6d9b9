//! Weights of endpoints across localities (A113).

use std::collections::HashMap;

use crate::Endpoint;

const ONE: u64 = 1 << 31;

/// Returns the share of each endpoint in UQ1.31 fixed point: the normalised weight of its locality times its normalised weight
/// inside that locality. Without localities all endpoints are in one. Never 0.
pub(crate) fn spread(endpoints: &[&Endpoint]) -> Vec<u32> {
    let mut localities: HashMap<_, (u64, u64)> = HashMap::new();
    let mut locality_sum = 0;
    for endpoint in endpoints {
        // The weight of a locality counts once, with its first endpoint.
        let (_, sum) = localities.entry(endpoint.locality()).or_insert_with(|| {
            let weight = u64::from(endpoint.locality_weight().unwrap_or(1));
            locality_sum += weight;
            (weight, 0)
        });
        *sum += u64::from(endpoint.weight().unwrap_or(1));
    }
    let share = |endpoint: &&Endpoint| {
        let (locality, sum) = localities.get(&endpoint.locality()).copied().unwrap_or((1, 1));
        let locality = normalise(locality, locality_sum);
        let own = normalise(u64::from(endpoint.weight().unwrap_or(1)), sum);
        // Both factors are at most 2^31, so the product fits. A result of 0 becomes 1 (PF-12).
        ((locality * own) >> 31).max(1) as u32
    };
    endpoints.iter().map(share).collect()
}

fn normalise(weight: u64, sum: u64) -> u64 {
    // The weight has at most 32 bits and `ONE` has 32, so the product fits.
    weight * ONE / sum.max(1)
}
