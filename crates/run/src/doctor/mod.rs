//! Checks of an experiment that train a few of its steps in a scratch folder: whether results are
//! bitwise identical at several world sizes (`ddprun doctor`) or on several machines
//! (`ddprun doctor --nnodes N`), and whether each part of a run works (`ddprun try`).

mod short_run;
mod links;
mod machines;
mod world_sizes;
mod rehearsal;

pub use links::{BUCKET_BYTES, Links, SMALL_BYTES, speed};
pub use machines::{Machine, MachinesProgress, TrainedAlone, check_machines, slow_machines};
pub use rehearsal::Rehearsal;
pub use world_sizes::{WorldSizesProgress, check_world_sizes};
