//! The commands as a user types them: codes, streams, and what is written.

mod calibrating;
mod common;
mod models;
mod program;
mod quantizing;
mod ranges;
mod refusals;
