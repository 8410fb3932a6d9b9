//! Load reports (ORCA, A51): backends report their utilization, and clients balance calls by it.
//!
//! | item | purpose |
//! |---|---|
//! | [`LoadLayer`] | a layer for a tonic server: it measures calls and adds a report to their trailers |
//! | [`ServerLoad`] | the load of a server: measured values, and values that the application sets |
//! | [`CallLoad`] | the load of one call, recorded by its handler |
//! | [`LoadService`] | out-of-band reports, for clients with long-lived streams or few calls |
//! | [`cpu`] | the source and the definition of CPU utilization |
//! | [`read`], [`read_trailers`] | the client's side: parse a report and drop invalid values |
//!
//! The `weighted_round_robin` policy weights an endpoint by requests per second divided by utilization, less an error
//! penalty (A58). It uses the application's utilization if one is reported, otherwise the CPU utilization. Any gRPC
//! client can use these reports: the wire format is the published one.

#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

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
