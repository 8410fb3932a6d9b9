//! ring_hash
