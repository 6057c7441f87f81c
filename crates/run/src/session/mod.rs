//! A run's start, from the words of a command line to ranks that train: new, resumed, started again
//! by its launcher, or joined on another machine.
//!
//! ```text
//! file, changes ──experiment──▶ Loaded ──prepare──▶ Prepared { loaded, facts, plan }, of a new run ┐
//! stored run ─────resume──────▶ Prepared, of the run that goes on                                  ├▶ RunRequest
//! launch ids ─────request─────▶ the run that this launch had begun                                 ┘
//!
//! RunRequest ──run_folder──▶ OwnedRun ──start: supervise | nodes──▶ Launched: how it ended
//! ```

mod other_file;
mod pretrained;
mod hub;
mod beside;
mod mirror;
mod experiment;
mod prepare;
mod run_folder;
mod hooks;
mod side_tasks;
mod resume;
mod restore;
mod request;
mod supervise;
mod nodes;
mod start;
mod sweep_start;
mod sweep_weights;
mod trial_runner;
mod evaluation;
mod file_check;

pub use evaluation::{EvaluationChanges, evaluation_of_run, evaluation_of_weights};
pub use experiment::{complete, follow_target, load};
pub use file_check::{CheckedFile, check_file};
pub use mirror::check_mirror;
pub use nodes::{join_page, read_token, rendezvous_page};
pub use other_file::refuse_other_files;
pub use prepare::{
    LaunchOrigin, Prepared, SINGLE_NODE, costs, gpus, make_plan, measure, prepare, source_of,
    targets,
};
pub use pretrained::check_weights;
pub use request::{RunRequest, new_or_relaunched, run_of_job};
pub use restore::restore;
pub use resume::{Environment, MissingCheckpoints, ResumedRun, refuse_changed_trial, resumed};
pub use run_folder::{
    OtherData, another_model, generate, new_id, other_data, own_run, refuse_sweep,
    stored_experiment, to_toml, unwritable,
};
pub use start::{Never, launch};
pub use supervise::{Launched, clear, conclude, draw, program};
pub use sweep_start::{earlier_results, load_sweep, number_sweep, one_run};
pub use trial_runner::{TrialRunner, VISIBLE_GPUS};
