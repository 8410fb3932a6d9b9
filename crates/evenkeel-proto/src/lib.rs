//! The wire messages that evenkeel speaks, and no others.
//!
//! Generated from this crate's own `.proto` files: names, numbers and types are the published ones of Envoy's and
//! xDS's APIs, of which each message here holds the fields that we read, write, refuse or report as ignored. A field
//! that is not here is skipped when a message is read, as protobuf does with every unknown field; who must keep
//! it keeps the bytes. The modules follow the packages. Nothing here decides anything.
//!
//! The generated code is committed. After a change of a `.proto` file run `cargo run -p protogen`; a test there fails
//! while the two differ, and another compares every message with the published descriptors.
//!
//! ```
//! use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
//! use prost::{Message as _, Name as _};
//!
//! let sent = ClusterLoadAssignment { cluster_name: "orders".to_owned(), ..Default::default() };
//! let read = ClusterLoadAssignment::decode(&*sent.encode_to_vec())?;
//! assert_eq!(read, sent);
//! assert_eq!(ClusterLoadAssignment::type_url(), "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment");
//! # Ok::<(), prost::DecodeError>(())
//! ```

#![forbid(unsafe_code)]
// The code below is written by a generator; its contracts are those of the published messages.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

/// What the messages build on.
pub use prost;
/// `google.protobuf`: `Any`, `Duration`, `Struct` and their kin.
pub use prost_types;

include!("generated/mod.rs");

#[cfg(feature = "descriptors")]
pub mod descriptors;
