//! Balancing for gRPC as values.
//!
//! This crate decides where calls go. It knows endpoints, subchannel states and back-off, policies, pickers and
//! schedulers; it reads no clock, opens no socket, spawns nothing and keeps no global. A driver tells a [`Core`] what
//! happened, asks it for one pass, carries out the [`Effect`]s and publishes the picker. That makes every decision
//! testable on virtual time, and usable from a channel, a simulator or another transport alike.
//!
//! | where | what |
//! |---|---|
//! | [`Core`] | takes events, runs passes, gives effects |
//! | [`Policy`], [`Cx`], [`Child`], [`Fleet`] | writing a policy |
//! | [`Registry`], [`LbConfig`] | configs and which policies they may name |
//! | [`Picker`], [`Call`], [`Pick`], [`Trackers`] | the request path |
//! | [`cluster`] | what discovery found |
//! | [`load`] | load reports, and counts of calls for them |
//! | [`hash`] | request hashes |
//! | [`schedule`] | exact weighted orders |
//! | [`Description`] | the live tree as data |
//! | [`Measurement`] | what metrics are made of |

#![forbid(unsafe_code)]

mod address;
mod by_subchannel;
mod carry;
mod child;
pub mod cluster;
mod config;
mod conn;
mod core;
mod counters;
mod cx;
mod describe;
mod endpoint;
mod fast_map;
mod few;
mod fleet;
pub mod hash;
pub mod load;
mod means;
mod measure;
mod pages;
mod pick;
pub mod policy;
mod registry;
mod rng;
mod rubbish;
pub mod schedule;
mod status;
mod subchannel;
mod table;
mod time;
mod tree;
mod weights;

pub use address::Address;
pub use child::Child;
pub use config::{ConfigError, Fields, LbConfig};
pub use conn::{Conn, ConnState, Eagerness};
pub use core::{Builder, Core, Effect, Event, Pass, Update};
pub use counters::{CallCounters, InFlight};
pub use cx::{Cx, Scope};
pub use describe::{Description, EndpointRow, Look};
pub use endpoint::{Endpoint, EndpointKey, Endpoints, Group, HASH_KEY, Health, Locality, Metadata};
pub use fleet::{Fleet, Member};
pub use load::LoadReport;
pub use means::{ClusterMeans, Means};
pub use measure::{DetectionMethod, Labels, Measurement, Outliers, UnenforcedReason, Weighed};
pub use pages::Pages;
pub use pick::{Call, CallEnd, Headers, Pick, PickHeaders, Picker, Place, RootPicker, Tracker, Trackers};
pub use policy::{LbState, Policy, Shown};
pub use registry::Registry;
pub use rng::Rng;
pub use rubbish::Rubbish;
pub use status::{Code, Status};
pub use subchannel::{Backoff, Connectivity, Subchannel, SubchannelId};
pub use time::Instant;
