//! Gradients -> new parameters: update rules, learning-rate schedules, clipping, averages of the
//! weights.
//!
//! Everything here works on plain `f32` slices and does the same on every rank. The gradients that
//! come in are sums over all ranks; the update turns them into means as it reads them.
//!
//! An update rule is its options, its state tensors, and the update of an element; a scheduler its
//! options, and the rate after a number of intervals.
//!
//! ```
//! use ddprun_plan::config::kind::Choice;
//! use ddprun_train::optim::{Adam, Optimizers};
//!
//! let adam = Optimizers::default().build(&Choice::of(&Adam::default())).unwrap();
//! assert_eq!(adam.state(), ["exp_avg", "exp_avg_sq"]);
//! ```

mod adafactor;
mod adagrad;
mod adam;
mod adan;
mod block;
mod clip;
mod lamb;
mod lion;
mod muon;
mod nadam;
mod optimizer;
mod registered;
mod rmsprop;
mod scheduler;
mod sgd;
mod state;
mod update;

pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use adan::Adan;
pub use block::{Block, follow_values, lerp};
pub use clip::{
    GradientNorm, Preparation, clip_coefficient, shared_sum_of_squares, sum_of_squares,
};
pub use lamb::Lamb;
pub use lion::Lion;
pub use muon::{AdjustLr, Muon};
pub use nadam::NAdam;
pub use optimizer::{Optimizer, OptimizerFamily, Optimizers, Step, facts, plan};
pub use rmsprop::RmsProp;
pub use scheduler::{
    Constant, CosineAnnealingLr, CosineRestarts, DecayType, ExponentialLr, InverseSqrt, Linear,
    MultiStepLr, NoamAnnealing, OneCycleLr, Plateau, PolynomialLr, Rates, ReduceLrOnPlateau,
    Schedule, Scheduler, SchedulerFamily, Schedulers, StepLr, WarmupStableDecay, describe_schedule,
    schedule, scheduler_facts,
};
pub use sgd::Sgd;
pub use state::{NamedTensor, ParameterState};
pub use update::{ParameterUpdate, Update};
