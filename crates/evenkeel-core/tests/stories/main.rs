//! Every policy as stories on virtual time. A test names in its doc comment what it covers.

mod cluster_impl;
mod cluster_manager;
mod edf_weighted_round_robin;
mod least_request;
mod outlier_detection;
mod pick_first;
mod priority;
mod random_subsetting;
mod ring_hash;
mod round_robin;
mod scripted;
mod weighted_round_robin;
mod weighted_target;
mod wrr_locality;
