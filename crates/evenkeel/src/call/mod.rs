//! Calls: the state machine of a call, its attempts, and its request and response.
//!
//! `client_call.rs` contains the path of a call and names the other files. A request body is read once and sent as it
//! arrives. Sent data is buffered until the call is committed, so that an attempt can be retried (A6). The common request,
//! one message that is available at once, is sent without a task and without waiting for the peer.

pub(crate) mod attempt;
pub(crate) mod client_call;
pub(crate) mod deadline;
pub(crate) mod in_flight;
pub(crate) mod observer;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod retry;
pub(crate) mod status;
pub(crate) mod timeout;

pub(crate) use attempt::Attempt;
pub use client_call::ResponseFuture;
pub(crate) use deadline::CallDeadline;
pub(crate) use in_flight::InFlightCalls;
pub(crate) use observer::{AttemptObserver, CallObserver};
pub(crate) use request::RequestBuffer;
pub use response::ResponseBody;
