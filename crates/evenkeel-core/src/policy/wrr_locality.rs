//! wrr_locality
