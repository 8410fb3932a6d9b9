//! Client process for any channel: parses arguments, makes calls, prints one line of figures.
//!
//! The peer `tools/bench/peers/tonic-xds` includes this folder, so that it measures in the same way.
//! Therefore this folder uses nothing else of this program but `crate::Error`.

pub(crate) mod args;
pub(crate) mod drive;
pub(crate) mod echo;
pub(crate) mod histogram;
