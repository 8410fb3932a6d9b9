//! Channels over real sockets: what an application sees.

mod backends;
mod calls;
mod garbage;
mod load;
mod mesh;
mod out_of_band;
mod wire;
