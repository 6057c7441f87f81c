//! Rotary position embedding: each pair of a head's features is turned by an angle that grows with
//! the position (Su et al., 2021, <https://arxiv.org/abs/2104.09864>).
//!
//! Pairs are a feature of the first half of a head and the one at its place in the second half, as
//! `HuggingFace` lays them out; the paper's pairs are neighbours.

use std::sync::{Arc, OnceLock};

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::segments::Segments;
use super::storage::overwrite;
use crate::onnx::{Graph, Value};

/// The angles by which pairs turn from position to position.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    frequencies: Arc<[f64]>,
    factor: f64,
}

impl Rope {
    /// Radians per position of each pair that turns: of the first features of a head, which may have
    /// more that stay. What turns is multiplied by `factor`.
    pub fn new(frequencies: Vec<f64>, factor: f64) -> Self {
        Self { frequencies: frequencies.into(), factor }
    }

    /// The d features of a head turn by theta^(-2i/d) radians per position.
    pub fn plain(theta: f64, d: usize) -> Self {
        let frequency = |i: usize| theta.powf(-2.0 * i as f64 / d as f64);
        Self::new((0..d / 2).map(frequency).collect(), 1.0)
    }

    /// Cosines and sines of each pair, (steps, pairs), in a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph) -> [Value; 2] {
        let steps = graph.longest();
        let pairs = self.pairs();
        angles(steps, self).map(|table| graph.floats(&[steps, pairs], &table))
    }

    /// Pairs of a head that turn.
    pub(super) fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// The numbers that make a table of angles, equal for equal ones only.
    #[cfg(feature = "cuda")]
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.frequencies.iter().chain([&self.factor]).map(|number| number.to_bits())
    }
}

/// Turns pair i of each of `heads` heads of d features at position p by p times the pair's
/// frequency: x (b, t, heads d) -> the same shape, f32. Positions count from 0.
pub fn rotary(x: &Tensor, heads: usize, rope: &Rope) -> Result<Tensor> {
    apply(x, heads, rope, Vec::new())
}

fn apply(x: &Tensor, heads: usize, rope: &Rope, positions: Vec<u32>) -> Result<Tensor> {
    let (_, t, width) = x.dims3()?;
    let pairs = rope.pairs();
    if heads == 0 || !width.is_multiple_of(heads) || pairs == 0 || 2 * pairs * heads > width {
        bail!("a width of {width} for {heads} heads that turn {pairs} pairs of features");
    }
    let angles = OnceLock::new();
    let op = Rotary { sizes: [t, width, width / heads], rope: rope.clone(), positions, angles };
    chain::apply([x], op)
}

/// [`rotary`] in samples of several texts, in each of which positions count from 0. With segments,
/// the CPU computes it.
pub fn rotary_in(
    segments: Option<&Segments>,
    x: &Tensor,
    heads: usize,
    rope: &Rope,
) -> Result<Tensor> {
    let (n, t, _) = x.dims3()?;
    let Some(segments) = segments else { return rotary(x, heads, rope) };
    segments.check(n, t)?;
    apply(x, heads, rope, segments.positions(t))
}

/// Cosines and sines, (t, pairs) each.
pub(super) fn angles(t: usize, rope: &Rope) -> [Vec<f32>; 2] {
    let Rope { frequencies, factor } = rope;
    let places = (0..t).flat_map(|p| frequencies.iter().map(move |f| (p as f64 * f).sin_cos()));
    let scaled = |(sine, cosine): (f64, f64)| ((factor * cosine) as f32, (factor * sine) as f32);
    let (cosines, sines) = places.map(scaled).unzip();
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
        let half = self.rope.pairs();
        let [cosines, sines] = self.angles.get_or_init(|| angles(t, &self.rope));
        values.par_chunks_exact_mut(width).enumerate().for_each(|(token, row)| {
            let position = self.positions.get(token).map_or(token % t, |&at| at as usize);
            let place = position * half..(position + 1) * half;
            let angles = || cosines[place.clone()].iter().zip(&sines[place.clone()]);
            for head in row.chunks_exact_mut(d) {
                let (first, second) = head[..2 * half].split_at_mut(half);
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

    /// The transpose of a rotation is its inverse.
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
            let rope = Rope::plain(theta, d);
            check_gradients(&[&shape], |x| rotary(&x[0], heads, &rope), reference, 1e-5);
        }
    }

    #[test]
    fn the_first_features_of_a_head_turn_and_are_multiplied_and_the_others_stay() {
        let (t, heads, d, frequencies) = (5, 2, 7, [0.9, 0.3]);
        let rope = Rope::new(frequencies.to_vec(), 1.5);
        let reference = |v: &[Vec<f64>]| {
            let mut y = v[0].clone();
            for (i, head) in y.chunks_exact_mut(d).enumerate() {
                let turned: Vec<f64> = head[..4].iter().map(|x| 1.5 * x).collect();
                let (sines, cosines): (Vec<f64>, Vec<f64>) =
                    frequencies.iter().map(|f| ((i / heads % t) as f64 * f).sin_cos()).unzip();
                for pair in 0..2 {
                    let (a, b) = (turned[pair], turned[pair + 2]);
                    head[pair] = a * cosines[pair] - b * sines[pair];
                    head[pair + 2] = b * cosines[pair] + a * sines[pair];
                }
            }
            y
        };
        check_gradients(&[&[2, t, heads * d]], |x| rotary(&x[0], heads, &rope), reference, 1e-5);
    }

    #[test]
    fn the_first_token_stays_and_products_depend_on_the_distance_only() -> Result<()> {
        let (t, d, rope) = (9, 8, Rope::plain(1e4, 8));
        let row = values("row", 0, d);
        let same = tensor(row.repeat(t), (1, t, d))?;
        let turned = rotary(&same, 1, &rope)?.reshape((t, d))?.to_vec2::<f32>()?;
        assert_eq!(turned[0], row);
        let product = |i: usize, j: usize| -> f32 {
            turned[i].iter().zip(&turned[j]).map(|(a, b)| a * b).sum()
        };
        assert!((product(1, 4) - product(5, 8)).abs() < 1e-5);
        assert!((product(1, 4) - product(1, 5)).abs() > 1e-3);
        assert_refused(rotary(&same, 3, &rope), "a width of 8 for 3 heads that turn 4 pairs");
        assert_refused(rotary(&same, 2, &rope), "a width of 8 for 2 heads that turn 4 pairs");
        Ok(())
    }
}
