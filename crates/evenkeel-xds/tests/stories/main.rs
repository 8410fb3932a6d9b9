//! Stories about the xDS client, one module per part. Each test names the requirement ids that it covers.

mod bootstrap;
mod client;
mod client_model;
mod cluster;
mod csds;
mod delta;
mod endpoints;
mod endpoints_alone;
mod fallback;
mod graph;
mod istio;
mod lb;
mod listener;
mod lrs;
mod names;
mod return_of_server;
mod route;
mod routing;
mod script;
mod session_affinity;
mod stages;
mod trouble;
mod whole;
