//! Policies: how behaviour is cut into observations and chunks of actions, on which scale a policy
//! sees and acts, and how it sees images. A data set of behaviour leaves it all in its survey, so
//! that the trained policy can act.

use serde::{Deserialize, Serialize};

use crate::config::kind::{Choice, Options};
use crate::error::Error;
use crate::plan::{Cameras, PixelStats, SourcePlan};
use crate::rng::Key;
use crate::transform::{Area, Decoded, Images, Normalize, Pipeline, Pixels, Transforms};

/// Ranges narrower than this are not stretched.
const MIN_RANGE: f32 = 1e-4;

/// Cutting of episodes into samples, by the names of diffusion policies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// Actions that are predicted together; the first `n_obs_steps - 1` of them are past.
    pub horizon: usize,
    /// Observations that are seen.
    pub n_obs_steps: usize,
    /// Actions that are done before the next chunk is predicted.
    pub n_action_steps: usize,
    /// Share of the episodes, the last ones, that is held back.
    pub val_ratio: f64,
}

/// Settings that a trained policy needs to act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    pub chunk: Chunk,
    /// Scale of the numbers: a trained policy sees and acts on that of its training episodes.
    pub ranges: Ranges,
    /// Seed of the simulation that the data come from; `None` if they were recorded.
    #[serde(default)]
    pub simulated: Option<u64>,
    /// The images of an observation as they are before transforms, if it has some.
    #[serde(default)]
    pub cameras: Option<Cameras>,
    /// Pixel statistics that normalize images if no transform does it; `None` in runs from before
    /// they were measured.
    #[serde(default)]
    pub pixels: Option<PixelStats>,
}

impl Policy {
    /// Key of the policy among the survey's results.
    pub const FOUND: &'static str = "policy";

    /// The policy of a plan; `None` if its data are no behaviour.
    pub fn of(source: &SourcePlan) -> Option<Self> {
        Self::found(&source.survey)
    }

    /// Reads the policy from the survey's results.
    pub fn found(found: &Options) -> Option<Self> {
        Self::deserialize(found.get(Self::FOUND)?).ok()
    }
}

/// Least and largest value of each number in the training episodes; models see -1 to 1 instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// Range of each number of an observation.
    pub observations: Vec<[f32; 2]>,
    /// Range of each number of an action.
    pub actions: Vec<[f32; 2]>,
}

/// `value` on the scale from -1 to 1; a number that hardly varies is moved to 0 only.
pub fn scaled(value: f32, [low, high]: [f32; 2]) -> f32 {
    if high - low < MIN_RANGE { value - low } else { 2.0 * (value - low) / (high - low) - 1.0 }
}

/// The way back from [`scaled`].
pub fn unscaled(value: f32, [low, high]: [f32; 2]) -> f32 {
    if high - low < MIN_RANGE {
        value + low
    } else {
        low + f32::midpoint(value, 1.0) * (high - low)
    }
}

/// Conversion of camera images to values.
pub struct CameraTransform {
    /// One pipeline for each camera.
    transforms: Vec<Pipeline>,
    /// Height and width of every image before.
    size: (usize, usize),
}

impl CameraTransform {
    /// Builds the transforms of `list` for such images.
    pub fn new(cameras: &Cameras, list: &[Choice], transforms: &Transforms) -> Result<Self, Error> {
        let [channels, height, width] = cameras.shape;
        let images = Images::new(channels, Some((height as u32, width as u32)));
        let of_camera =
            |camera| Pipeline::new(&Normalize::of_camera(list, camera), transforms, images);
        let transforms = (0..cameras.names.len()).map(of_camera).collect::<Result<_, _>>()?;
        Ok(Self { transforms, size: (height, width) })
    }

    /// Values of an image.
    pub fn values(&self) -> usize {
        self.transforms.first().map_or(0, |first| first.shape().iter().product())
    }

    /// Appends the values of an image of a camera, by its number.
    pub fn see(
        &self,
        camera: usize,
        image: Pixels,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<(), String> {
        self.see_part(camera, Decoded::whole(image), key, values)
    }

    /// Transforms an image of which at least [`CameraTransform::needed`] is there.
    pub fn see_part(
        &self,
        camera: usize,
        image: Decoded,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<(), String> {
        let ((height, width), (found_height, found_width)) = (self.size, image.size);
        if image.size != self.size {
            return Err(format!(
                "it is {found_width}x{found_height} pixels, but the first one is {width}x{height}"
            ));
        }
        self.transforms[camera].run(image, key, values)
    }

    /// The area of an image of (height, width) that the transforms look at: the same for all cameras.
    pub fn needed(&self, size: (usize, usize), key: Option<Key>) -> Area {
        self.transforms[0].needed(size, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_minus_one_to_one_and_constants_zero() {
        assert_eq!([3.0, 4.0, 5.0].map(|value| scaled(value, [3.0, 5.0])), [-1.0, 0.0, 1.0]);
        assert_eq!(scaled(7.0, [7.0, 7.0]), 0.0);
        for range in [[3.0, 5.0], [7.0, 7.0]] {
            assert!((unscaled(scaled(4.5, range), range) - 4.5).abs() < 1e-6);
        }
    }
}
