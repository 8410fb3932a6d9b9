//! Load reports (ORCA, A51): backends say how busy they are, and clients send them what they can bear.
//!
//! | where | what |
//! |---|---|
//! | [`LoadLayer`] | one line for a tonic server: it measures, and reports with the end of every call |
//! | [`ServerLoad`] | the load of a server: what is measured, and what the application says |
//! | [`CallLoad`] | the load of one call, for handlers |
//! | [`LoadService`] | reports out of band, for clients with long calls or none |
//! | [`cpu`] | where the CPU's utilisation comes from, and what it means |
//! | [`read`], [`read_trailers`] | the client's side: from bytes to numbers that can be computed with |
//!
//! A client with the policy `weighted_round_robin` weighs a backend by requests per second over utilisation, less a
//! penalty for errors (A58). Which utilisation: the application's own if it reports one, otherwise the CPU's. Any gRPC
//! client can use these reports; the wire format is the published one.

#![forbid(unsafe_code)]

mod base64;
mod call;
pub mod cpu;
mod layer;
mod report;
mod server;
mod service;
mod values;
mod watch;

pub use call::CallLoad;
pub use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
pub use layer::{LoadLayer, ReportingBody, ReportingFuture, ReportingService};
pub use report::{IgnoredReason, NamedMetric, OrcaReport, ParsedReport, TRAILER, read, read_trailers};
pub use server::{ServerLoad, ServerLoadBuilder};
pub use service::{LoadService, METHOD};
