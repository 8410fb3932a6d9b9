//! Protobuf messages that evenkeel uses on the wire.
//!
//! The code is generated from this crate's `.proto` files. Names, numbers and types are those of the
//! published Envoy and xDS APIs. Each message contains the fields that evenkeel reads, writes, rejects or
//! reports as ignored. Other fields are skipped on decoding, as unknown fields are in protobuf. Code that
//! must preserve them keeps the encoded bytes. The modules follow the protobuf packages. The crate contains
//! no logic.
//!
//! The generated code is committed. After a change of a `.proto` file, run `cargo run -p protogen`. One test
//! fails while the two differ, and another compares every message with the published descriptors.
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
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
// Generated code: its contracts are those of the published messages.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

/// Protobuf runtime that the generated messages use.
pub use prost;
/// Messages of `google.protobuf`: `Any`, `Duration`, `Struct` and others.
pub use prost_types;

include!("generated/mod.rs");

#[cfg(feature = "descriptors")]
pub mod descriptors;
