//! Initial weights that whiten patches of training images (Jordan 2024, after David Page): outputs
//! of the convolution for such patches are uncorrelated and have variance 1.
//!
//! The filters are the eigenvectors of the patches' covariance (about zero: images are normalised),
//! each divided by the root of its eigenvalue, the largest first; then all of them negated.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use crate::nn::{Param, Params, change_values};

/// Added to each eigenvalue.
const EPS: f64 = 5e-4;
/// Rotations of all pairs after which a matrix is diagonal; fewer than ten do.
const MAX_SWEEPS: usize = 50;

/// Covariance of patches of images.
pub struct Whitening {
    /// (channels, rows, columns)
    patch: [usize; 3],
    /// Sums of the products of each two values of a patch.
    sums: Vec<f64>,
    patches: u64,
}

impl Whitening {
    /// For the convolution whose weights are called `name`.
    pub fn of(params: &Params, name: &str) -> Result<Self> {
        let param = params.parameters().iter().find(|param| param.name() == name);
        let Some(&[filters, channels, rows, columns]) = param.map(Param::shape) else {
            bail!("no convolution has the weights `{name}`")
        };
        let n = channels * rows * columns;
        if filters != 2 * n {
            bail!("{filters} filters cannot whiten patches of {n} values, {} can", 2 * n);
        }
        Ok(Self { patch: [channels, rows, columns], sums: vec![0.0; n * n], patches: 0 })
    }

    /// Adds all patches of `images` (n, channels, height, width).
    pub fn add(&mut self, images: &Tensor) -> Result<()> {
        let (n, channels, height, width) = images.dims4()?;
        let values: Vec<f32> = images.flatten_all()?.to_vec1()?;
        let patch = self.patch;
        if n == 0 || channels != patch[0] || height < patch[1] || width < patch[2] {
            bail!("images {:?} have no patches {patch:?}", images.dims());
        }
        let of_image = |image: &[f32]| products(image, [height, width], patch);
        let size = channels * height * width;
        let all: Vec<Vec<f64>> = values.par_chunks_exact(size).map(of_image).collect();
        for products in &all {
            self.sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
        }
        self.patches += (n * (height + 1 - patch[1]) * (width + 1 - patch[2])) as u64;
        Ok(())
    }

    /// Sets the weights called `name`.
    pub fn apply(&self, params: &Params, name: &str) -> Result<()> {
        if self.patches == 0 {
            bail!("no training image can be read, whose patches `{name}` would whiten");
        }
        let filters = self.filters();
        for param in params.parameters().iter().filter(|param| param.name() == name) {
            change_values(param.var()?, |values| values.copy_from_slice(&filters))?;
        }
        Ok(())
    }

    fn filters(&self) -> Vec<f32> {
        let n = self.patch.iter().product();
        let covariance = self.sums.iter().map(|sum| sum / self.patches as f64).collect();
        let (values, vectors) = eigen(covariance, n);
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        let scaled = order.iter().flat_map(|&column| {
            let vector: Vec<f64> = (0..n).map(|row| vectors[row * n + column]).collect();
            // Either direction is an eigenvector: the one whose largest value is positive.
            let largest =
                vector.iter().fold(0.0_f64, |a, &b| if b.abs() > a.abs() { b } else { a });
            let scale = largest.signum() / (values[column].max(0.0) + EPS).sqrt();
            vector.into_iter().map(move |value| (scale * value) as f32)
        });
        let positive: Vec<f32> = scaled.collect();
        let negative = positive.iter().map(|value| -value);
        positive.iter().copied().chain(negative).collect()
    }
}

/// Products of each two values of a patch, summed over the patches of an image.
fn products(image: &[f32], [height, width]: [usize; 2], patch: [usize; 3]) -> Vec<f64> {
    let [channels, rows, columns] = patch;
    let n = channels * rows * columns;
    let offset = |i: usize| {
        let channel = i / (rows * columns);
        let row = i / columns % rows;
        let column = i % columns;
        (channel * height + row) * width + column
    };
    let offsets: Vec<usize> = (0..n).map(offset).collect();
    let mut sums = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let mut sum = 0.0;
            for row in 0..=height - rows {
                let along = |i: usize| &image[offsets[i] + row * width..][..=width - columns];
                let pairs = along(i).iter().zip(along(j));
                sum += pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
            }
            (sums[i * n + j], sums[j * n + i]) = (sum, sum);
        }
    }
    sums
}

/// Eigenvalues of a symmetric matrix, and its eigenvectors as columns (Jacobi).
fn eigen(mut a: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut vectors: Vec<f64> = (0..n * n).map(|i| f64::from(i / n == i % n)).collect();
    for _ in 0..MAX_SWEEPS {
        let is_off = |i: &usize| i / n != i % n;
        let off: f64 = (0..n * n).filter(is_off).map(|i| a[i] * a[i]).sum();
        let all: f64 = a.iter().map(|value| value * value).sum();
        if off <= 1e-30 * all {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut vectors, n, [p, q]);
            }
        }
    }
    ((0..n).map(|i| a[i * n + i]).collect(), vectors)
}

/// Turns the plane of `p` and `q` so that the two are uncorrelated.
fn rotate(a: &mut [f64], vectors: &mut [f64], n: usize, [p, q]: [usize; 2]) {
    let between = a[p * n + q];
    if between == 0.0 {
        return;
    }
    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * between);
    let t = theta.signum() / (theta.abs() + theta.hypot(1.0));
    let cos = 1.0 / t.hypot(1.0);
    let sin = t * cos;
    let turn = |matrix: &mut [f64], at_p: usize, at_q: usize| {
        let x = matrix[at_p];
        let y = matrix[at_q];
        (matrix[at_p], matrix[at_q]) = (cos * x - sin * y, sin * x + cos * y);
    };
    for k in 0..n {
        turn(a, k * n + p, k * n + q);
    }
    for k in 0..n {
        turn(a, p * n + k, q * n + k);
        turn(vectors, k * n + p, k * n + q);
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use serde_json::Value;
    use test_support::assert_refused;

    use super::*;
    use crate::nn::{Builder, Conv2d, ConvShape};
    use crate::ops::Window;

    /// A convolution of patches of 3 x 2 x 2 values with so many filters.
    fn convolution(outputs: usize) -> Params {
        let builder = Builder::new(1);
        let window = Window { stride: 1, padding: 0 };
        let shape = ConvShape { inputs: 3, outputs, kernel: 2, window, groups: 1 };
        Conv2d::new(&builder.pp("whiten"), shape).unwrap();
        builder.finish()
    }

    /// The images of `golden/airbench94.py`.
    fn images() -> Tensor {
        let value = |i: u32| {
            let noise = i.wrapping_mul(2_654_435_761) >> 16 & 0xff;
            (noise as f32 + 3.0 * (i % 60) as f32) / 256.0 - 0.5
        };
        Tensor::from_iter((0..4 * 3 * 5 * 6).map(value), &Device::Cpu)
            .unwrap()
            .reshape((4, 3, 5, 6))
            .unwrap()
    }

    #[test]
    fn filters_are_those_of_pytorchs_eigenvectors() {
        let golden: Value =
            serde_json::from_str(include_str!("../../../../tests/golden/airbench94.json")).unwrap();
        let params = convolution(24);
        let mut whitening = Whitening::of(&params, "whiten.weight").unwrap();
        for half in images().chunk(2, 0).unwrap() {
            whitening.add(&half).unwrap();
        }
        whitening.apply(&params, "whiten.weight").unwrap();
        let found = params.parameters()[0].var().unwrap().flatten_all().unwrap();
        let expected: Vec<f64> = serde_json::from_value(golden["whitening"].clone()).unwrap();
        let found = found.to_vec1::<f32>().unwrap();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((f64::from(found) - expected).abs() < 1e-5 * expected.abs().max(1.0));
        }
    }

    #[test]
    fn what_cannot_whiten_says_why() {
        let told = |params: &Params, name: &str| {
            Whitening::of(params, name).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(told(&convolution(24), "conv.weight").contains("no convolution"));
        assert!(told(&convolution(23), "whiten.weight").contains("24 can"));
        let params = convolution(24);
        let nothing = Whitening::of(&params, "whiten.weight").unwrap();
        assert_refused(nothing.apply(&params, "whiten.weight"), "no training image can be read");
    }
}
