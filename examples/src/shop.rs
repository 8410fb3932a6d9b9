//! The service `shop.Orders`: the messages, the client and the server that tonic generates from
//! `examples/proto/shop.proto`.
//!
//! A service of your own generates the same in its `build.rs` with `tonic-prost-build`, and includes it by
//! `tonic::include_proto!("shop")`. Here the code is committed, so that the examples need no
//! `protoc`; `cargo run -p protogen` writes it.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

include!("generated/shop.rs");
