//! weighted_round_robin
