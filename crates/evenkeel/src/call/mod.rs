//! One call: what it keeps over its attempts, how an attempt is sent, and how its answer is watched to the end.
//!
//! A request body is read once and sent as it comes; what was sent is kept until the call is committed, so that an attempt
//! which the peer did not process, or which a policy repeats, can be sent again (A6). The common request, one message that is
//! there at once, is sent without a task of its own and without waiting for the peer.

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
