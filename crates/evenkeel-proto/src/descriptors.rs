//! Descriptors of every message and service, for protobuf JSON and server reflection.

mod json;

pub use json::message_json;
/// Library that defines the descriptor types.
pub use prost_reflect;
use prost_reflect::DescriptorPool;

/// Encoded `google.protobuf.FileDescriptorSet` of all files of this crate and of the well-known types.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");

/// Returns a pool of all descriptors. Each call decodes it, so callers should keep it.
pub fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the embedded set was written by the generator")
}
