//! A run's start, from the words of a command line to ranks that train: new, resumed, started again
//! by its launcher, or joined on another machine.
//!
//! ```text
//! file, changes ──experiment──▶ Prepared { experiment, facts, plan }
//! stored run ─────resume──────▶ Prepared, of the run that goes on          ┐
//! launch ids ─────relaunch────▶ the run that this launch had begun          ├─start─▶ RunRequest
//!                                                                           ┘
//! RunRequest ──run_folder──▶ OwnedRun ──supervise | nodes──▶ Launched: how it ended
//! ```

mod data_problem;
mod other_file;
mod follow_target;
mod pretrained;
mod experiment;
mod run_folder;
mod resume;
mod request;
mod relaunch;
mod supervise;
mod nodes;
mod start;
mod sweep_start;
mod sweep_weights;
mod trial_runner;
mod evaluation;
mod costs;

pub use costs::costs;
pub use evaluation::{EvaluationChanges, evaluation_of_run, evaluation_of_weights};
pub use experiment::{
    ALONE, Origin, Prepared, check_weights, complete, generate, gpus, load, measure, planned,
    prepare, refuse_sweep, source_of, targets, vocabulary, written,
};
pub use follow_target::follow_target;
pub use nodes::no_place;
pub use nodes::{apart, read_token};
pub use other_file::refuse_other_files;
pub use relaunch::run_of_job;
pub use request::RunRequest;
pub use resume::{Environment, MissingCheckpoints, ResumedRun, refuse_changed_trial, resumed};
pub use run_folder::{
    OtherData, another_model, new_id, other_data, own_run, stored_experiment, unwritable,
};
pub use start::{Never, launch, new_or_relaunched};
pub use supervise::{Launched, clear, conclude, draw, program};
pub(crate) use sweep_start::shared_sweep;
pub use sweep_start::{load_sweep, number_sweep, one_run};
pub use trial_runner::{TrialRunner, VISIBLE_GPUS};
