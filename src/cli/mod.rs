//! The command line: a verb in, an exit code out. `main` only calls [`run()`]; so does a user's own
//! program that registers its kinds.
//!
//! ```text
//! args ─session─▶ experiment ─▶ facts ─▶ plan ─▶ run folder ─▶ ranks ─▶ how it ended ─▶ exit code
//! ```
//!
//! ```no_run
//! use ddprun::kinds::Kinds;
//!
//! // The whole of a program with kinds of its own: `my-program train.toml`, `my-program resume` ...
//! let kinds = Kinds::default();
//! let code = ddprun::cli::run(std::env::args_os(), &kinds);
//! ```

mod output;
mod runs_args;
mod args;
mod runs;
mod usage;
mod explain;
mod node_args;
mod evaluation_tables;
mod evaluate;
mod checkpoint;
mod sample;
mod predict;
mod address;
mod serve_model;
mod train;
mod sweep;
mod ask_tell;
#[cfg(feature = "dashboard")]
mod dashboard;
mod inspect;
mod check;
#[cfg(feature = "clusters")]
mod jobs;
mod doctor;
mod try_run;
mod run;

pub(crate) use output::{
    answer, answers, in_color, last_words, print_page, refuse_existing, verbatim,
};
pub use run::run;
