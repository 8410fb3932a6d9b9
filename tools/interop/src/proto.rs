//! Generated messages and services.

#![allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]

pub mod testing {
    include!("generated/grpc.testing.rs");
}

pub mod health {
    include!("generated/grpc.health.v1.rs");
}

pub mod channelz {
    include!("generated/grpc.channelz.v1.rs");
}

pub mod csds {
    include!("generated/envoy.service.status.v3.rs");
}
