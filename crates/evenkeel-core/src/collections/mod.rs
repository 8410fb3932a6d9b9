//! Private data structures: persistent maps and vectors whose clones share unchanged parts, small inline lists, fast hashing.

pub(crate) mod diff;
pub(crate) mod fast_map;
pub(crate) mod inline_vec;
pub(crate) mod persistent_map;
pub(crate) mod persistent_vec;
pub(crate) mod subchannel_map;
