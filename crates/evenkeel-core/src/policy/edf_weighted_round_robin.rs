//! edf_weighted_round_robin
