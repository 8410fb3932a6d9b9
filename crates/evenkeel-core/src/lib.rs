//! Client-side load balancing for gRPC without I/O.
//!
//! This crate contains endpoints, subchannel states and back-off, policies, pickers and schedulers. It reads no clock, opens no
//! socket, spawns no task and has no global state. A driver reports events to a [`Core`], runs a pass, performs the [`LbEffect`]s
//! and publishes the picker. Every decision can therefore be tested on virtual time, and used by a channel, a simulator or
//! another transport.
//!
//! | item | purpose |
//! |---|---|
//! | [`Core`] | events in, effects and pickers out |
//! | [`Policy`], [`Cx`], [`ChildPolicy`], [`EndpointList`] | writing a policy |
//! | [`Registry`], [`LbConfig`] | policy configs |
//! | [`Picker`], [`PickArgs`], [`PickResult`], [`CallTrackers`] | the request path |
//! | [`cluster`] | discovered clusters |
//! | [`load`] | load reports |
//! | [`hash`] | request hashes |
//! | [`schedule`] | weighted pick sequences |
//! | [`Description`] | snapshot of the policy tree |
//! | [`Measurement`] | metrics |
//! | [`proto3_json`] | rules of the JSON of configs |

#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod collections;
mod config;
mod endpoint;
mod engine;
pub mod load;
mod pick;
pub mod policy;
mod rng;
pub mod schedule;
mod status;
mod subchannel;
mod time;

pub use collections::subchannel_map::SubchannelMap;
pub use config::cluster;
pub use config::nearest::nearest_name;
pub use config::proto3_json;
pub use config::registry::Registry;
pub use config::{ConfigError, ConfigFields, LbConfig};
pub use endpoint::address::Address;
pub use endpoint::connection::ConnectMode;
pub use endpoint::list::{EndpointEntry, EndpointList};
pub use endpoint::transport_params::{ClusterTransport, TransportParams};
pub use endpoint::{Endpoint, EndpointHealthStatus, Endpoints, HASH_KEY, Locality};
pub use engine::child::ChildPolicy;
pub use engine::core::{Core, CoreBuilder, LbEffect, LbEvent, LbUpdate, PassResult};
pub use engine::cx::{Cx, PolicyScope};
pub use engine::describe::{DescribeCx, Description, EndpointRow};
pub use engine::released::ReleasedValues;
pub use load::LoadReport;
pub use load::call_counters::{CallCounters, InFlightCounter};
pub use load::measurement::{
    DetectionMethod, LbLabels, Measurement, OutlierCounts, UnenforcedReason, WeightUpdate,
};
pub use pick::hash;
pub use pick::{
    BackendLabels, CallOutcome, CallTracker, CallTrackers, PickArgs, PickHeaders, PickResult, Picker,
    RequestMetadata, RootPicker,
};
pub use policy::{CachedState, LbState, Policy};
pub use rng::Rng;
pub use status::{Code, Status};
pub use subchannel::{Backoff, ConnectivityState, Subchannel, SubchannelId};
pub use time::Instant;

pub(crate) use endpoint::{EndpointGroup, EndpointKey};
