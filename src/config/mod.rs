//! TOML text -> `Experiment`, or all its problems at once, each with a caret into the file.

pub mod schema;
pub mod values;
