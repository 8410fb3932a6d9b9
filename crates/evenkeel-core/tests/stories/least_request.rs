//! least_request
