//! Every policy as stories on virtual time. A test names in its doc comment what it covers.

mod bad_input;
mod churn;
mod cluster_impl;
mod cluster_manager;
mod custom;
mod docs;
mod edf_weighted_round_robin;
mod least_request;
mod load;
mod outlier_detection;
mod pick_first;
mod pick_first_model;
mod priority;
mod random_subsetting;
mod ring_hash;
mod round_robin;
mod rules;
mod scripted;
mod subchannel_model;
mod threads;
mod tree;
mod weighted_round_robin;
mod weighted_target;
mod wrr_locality;
