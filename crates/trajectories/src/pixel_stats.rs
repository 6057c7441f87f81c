//! Mean and deviation of what cameras see: of `LeRobot`'s `meta/stats.json`, or measured.

use std::path::Path;

use rayon::prelude::*;
use serde_json::Value;

use crate::data::read_file;
use crate::data::transform::{Area, Pixels};
use crate::episodes::Camera;
use crate::plan::PixelStats;

/// Images of each camera that are measured, at even distances.
const MEASURED: usize = 256;
/// Deviations below are not stretched.
const MIN_DEVIATION: f64 = 1e-4;

/// Pixel statistics that the data set in the folder `root` stores for `cameras`; `None` if one of
/// them is missing. In the numbers of all, cameras count alike.
pub(crate) fn stored(root: &Path, cameras: &[Camera], channels: usize) -> Option<PixelStats> {
    let bytes = read_file(&root.join("meta").join("stats.json")).ok()?;
    let all: Value = serde_json::from_slice(&bytes).ok()?;
    let of = |camera: &Camera, key: &str| {
        let mut found = Vec::new();
        flatten(&all[&camera.name][key], &mut found)?;
        (found.len() == channels).then_some(found)
    };
    let moments = |camera: &Camera| -> Option<Moments> {
        let means = of(camera, "mean")?;
        let deviations = of(camera, "std")?;
        let square = |(mean, std): (&f64, &f64)| mean * mean + std * std;
        let squares = means.iter().zip(&deviations).map(square).collect();
        Some(Moments { n: 1.0, means, squares })
    };
    together(&cameras.iter().map(moments).collect::<Option<Vec<_>>>()?)
}

/// The numbers of nested lists, as `LeRobot` writes (channels, 1, 1).
fn flatten(value: &Value, found: &mut Vec<f64>) -> Option<()> {
    match value {
        Value::Array(values) => values.iter().try_for_each(|value| flatten(value, found)),
        value => {
            found.push(value.as_f64().filter(|number| number.is_finite())?);
            Some(())
        }
    }
}

/// Pixel statistics measured in `steps`, in some images of each camera; `None` if none can be read.
pub(crate) fn measured(cameras: &[Camera], steps: &[usize], channels: usize) -> Option<PixelStats> {
    let stride = steps.len().div_ceil(MEASURED).max(1);
    let places: Vec<usize> = steps.iter().step_by(stride).copied().collect();
    let of = |camera: &Camera| {
        let sums = places.par_iter().filter_map(|step| {
            let image = camera.frames.load(*step, Area::whole).ok()?.pixels;
            (image.channels == channels).then(|| Sums::of(&image))
        });
        // Sums of whole numbers are the same in any order.
        sums.reduce(|| Sums { n: 0, sums: vec![[0; 2]; channels] }, Sums::plus).moments()
    };
    together(&cameras.iter().filter_map(of).collect::<Vec<_>>()).map(|all| PixelStats {
        // One of which nothing can be read is normalized as all are.
        cameras: if all.cameras.len() == cameras.len() { all.cameras } else { Vec::new() },
        ..all
    })
}

/// Means of values and of their squares, by channel, of so many pixels.
struct Moments {
    n: f64,
    means: Vec<f64>,
    squares: Vec<f64>,
}

/// Statistics of all cameras, and of each one if there are several; `None` without cameras.
fn together(cameras: &[Moments]) -> Option<PixelStats> {
    let n: f64 = cameras.iter().map(|camera| camera.n).sum();
    let channels = cameras.first()?.means.len();
    let mean = |of: fn(&Moments) -> &[f64]| -> Vec<f64> {
        let sum =
            |channel: usize| cameras.iter().map(|camera| camera.n * of(camera)[channel]).sum();
        (0..channels)
            .map(|channel| {
                let sum: f64 = sum(channel);
                sum / n
            })
            .collect()
    };
    let all = stats(&mean(|moments| &moments.means), &mean(|moments| &moments.squares));
    let each = cameras.iter().map(|camera| stats(&camera.means, &camera.squares));
    let cameras = if cameras.len() > 1 { each.collect() } else { Vec::new() };
    Some(PixelStats { cameras, ..all })
}

/// Pixels, and the sum of the values of each channel and of their squares.
struct Sums {
    n: u64,
    sums: Vec<[u64; 2]>,
}

impl Sums {
    fn of(image: &Pixels) -> Self {
        let mut sums = vec![[0; 2]; image.channels];
        for pixel in image.data.chunks_exact(image.channels) {
            for (value, [sum, squares]) in pixel.iter().map(|&v| u64::from(v)).zip(&mut sums) {
                *sum += value;
                *squares += value * value;
            }
        }
        Self { n: (image.height * image.width) as u64, sums }
    }

    /// `None` without pixels.
    fn moments(&self) -> Option<Moments> {
        let n = self.n as f64;
        let share = |sum: u64, scale: f64| sum as f64 / (n * scale);
        let means = self.sums.iter().map(|[sum, _]| share(*sum, 255.0)).collect();
        let squares = self.sums.iter().map(|[_, squares]| share(*squares, 255.0 * 255.0)).collect();
        (self.n > 0).then_some(Moments { n, means, squares })
    }

    fn plus(mut self, other: Self) -> Self {
        self.n += other.n;
        for (mine, theirs) in self.sums.iter_mut().zip(other.sums) {
            mine.iter_mut().zip(theirs).for_each(|(sum, more)| *sum += more);
        }
        self
    }
}

/// Mean and deviation from the means of values and of their squares; to six digits, which a plan
/// can show.
fn stats(means: &[f64], squares: &[f64]) -> PixelStats {
    let rounded = |number: f64| (number * 1e6).round() / 1e6;
    let deviation = |(mean, square): (&f64, &f64)| {
        let deviation = (square - mean * mean).max(0.0).sqrt();
        if deviation < MIN_DEVIATION { 1.0 } else { rounded(deviation) }
    };
    let std = means.iter().zip(squares).map(deviation).collect();
    let mean = means.iter().copied().map(rounded).collect();
    PixelStats { mean, std, cameras: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episodes::Frames;

    fn camera(name: &str, values: Vec<u8>) -> Camera {
        let frames = Frames::Values { shape: [1, 2, 3], values };
        Camera { name: name.to_owned(), frames }
    }

    #[test]
    fn cameras_are_measured_each_alone_and_together() {
        // numpy: np.array([[0, 51, 7], [255, 51, 7], ...]) / 255, mean(0) and std(0)
        let first = camera("a", vec![0, 51, 7, 255, 51, 7, 99, 99, 99, 99, 99, 99]);
        let second = camera("b", vec![255, 102, 7, 255, 0, 7, 99, 99, 99, 99, 99, 99]);
        let found = measured(&[first, second], &[0], 3).unwrap();
        assert_eq!(found.mean, [0.75, 0.2, 0.027_451]);
        assert_eq!(found.std, [0.433_013, 0.141_421, 1.0]);
        // The same of each camera alone.
        let means = found.cameras.iter().map(|camera| camera.mean.clone());
        assert_eq!(means.collect::<Vec<_>>(), [[0.5, 0.2, 0.027_451], [1.0, 0.2, 0.027_451]]);
        assert_eq!(found.cameras[0].std, [0.5, 1.0, 1.0]);
        assert_eq!(found.cameras[1].std, [1.0, 0.2, 1.0]);
        assert_eq!(measured(&[camera("a", vec![0; 6])], &[0], 1), None);
    }

    #[test]
    fn what_lerobot_has_measured_is_taken_where_it_says_something_of_each_camera() {
        let folder = tempfile::tempdir().unwrap();
        let of = |mean: f64, std: f64| {
            let list = |number: f64| serde_json::json!([[[number]], [[number]], [[number]]]);
            serde_json::json!({"mean": list(mean), "std": list(std), "count": [9]})
        };
        let all = serde_json::json!({"top": of(0.25, 0.1), "wrist": of(0.75, 0.1), "bad": 3});
        let path = folder.path().join("meta");
        std::fs::create_dir(&path).unwrap();
        crate::files::write_atomic(&path.join("stats.json"), all.to_string().as_bytes()).unwrap();
        let stored = |names: &[&str], channels| {
            let cameras: Vec<Camera> = names.iter().map(|name| camera(name, Vec::new())).collect();
            stored(folder.path(), &cameras, channels)
        };
        let one = stored(&["top"], 3).unwrap();
        assert_eq!((one.mean, one.std), (vec![0.25; 3], vec![0.1; 3]));
        let both = stored(&["top", "wrist"], 3).unwrap();
        // sqrt(0.1² + 0.25²)
        assert_eq!((both.mean, both.std), (vec![0.5; 3], vec![0.269_258; 3]));
        let means = both.cameras.iter().map(|camera| camera.mean[0]);
        assert_eq!(means.collect::<Vec<_>>(), [0.25, 0.75]);
        for (names, channels) in [(["top", "bad"], 3), (["top", "left"], 3), (["top", "wrist"], 1)]
        {
            assert_eq!(stored(&names, channels), None, "{names:?}");
        }
    }
}
