//! One TOML file and the facts about its model and data -> everything that a run will do, decided:
//! no tensor, no process, no clock. Which kinds there are comes in as a [`config::Vocabulary`].
//!
//! ```text
//! resnet.toml ─config─▶ Experiment ─plan─▶ Plan
//! ```

pub mod terminal;
pub mod config;
pub mod plan;
