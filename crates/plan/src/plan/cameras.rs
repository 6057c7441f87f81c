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

/// Values of the pixels of images, from 0 to 1, by channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PixelStats {
    /// Means.
    pub mean: Vec<f64>,
    /// Standard deviations.
    pub std: Vec<f64>,
    /// Those of each camera where there are several; a run of before has only those of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cameras: Vec<Self>,
}

impl PixelStats {
    /// Those of images of so many channels: the means of all where it is another number.
    #[must_use]
    pub fn of_channels(&self, channels: usize) -> Self {
        let of = |list: &[f64]| {
            if list.len() == channels {
                return list.to_vec();
            }
            vec![list.iter().sum::<f64>() / list.len().max(1) as f64]
        };
        let cameras = self.cameras.iter().map(|camera| camera.of_channels(channels)).collect();
        Self { mean: of(&self.mean), std: of(&self.std), cameras }
    }
}

impl Cameras {
    /// Values of all images of an observation.
    pub fn values(&self) -> usize {
        self.names.len() * self.shape.iter().product::<usize>()
    }
}
