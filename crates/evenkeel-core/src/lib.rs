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
