//! The command line: a verb in, an exit code out. `main` only calls [`run()`]; so does a user's own
//! program that registers its kinds.
//!
//! ```text
//! args ─prepare─▶ load ─▶ facts ─▶ plan ─request─▶ run folder ─supervise─▶ launch ─▶ report ─▶ exit code
//! ```
//!
//! ```no_run
//! use ddprun::kinds::Kinds;
//!
//! // The whole of a program with kinds of its own: `my-program train.toml`, `my-program resume` ...
//! let kinds = Kinds::default();
//! let code = ddprun::cli::run(std::env::args_os(), &kinds);
//! ```

mod refusal;
mod output;
mod runs_args;
mod cluster_args;
mod init_args;
mod args;
mod incomplete_starts;
mod find_run;
mod run_files;
mod chosen;
mod pretrained;
mod follow_target;
mod runs;
mod data_problem;
mod other_file;
mod prepare;
mod usage;
mod other_length;
mod stored_experiment;
mod resumed;
mod resumed_trial;
mod request;
mod relaunch;
mod evaluation_tables;
mod evaluation_changes;
mod evaluate;
mod export;
mod checkpoint;
mod sample;
mod predict;
mod node_args;
mod no_place;
mod supervise;
mod machines;
mod train;
mod resume;
mod sweep_weights;
mod sweep;
mod inspect;
mod serve;
mod jobs;
mod submit;
mod init;
mod doctor_training;
mod doctor_links;
mod doctor_machines;
mod doctor;
mod try_run;
mod run;

pub(crate) use output::{
    answer, answers, complain, is_json, last_words, progress_bar, screen, to_stderr, verbatim,
};
pub(crate) use refusal::{Refusal, refuse_existing, with_causes};
pub use run::run;
