//! Balancing for gRPC as values.
//!
//! This crate decides where calls go. It knows endpoints, subchannel states and back-off, policies, pickers and
//! schedulers; it reads no clock, opens no socket, spawns nothing and keeps no global. A driver tells a [`Core`] what
//! happened, asks it for one pass, carries out the [`LbEffect`]s and publishes the picker. That makes every decision
//! testable on virtual time, and usable from a channel, a simulator or another transport alike.
//!
//! | where | what |
//! |---|---|
//! | [`Core`] | takes events, runs passes, gives effects |
//! | [`Policy`], [`Cx`], [`ChildPolicy`], [`EndpointList`] | writing a policy |
//! | [`Registry`], [`LbConfig`] | configs and which policies they may name |
//! | [`Picker`], [`PickArgs`], [`PickResult`], [`CallTrackers`] | the request path |
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
pub use child::ChildPolicy;
pub use config::{ConfigError, ConfigFields, LbConfig};
pub use conn::{ConnectMode, EndpointConnection, EndpointConnectionState};
pub use core::{Core, CoreBuilder, LbEffect, LbEvent, LbUpdate, PassResult};
pub use counters::{CallCounters, InFlightCounter};
pub use cx::{Cx, PolicyScope};
pub use describe::{DescribeCx, Description, EndpointRow};
pub use endpoint::{
    Endpoint, EndpointGroup, EndpointHealthStatus, EndpointKey, EndpointMetadata, Endpoints, HASH_KEY,
    Locality,
};
pub use fleet::{EndpointEntry, EndpointList};
pub use load::LoadReport;
pub use means::{ClusterTransport, TransportParams};
pub use measure::{DetectionMethod, LbLabels, Measurement, OutlierCounts, UnenforcedReason, WeightUpdate};
pub use pages::PersistentVec;
pub use pick::{
    BackendLabels, CallOutcome, CallTracker, CallTrackers, PickArgs, PickHeaders, PickResult, Picker,
    RequestMetadata, RootPicker,
};
pub use policy::{CachedState, LbState, Policy};
pub use registry::Registry;
pub use rng::Rng;
pub use rubbish::DeferredDrop;
pub use status::{Code, Status};
pub use subchannel::{Backoff, ConnectivityState, Subchannel, SubchannelId};
pub use time::Instant;
