//! Parts on real sockets: backends that can be killed, a control plane that can be scripted, and peers that misbehave.

pub mod backend;
pub mod certs;
pub mod control;
pub mod frames;
pub mod proxy;
