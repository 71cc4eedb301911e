//! Changes valid input: its structure, seldom its bytes alone.

pub(crate) mod bytes;
pub(crate) mod json;
pub(crate) mod protobuf;
pub(crate) mod text;
