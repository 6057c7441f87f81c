//! Images that are part of observations.

use serde::{Deserialize, Serialize};

/// Cameras whose images stand behind the numbers of each observation, one camera after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cameras {
    /// Their names, in this order.
    pub names: Vec<String>,
    /// (channels, height, width) of each of their images.
    pub shape: [usize; 3],
}

impl Cameras {
    /// Values of all images of an observation.
    pub fn values(&self) -> usize {
        self.names.len() * self.shape.iter().product::<usize>()
    }
}
