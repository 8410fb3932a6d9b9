//! The share of the CPU that a server uses.
