//! Programs run as drivers run them, and the published cases. They share one binary, since each would link
//! the whole channel.

mod cases;
mod client;
mod orca;
mod programs;
mod server;
