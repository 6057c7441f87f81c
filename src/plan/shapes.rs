//! The generated data set, with its numbers where none were given.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Experiment;

/// What `data.name = "shapes"` generates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shapes {
    /// Folder to generate into; each set has a folder of its own below it.
    pub dir: PathBuf,
    /// Number of classes, 2 to 90.
    pub classes: u32,
    /// Training images per class.
    pub train_per_class: u32,
    /// Validation images per class.
    pub val_per_class: u32,
    /// Height and width in pixels.
    pub image_size: u32,
    /// Seed of the images.
    pub seed: u64,
}

impl Shapes {
    /// What `experiment` asks for; where it does not say, the defaults of `defaults.toml`.
    pub fn of(experiment: &Experiment) -> Self {
        let data = &experiment.data;
        let name = experiment.experiment.name.as_deref().unwrap_or("shapes");
        Self {
            dir: data.dir.clone().unwrap_or_else(|| PathBuf::from("data").join(name)),
            classes: data.classes.unwrap_or(10),
            train_per_class: data.train_per_class.unwrap_or(200),
            val_per_class: data.val_per_class.unwrap_or(40),
            image_size: data.image_size.unwrap_or(32),
            seed: experiment.experiment.seed,
        }
    }
}
