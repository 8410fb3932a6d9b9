//! The command as a process. One binary has the tests of all subcommands but `bench`: many of them wait, and waits of
//! one binary overlap.

#[path = "../common/mod.rs"]
mod common;
mod demo;
mod deploy;
mod doctor;
mod escapes;
mod explain;
mod help;
mod inspect;
mod pipes;
mod serve;
mod validate;
