//! Channels over real sockets: what an application sees.

mod backends;
mod calls;
mod load;
mod mesh;
mod wire;
