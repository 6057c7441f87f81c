//! Images as data: how their pixels are stored, which cameras they are of, and how they are
//! normalized.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Height and width, in pixels.
pub type Sides = (u32, u32);

/// How a value of a pixel is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PixelDtype {
    /// 8 bits, white is 255.
    #[default]
    Uint8,
    /// 16 bits, white is 65,535.
    Uint16,
}

impl PixelDtype {
    /// True for 8 bits, the default.
    pub fn is_usual(&self) -> bool {
        *self == Self::Uint8
    }

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Uint16 => 2,
        }
    }
}

/// The images that a transform gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// 1 (grey) or 3 (RGB).
    pub channels: usize,
    /// Size of all images; `None` = they may differ.
    pub size: Option<Sides>,
    /// Type of their pixel values.
    pub dtype: PixelDtype,
    /// Number of cameras, if the images are part of observations; else 0.
    pub cameras: usize,
}

impl Images {
    /// Images of 8 bits.
    pub fn new(channels: usize, size: Option<Sides>) -> Self {
        Self { channels, size, dtype: PixelDtype::Uint8, cameras: 0 }
    }
}

/// Cameras whose images follow the numbers of each observation, one camera after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cameras {
    /// Names of the cameras, in this order.
    pub names: Vec<String>,
    /// (channels, height, width) of each image.
    pub shape: [usize; 3],
}

impl Cameras {
    /// Values of all images of an observation.
    pub fn values(&self) -> usize {
        self.names.len() * self.shape.iter().product::<usize>()
    }
}

/// Statistics of the pixels of images, from 0 to 1, by channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PixelStats {
    /// Means.
    pub mean: Vec<f64>,
    /// Standard deviations.
    pub std: Vec<f64>,
    /// Statistics of each camera, if there are several; empty in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cameras: Vec<Self>,
}

impl PixelStats {
    /// The statistics for images of `channels` channels: averaged over all channels if their number
    /// differs.
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

/// Preprocessing of the images that pretrained weights were trained on, by a file beside the
/// weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainedOn {
    /// The file.
    pub file: PathBuf,
    /// Mean of each channel, of values from 0 to 1.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel.
    pub std: Vec<f64>,
    /// Interpolation of their resizing (`bicubic`); `None` = the file does not say.
    #[serde(default)]
    pub interpolation: Option<String>,
}
