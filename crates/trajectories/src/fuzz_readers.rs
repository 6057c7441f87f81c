//! Files of trajectories as the fuzzer gives them: read to the end, and what was wrong with them.

use std::path::Path;

use crate::chunk::Behaviour;
use crate::data::Chunk;
use crate::plan::SplitPlan;
use crate::windows;

/// Trajectories with images and without, in columns where the file begins like a parquet file.
pub fn trajectories(path: &Path) -> Option<String> {
    let chunk = Chunk { horizon: 4, n_obs_steps: 2, n_action_steps: 2, val_ratio: 0.25 };
    let cameras = vec!["observation.images.top".to_owned()];
    let seen = Behaviour::Recorded { file: path.to_owned(), cameras };
    drop(windows::survey(&seen, chunk, &SplitPlan::NONE, None));
    let from = Behaviour::recorded(path.to_owned());
    windows::survey(&from, chunk, &SplitPlan::NONE, None).err().map(|error| error.to_string())
}
