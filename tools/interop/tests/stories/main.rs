//! The programs, run as drivers run them, and the published cases with them. One binary: each is linked from all that the
//! channel stands on.

mod cases;
mod client;
mod orca;
mod programs;
mod server;
