//! Rotary position embedding: each pair of a head's features is turned by an angle that grows with
//! the position (Su et al., 2021, <https://arxiv.org/abs/2104.09864>).
//!
//! Pairs are a feature of the first half of a head and the one at its place in the second half, as
//! `HuggingFace` lays them out; the paper's pairs are neighbours.

use std::sync::OnceLock;

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::segments::Segments;
use super::storage::overwrite;
use crate::RopeScaling;
use crate::onnx::{Graph, Value};

/// The angles by which pairs turn from position to position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the wavelengths.
    pub theta: f64,
    /// Stretches the wavelengths for texts that are longer than those of the first training.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Nothing is stretched.
    pub fn unscaled(theta: f64) -> Self {
        Self { theta, scaling: RopeScaling::None }
    }

    /// Radians per position of each pair of a head of d features: theta^(-2i/d), stretched as
    /// `transformers` does (`modeling_rope_utils.py`).
    pub fn frequencies(&self, d: usize) -> Vec<f64> {
        let plain = |i: usize| self.theta.powf(-2.0 * i as f64 / d as f64);
        (0..d / 2).map(|i| self.scaling.stretched(plain(i))).collect()
    }

    /// Cosines and sines for heads of d features, (steps, d / 2), in a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, d: usize) -> [Value; 2] {
        let steps = graph.longest();
        angles(steps, d, *self).map(|table| graph.floats(&[steps, d / 2], &table))
    }
}

/// Turns pair i of the d features of each of `heads` heads at position p by p times the pair's
/// frequency: x (b, t, heads d) -> the same shape, f32. Positions count from 0.
pub fn rotary(x: &Tensor, heads: usize, rope: Rope) -> Result<Tensor> {
    apply(x, heads, rope, Vec::new())
}

fn apply(x: &Tensor, heads: usize, rope: Rope, positions: Vec<u32>) -> Result<Tensor> {
    let (_, t, width) = x.dims3()?;
    if heads == 0 || width == 0 || !width.is_multiple_of(2 * heads) {
        bail!("a width of {width} for {heads} heads that turn pairs of features");
    }
    let angles = OnceLock::new();
    let op = Rotary { sizes: [t, width, width / heads], rope, positions, angles };
    chain::apply([x], op)
}

/// [`rotary`] in samples of several texts, in each of which positions count from 0. With segments,
/// the CPU computes it.
pub fn rotary_in(
    segments: Option<&Segments>,
    x: &Tensor,
    heads: usize,
    rope: Rope,
) -> Result<Tensor> {
    let (n, t, _) = x.dims3()?;
    let Some(segments) = segments else { return rotary(x, heads, rope) };
    segments.check(n, t)?;
    apply(x, heads, rope, segments.positions(t))
}

/// Cosines and sines, (t, d / 2) each.
pub(super) fn angles(t: usize, d: usize, rope: Rope) -> [Vec<f32>; 2] {
    let frequencies = rope.frequencies(d);
    let places = (0..t).flat_map(|p| frequencies.iter().map(move |f| (p as f64 * f).sin_cos()));
    let (cosines, sines) = places.map(|(sine, cosine)| (cosine as f32, sine as f32)).unzip();
    [cosines, sines]
}

pub(super) struct Rotary {
    /// Positions, width, features of a head.
    pub(super) sizes: [usize; 3],
    pub(super) rope: Rope,
    /// Position of each token of the batch; empty = its place in its sample.
    pub(super) positions: Vec<u32>,
    /// [`angles`], on the CPU.
    angles: OnceLock<[Vec<f32>; 2]>,
}

impl Rotary {
    /// Turns `values`, (b, t, width), forwards (`sign` 1) or back (-1).
    fn turn(&self, values: &mut [f32], sign: f32) {
        let [t, width, d] = self.sizes;
        let half = d / 2;
        let [cosines, sines] = self.angles.get_or_init(|| angles(t, d, self.rope));
        values.par_chunks_exact_mut(width).enumerate().for_each(|(token, row)| {
            let position = self.positions.get(token).map_or(token % t, |&at| at as usize);
            let place = position * half..(position + 1) * half;
            let angles = || cosines[place.clone()].iter().zip(&sines[place.clone()]);
            for head in row.chunks_exact_mut(d) {
                let (first, second) = head.split_at_mut(half);
                for ((a, b), (cosine, sine)) in first.iter_mut().zip(second).zip(angles()) {
                    let sine = sign * sine;
                    (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
                }
            }
        });
    }
}

impl Operation for Rotary {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "rotary";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let mut y = x.values.to_vec();
        self.turn(&mut y, 1.0);
        Ok((y, x.shape.clone()))
    }

    /// The inverse of a rotation is its transpose.
    fn backward(&self, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        overwrite(&dy, |dy| self.turn(dy, -1.0))?;
        Ok([Some(dy)])
    }
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::super::storage::tensor;
    use super::super::testing::{check_gradients, values};
    use super::*;

    /// Complex numbers of a first and a second half, times e^(i angle).
    fn slow(x: &[f64], [t, width, d]: [usize; 3], frequency: &dyn Fn(usize) -> f64) -> Vec<f64> {
        let at = |index: usize| {
            let (token, feature) = (index / width, index % width % d);
            let pair = feature % (d / 2);
            let angle = (token % t) as f64 * frequency(pair);
            let (first, second) =
                if feature < d / 2 { (index, index + d / 2) } else { (index - d / 2, index) };
            if feature < d / 2 {
                x[first] * angle.cos() - x[second] * angle.sin()
            } else {
                x[first] * angle.sin() + x[second] * angle.cos()
            }
        };
        (0..x.len()).map(at).collect()
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for [b, t, heads, d] in [[1, 1, 1, 2], [2, 3, 1, 4], [2, 5, 3, 6], [1, 7, 2, 8]] {
            let (theta, shape) = (100f64, [b, t, heads * d]);
            let plain = |pair: usize| theta.powf(-2.0 * pair as f64 / d as f64);
            let reference = |v: &[Vec<f64>]| slow(&v[0], [t, heads * d, d], &plain);
            let rope = Rope::unscaled(theta);
            check_gradients(&[&shape], |x| rotary(&x[0], heads, rope), reference, 1e-5);
        }
    }

    #[test]
    fn scaled_positions_equal_the_slow_ones() {
        // Wavelengths 6.3, 20, 63 and 199: short, between, between, long.
        let (t, d, theta) = (7, 8, 100f64);
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 8.0,
            original_max_position_embeddings: 100.0,
        };
        let plain = |pair: usize| theta.powf(-2.0 * pair as f64 / d as f64);
        let between = |pair: usize| {
            let smooth = (100.0 * plain(pair) / std::f64::consts::TAU - 1.0) / 7.0;
            (1.0 - smooth) * plain(pair) / 8.0 + smooth * plain(pair)
        };
        let by_hand = [plain(0), between(1), between(2), plain(3) / 8.0];
        for (scaling, frequency) in [
            (llama3, &(|pair: usize| by_hand[pair]) as &dyn Fn(usize) -> f64),
            (RopeScaling::Linear { factor: 4.0 }, &|pair| plain(pair) / 4.0),
        ] {
            let rope = Rope { theta, scaling };
            let reference = |v: &[Vec<f64>]| slow(&v[0], [t, d, d], frequency);
            check_gradients(&[&[1, t, d]], |x| rotary(&x[0], 1, rope), reference, 1e-5);
        }
    }

    #[test]
    fn the_first_token_stays_and_products_depend_on_the_distance_only() -> Result<()> {
        let (t, d, rope) = (9, 8, Rope::unscaled(1e4));
        let row = values("row", 0, d);
        let same = tensor(row.repeat(t), (1, t, d))?;
        let turned = rotary(&same, 1, rope)?.reshape((t, d))?.to_vec2::<f32>()?;
        assert_eq!(turned[0], row);
        let product = |i: usize, j: usize| -> f32 {
            turned[i].iter().zip(&turned[j]).map(|(a, b)| a * b).sum()
        };
        assert!((product(1, 4) - product(5, 8)).abs() < 1e-5);
        assert!((product(1, 4) - product(1, 5)).abs() > 1e-3);
        assert_refused(rotary(&same, 3, rope), "a width of 8 for 3 heads that turn pairs");
        assert_refused(rotary(&same, 8, rope), "a width of 8 for 8 heads that turn pairs");
        Ok(())
    }
}
