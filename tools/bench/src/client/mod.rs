//! What a client process does, whatever it calls with: arguments in, calls, one line of figures out.
//!
//! The peer `tools/bench/peers/tonic-xds` includes this folder, so that it measures itself exactly as ours do. It therefore uses
//! nothing of this program but `crate::Error`.

pub(crate) mod args;
pub(crate) mod drive;
pub(crate) mod echo;
pub(crate) mod histogram;
