//! cluster_impl
