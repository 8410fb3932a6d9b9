//! cluster_manager
