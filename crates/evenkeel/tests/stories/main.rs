//! Channels over real sockets: what an application sees.

mod backends;
mod calls;
mod mesh;
mod wire;
