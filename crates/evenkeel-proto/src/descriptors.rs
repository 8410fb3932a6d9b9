//! The messages as data: descriptors of every message and service, for protobuf JSON and server reflection.

/// What the descriptors are made of.
pub use prost_reflect;
use prost_reflect::DescriptorPool;

/// The encoded `google.protobuf.FileDescriptorSet` of every file of this crate and of the well-known types.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");

/// A pool of all of them. It is decoded on each call: keep it.
pub fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the embedded set was written by the generator")
}
