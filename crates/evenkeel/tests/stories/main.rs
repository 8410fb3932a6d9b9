//! Channels over real sockets: what an application sees.

mod calls;
