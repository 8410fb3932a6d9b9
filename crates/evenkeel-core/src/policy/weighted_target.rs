//! weighted_target
