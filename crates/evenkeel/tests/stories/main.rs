//! Channels over real sockets: what an application sees.

mod calls;
mod backends;
mod mesh;
mod wire;
