//! The commands as a user types them: codes, streams, and what is written.

mod batch;
mod calibrating;
mod common;
mod comparing;
mod config;
mod config_checks;
mod guarding;
mod mixed;
mod models;
mod page;
mod program;
mod quantizing;
mod ranges;
mod refusals;
mod shell;
mod validating;
