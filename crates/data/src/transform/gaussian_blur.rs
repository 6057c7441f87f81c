//! `name = "gaussian_blur"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::plan::Unfit;
use crate::rng::Stream;
use crate::transform::{Area, Images, Pixels, Sides, Transform, happens, is_range};

/// smooth by a Gaussian of random width, as torchvision's `GaussianBlur`; the border is reflected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GaussianBlur {
    /// pixels of the kernel along each side, odd.
    #[schemars(range(min = 1, max = 255), example = 5)]
    pub kernel_size: usize,
    /// range of the standard deviation, in pixels.
    #[serde(default = "default_sigma")]
    pub sigma: [f64; 2],
    /// probability.
    #[serde(default = "always")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub p: f64,
}

fn default_sigma() -> [f64; 2] {
    [0.1, 2.0]
}

fn always() -> f64 {
    1.0
}

impl Kind for GaussianBlur {
    const NAME: &'static str = "gaussian_blur";

    fn check(&self) -> Vec<OptionConflict> {
        let wrong = |key, what: &str| OptionConflict { key, with: &[], what: what.to_owned() };
        let even = self.kernel_size.is_multiple_of(2);
        let size = even.then(|| wrong("kernel_size", "must be odd"));
        let sigma =
            (!is_range(self.sigma)).then(|| wrong("sigma", "must be [least, most], above 0"));
        size.into_iter().chain(sigma).collect()
    }
}

impl Transform for GaussianBlur {
    fn is_random(&self) -> bool {
        true
    }

    fn size(&self, images: &Images) -> Result<Option<Sides>, Unfit> {
        let reach = self.kernel_size / 2;
        match images.size {
            Some((height, width)) if reach >= height.min(width) as usize => Err(Unfit {
                key: "kernel_size",
                what: format!("reaches beyond images of {height}x{width}"),
                help: None,
            }),
            size => Ok(size),
        }
    }

    fn apply(
        &self,
        image: Pixels,
        _: Area,
        mut stream: Option<&mut Stream>,
    ) -> Result<Pixels, String> {
        if !happens(self.p, stream.as_deref_mut()) {
            return Ok(image);
        }
        let n = self.kernel_size;
        let reach = self.kernel_size / 2;
        if reach >= image.height.min(image.width) {
            let (height, width) = image.size();
            return Err(format!("a blur over {n} pixels does not fit {width}x{height}"));
        }
        let [low, high] = self.sigma;
        let sigma = stream.map_or(f64::midpoint(low, high), |random| random.range(low, high));
        Ok(blur(&image, &kernel(n, sigma)))
    }
}

/// Weights along one side: torchvision's softmax of -x² / (2 sigma²).
fn kernel(size: usize, sigma: f64) -> Vec<f32> {
    let middle = (size / 2) as f64;
    let weight = |place: usize| (-0.5 * ((place as f64 - middle) / sigma).powi(2)).exp();
    let sum: f64 = (0..size).map(weight).sum();
    (0..size).map(|place| (weight(place) / sum) as f32).collect()
}

/// Rows, then columns; rounded at the end only.
fn blur(image: &Pixels, kernel: &[f32]) -> Pixels {
    let channels = image.channels;
    let row = image.width * image.channels;
    let columns = taps(image.width, kernel.len());
    let mut across = vec![0f32; image.data.len()];
    for (out, line) in across.chunks_exact_mut(row).zip(image.data.chunks_exact(row)) {
        for (x, pixel) in out.chunks_exact_mut(channels).enumerate() {
            for (&weight, &from) in kernel.iter().zip(&columns[x..]) {
                for (sum, &value) in pixel.iter_mut().zip(&line[from * channels..]) {
                    *sum += weight * f32::from(value);
                }
            }
        }
    }
    let lines = taps(image.height, kernel.len());
    let mut data = Vec::with_capacity(image.data.len());
    let mut sums = vec![0f32; row];
    for y in 0..image.height {
        sums.fill(0.0);
        for (&weight, &from) in kernel.iter().zip(&lines[y..]) {
            for (sum, &value) in sums.iter_mut().zip(&across[from * row..]) {
                *sum += weight * value;
            }
        }
        data.extend(sums.iter().map(|&sum| sum.round_ties_even() as u8));
    }
    Pixels { data, ..*image }
}

/// Places from half a kernel before the first of `n` to half a kernel after the last, reflected at
/// both ends.
fn taps(n: usize, size: usize) -> Vec<usize> {
    let reach = size / 2;
    let place = |at: usize| {
        let from_start = at.abs_diff(reach);
        if from_start < n { from_start } else { 2 * (n - 1) - from_start }
    };
    (0..n + 2 * reach).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::golden::picture;
    use crate::transform::golden::recorded;

    #[test]
    fn blurring_equals_torchvision_within_one() {
        for (size, sigma) in [(3, 0.7), (5, 1.3), (9, 2.0)] {
            let expected = recorded(&format!("blur {size} {sigma:?}")).as_array().unwrap();
            let found = blur(&picture(3, 12, 17), &kernel(size, sigma)).data;
            let off = found
                .iter()
                .zip(expected)
                .map(|(&found, expected)| u64::from(found).abs_diff(expected.as_u64().unwrap()));
            let off: Vec<u64> = off.collect();
            // Halves may round either way: torch adds in another order.
            assert!(off.iter().all(|&off| off <= 1), "{size}, {sigma}: {off:?}");
            assert!(off.iter().sum::<u64>() <= 3, "{size}, {sigma}: {off:?}");
        }
    }

    #[test]
    fn reflection_leaves_the_border_out() {
        assert_eq!(taps(3, 5), [2, 1, 0, 1, 2, 1, 0]);
    }
}
