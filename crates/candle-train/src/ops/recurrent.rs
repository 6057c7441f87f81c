//! Recurrent layers: forward step after step, backward through time (Werbos, 1990), as one
//! operation.
//!
//! The product with what a layer reads is a linear layer before; here is what goes from step to
//! step, always in f32. Blocks of samples go through all steps on a thread each. Within a block,
//! steps come first: (step, sample, feature), in the order in which they are read.

use std::ops::Range;

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::column_sums::column_sums;
use super::kernel::{Matrix, Panels, Sums, Write, multiply};
use super::math::{logistic, tanh};
use super::operation::{
    Gradients, Input, Operation, SavedForBackward, TwoOrThree, add_multiplications,
};
use super::scratch::filled_blocks;
use super::simd::vectorised;
use super::storage::{read, tensor};
use super::weight::{Destination, Weight};

/// Samples of a block at most: three tiles of the product. The order of the weight gradient's sum
/// depends on it.
const TOGETHER: usize = 18;

/// Kind of recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// `torch.nn.LSTM` (Hochreiter and Schmidhuber, 1997): input, forget, cell and output gate.
    Lstm,
    /// `torch.nn.GRU` (Cho et al., 2014): reset, update and new gate.
    Gru,
    /// `torch.nn.RNN`.
    Tanh,
    /// `torch.nn.RNN(nonlinearity="relu")`.
    Relu,
}

impl Cell {
    /// Values of a step for each that it gives.
    pub fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Tanh | Self::Relu => 1,
        }
    }
}

/// The states of a recurrent layer from a state of zeros: gates (n, t, gates h), the product of
/// what is read with its weights, plus a bias; weight (gates h, h) and bias (gates h) of the state
/// -> (n, t, h), f32. With `reverse` it reads from the end.
pub fn recurrent(
    gates: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    cell: Cell,
    reverse: bool,
) -> Result<Tensor> {
    let ((n, t, width), (rows, h)) = (gates.dims3()?, weight.tensor().dims2()?);
    let fits = bias.is_none_or(|bias| bias.tensor().dims() == [width]);
    if rows != width || width != cell.gates() * h || !fits || h == 0 {
        bail!("{cell:?} over {:?} with weights {:?}", gates.dims(), weight.tensor().dims());
    }
    add_multiplications(n * t * width * h);
    let op = Recurrent {
        sizes: Sizes { n, t, h },
        cell,
        reverse,
        dw: weight.destination(),
        db: bias.map(Weight::destination),
        states: SavedForBackward::default(),
    };
    chain::apply(([gates, weight.tensor()], bias.map(Weight::tensor)), op)
}

/// Samples, steps, and features of a state.
#[derive(Clone, Copy)]
struct Sizes {
    n: usize,
    t: usize,
    h: usize,
}

pub(super) struct Recurrent {
    sizes: Sizes,
    cell: Cell,
    reverse: bool,
    dw: Destination,
    db: Option<Destination>,
    states: SavedForBackward<States>,
}

/// Values of all steps that backward needs.
struct States {
    /// The state before each step, block after block, of each (t, sample, h).
    before: Vec<f32>,
    blocks: Vec<BlockStates>,
}

/// Values of the steps of a block that backward needs.
struct BlockStates {
    /// (t, sample, gates h), after their activations.
    gates: Vec<f32>,
    /// (t + 1, sample, h): of an LSTM the cells, zeros first; of a GRU, from the second on, what
    /// its reset gate multiplies.
    inner: Vec<f32>,
}

/// A sample's step.
struct Step<'a> {
    gates: &'a mut [f32],
    hidden: &'a mut [f32],
    inner: &'a mut [f32],
}

/// A sample's step on the way back.
struct BackwardStep<'a> {
    gates: &'a [f32],
    hidden: [&'a [f32]; 2],
    inner: [&'a [f32]; 2],
}

/// Gradients of a sample's step: of the state, which becomes what goes straight to the state
/// before; of the cell, which becomes that of the cell before; of what is read; of the product with
/// the state.
struct Slopes<'a> {
    hidden: &'a mut [f32],
    cell: &'a mut [f32],
    read: &'a mut [f32],
    state: &'a mut [f32],
}

impl Cell {
    /// From the product of the input, in `read`, and that of the state, in `state`.
    #[inline(always)]
    fn step(self, [read, state]: [&[f32]; 2], [hidden, inner]: [&[f32]; 2], to: &mut Step<'_>) {
        let h = hidden.len();
        let inner = &inner[..h];
        let to_inner = &mut to.inner[..h];
        let to_hidden = &mut to.hidden[..h];
        match self {
            Self::Lstm => {
                let [read, state] = [read, state].map(|gates| of_each_gate::<4>(gates, h));
                let mut gates = each_gate::<4>(to.gates, h);
                for j in 0..h {
                    let sum = |gate: usize| read[gate][j] + state[gate][j];
                    let [i, f, o] = [logistic(sum(0)), logistic(sum(1)), logistic(sum(3))];
                    let g = tanh(sum(2));
                    let c = f * inner[j] + i * g;
                    put([i, f, g, o], &mut gates, j);
                    (to_inner[j], to_hidden[j]) = (c, o * tanh(c));
                }
            }
            Self::Gru => {
                let [read, state] = [read, state].map(|gates| of_each_gate::<3>(gates, h));
                let mut gates = each_gate::<3>(to.gates, h);
                for j in 0..h {
                    let sum = |gate: usize| read[gate][j] + state[gate][j];
                    let [r, z] = [logistic(sum(0)), logistic(sum(1))];
                    let new = tanh(read[2][j] + r * state[2][j]);
                    put([r, z, new], &mut gates, j);
                    to_inner[j] = state[2][j];
                    to_hidden[j] = (1.0 - z) * new + z * hidden[j];
                }
            }
            Self::Tanh | Self::Relu => {
                for ((to, read), state) in to_hidden.iter_mut().zip(read).zip(state) {
                    let sum = read + state;
                    let open = if sum < 0.0 { 0.0 } else { sum };
                    *to = if self == Self::Tanh { tanh(sum) } else { open };
                }
            }
        }
    }

    #[inline(always)]
    fn back(self, of: &BackwardStep<'_>, to: &mut Slopes<'_>) {
        let h = to.hidden.len();
        let hidden = &mut to.hidden[..h];
        let cell = &mut to.cell[..h];
        let [before, after] = of.inner.map(|inner| &inner[..h]);
        let [state_before, y] = of.hidden.map(|hidden| &hidden[..h]);
        match self {
            Self::Lstm => {
                let gates = of_each_gate::<4>(of.gates, h);
                let mut read = each_gate::<4>(to.read, h);
                let mut state = each_gate::<4>(to.state, h);
                for j in 0..h {
                    let [i, f, g, o] = [gates[0][j], gates[1][j], gates[2][j], gates[3][j]];
                    let dh = hidden[j];
                    let bent = tanh(after[j]);
                    let dc = cell[j] + dh * o * (1.0 - bent * bent);
                    let slopes = [
                        dc * g * i * (1.0 - i),
                        dc * before[j] * f * (1.0 - f),
                        dc * i * (1.0 - g * g),
                        dh * bent * o * (1.0 - o),
                    ];
                    put(slopes, &mut read, j);
                    put(slopes, &mut state, j);
                    (cell[j], hidden[j]) = (dc * f, 0.0);
                }
            }
            Self::Gru => {
                let gates = of_each_gate::<3>(of.gates, h);
                let mut read = each_gate::<3>(to.read, h);
                let mut state = each_gate::<3>(to.state, h);
                for j in 0..h {
                    let [r, z, new] = [gates[0][j], gates[1][j], gates[2][j]];
                    let dh = hidden[j];
                    let d_new = dh * (1.0 - z) * (1.0 - new * new);
                    let d_z = dh * (state_before[j] - new) * z * (1.0 - z);
                    let d_r = d_new * after[j] * r * (1.0 - r);
                    put([d_r, d_z, d_new], &mut read, j);
                    put([d_r, d_z, d_new * r], &mut state, j);
                    hidden[j] = dh * z;
                }
            }
            Self::Tanh | Self::Relu => {
                let read = &mut to.read[..h];
                let state = &mut to.state[..h];
                for j in 0..h {
                    let open = if y[j] > 0.0 { 1.0 } else { 0.0 };
                    let slope = if self == Self::Tanh { 1.0 - y[j] * y[j] } else { open };
                    let slope = hidden[j] * slope;
                    (read[j], state[j], hidden[j]) = (slope, slope, 0.0);
                }
            }
        }
    }
}

/// The `h` values of each of N gates, which lie one after the other.
#[inline(always)]
fn of_each_gate<const N: usize>(gates: &[f32], h: usize) -> [&[f32]; N] {
    std::array::from_fn(|gate| &gates[gate * h..][..h])
}

/// [`of_each_gate`], to be written.
#[inline(always)]
fn each_gate<const N: usize>(mut gates: &mut [f32], h: usize) -> [&mut [f32]; N] {
    std::array::from_fn(|_| gates.split_off_mut(..h).unwrap_or_default())
}

/// A value of each gate to its place among those of feature j.
#[inline(always)]
fn put<const N: usize>(values: [f32; N], gates: &mut [&mut [f32]; N], j: usize) {
    for (gate, value) in gates.iter_mut().zip(values) {
        gate[j] = value;
    }
}

impl Sizes {
    /// Values of each block of samples, of `width` for each step of each sample.
    fn lengths(self, width: usize) -> Vec<usize> {
        let blocks = self.n.div_ceil(TOGETHER);
        let samples = |i| self.n * (i + 1) / blocks - self.n * i / blocks;
        (0..blocks).map(|i| samples(i) * self.t * width).collect()
    }

    /// The values of each block, of `width` for each step of each sample.
    fn cut(self, mut values: &[f32], width: usize) -> Vec<&[f32]> {
        let lengths = self.lengths(width).into_iter();
        lengths.map(|len| values.split_off(..len).unwrap_or_default()).collect()
    }
}

impl Recurrent {
    /// Values of each step, for each that a state has.
    fn width(&self) -> usize {
        self.cell.gates() * self.sizes.h
    }

    /// Range of a sample's `width` values of the k-th step that is read, in (sample, t, width).
    fn place(&self, sample: usize, k: usize, width: usize) -> Range<usize> {
        let t = self.sizes.t;
        let step = sample * t + if self.reverse { t - 1 - k } else { k };
        step * width..(step + 1) * width
    }

    /// The steps of a block: from what is `read`, (sample, t, gates h), to `y`, (sample, t, h), and
    /// the states `before` each step, (t, sample, h), zeros as they come.
    fn forward_block(
        &self,
        read: &[f32],
        (weight, bias): (&Panels, Option<&[f32]>),
        [y, before]: [&mut [f32]; 2],
    ) -> BlockStates {
        let (Sizes { t, h, .. }, width, n) = (self.sizes, self.width(), samples_of(y, self.sizes));
        let mut gates = vec![0.0; t * n * width];
        let mut inner = vec![0.0; (t + 1) * n * h];
        let mut state = vec![0.0; n * width];
        for k in 0..t {
            match bias {
                Some(bias) => {
                    state.chunks_exact_mut(width).for_each(|row| row.copy_from_slice(bias));
                }
                None => state.fill(0.0),
            }
            let (before, after) = before[k * n * h..].split_at_mut(n * h);
            multiply(&mut state, Matrix::new(before, n, h), weight, Write::Add, Sums::Long);
            let (inner_before, inner_after) = inner[k * n * h..].split_at_mut(n * h);
            let gates = &mut gates[k * n * width..];
            for sample in 0..n {
                let one = at(sample, h);
                let wide = at(sample, width);
                let products = [&read[self.place(sample, k, width)], &state[wide.clone()]];
                let states = [&before[one.clone()], &inner_before[one.clone()]];
                let hidden = &mut y[self.place(sample, k, h)];
                vectorised(
                    #[inline(always)]
                    || {
                        let mut to = Step {
                            gates: &mut gates[wide.clone()],
                            hidden: &mut *hidden,
                            inner: &mut inner_after[one.clone()],
                        };
                        self.cell.step(products, states, &mut to);
                    },
                );
                if let Some(after) = after.get_mut(one) {
                    after.copy_from_slice(hidden);
                }
            }
        }
        BlockStates { gates, inner }
    }

    /// The steps of a block back, from the gradient `dy` of its `y`: gradients of what it `read`,
    /// (sample, t, gates h), and of its products with the state, (t, sample, gates h).
    fn backward_block(
        &self,
        (before, BlockStates { gates, inner }): (&[f32], &BlockStates),
        weight: &Panels,
        [y, dy]: [&[f32]; 2],
        [read, state]: [&mut [f32]; 2],
    ) {
        let (Sizes { t, h, .. }, width, n) = (self.sizes, self.width(), samples_of(y, self.sizes));
        let mut dh = vec![0.0; n * h];
        let mut dc = vec![0.0; n * h];
        for k in (0..t).rev() {
            let state = &mut state[k * n * width..][..n * width];
            for sample in 0..n {
                let one = at(sample, h);
                let wide = at(sample, width);
                let now = self.place(sample, k, h);
                let of = BackwardStep {
                    gates: &gates[k * n * width..][wide.clone()],
                    hidden: [&before[k * n * h..][one.clone()], &y[now.clone()]],
                    inner: [k, k + 1].map(|k| &inner[k * n * h..][one.clone()]),
                };
                let dh = &mut dh[one.clone()];
                let dy = &dy[now];
                dh.iter_mut().zip(dy).for_each(|(dh, dy)| *dh += dy);
                let read = &mut read[self.place(sample, k, width)];
                vectorised(
                    #[inline(always)]
                    || {
                        let mut to = Slopes {
                            hidden: &mut *dh,
                            cell: &mut dc[one.clone()],
                            read: &mut *read,
                            state: &mut state[wide.clone()],
                        };
                        self.cell.back(&of, &mut to);
                    },
                );
            }
            multiply(&mut dh, Matrix::new(state, n, width), weight, Write::Add, Sums::Long);
        }
    }

    fn states(&self, gates: &[f32], weight: &[f32], bias: Option<&[f32]>) -> (Vec<f32>, States) {
        let h = self.sizes.h;
        let width = self.width();
        let weight = Matrix::new(weight, width, h).transposed().panels();
        let read = self.sizes.cut(gates, width);
        let ([y, before], blocks) = filled_blocks(&self.sizes.lengths(h), |block, to| {
            self.forward_block(read[block], (&weight, bias), to)
        });
        (y, States { before, blocks })
    }

    /// Gradients of the gates, (n, t, gates h), and of the products with the state, in the order of
    /// [`States::before`].
    fn through_time(&self, states: &States, weight: &[f32], y: [&[f32]; 2]) -> [Vec<f32>; 2] {
        let h = self.sizes.h;
        let width = self.width();
        let weight = Matrix::new(weight, width, h).panels();
        let [before, y, dy] = [&*states.before, y[0], y[1]].map(|values| self.sizes.cut(values, h));
        let (gradients, _) = filled_blocks(&self.sizes.lengths(width), |i, to| {
            self.backward_block((before[i], &states.blocks[i]), &weight, [y[i], dy[i]], to);
        });
        gradients
    }
}

/// Number of samples of a block's `y`.
fn samples_of(y: &[f32], sizes: Sizes) -> usize {
    y.len() / (sizes.t * sizes.h).max(1)
}

/// Range of the i-th of rows of `width` values.
fn at(i: usize, width: usize) -> Range<usize> {
    i * width..(i + 1) * width
}

impl Operation for Recurrent {
    type Operands<T> = TwoOrThree<T>;

    const NAME: &'static str = "recurrent";

    fn forward(&self, ([gates, weight], bias): TwoOrThree<Input<'_>>) -> Result<(Vec<f32>, Shape)> {
        let Sizes { n, t, h } = self.sizes;
        let (y, states) = self.states(gates.values, weight.values, bias.map(|bias| bias.values));
        self.states.keep(states);
        Ok((y, Shape::from((n, t, h))))
    }

    /// The bias's gradient leaves first: it was registered last.
    fn backward(
        &self,
        ([gates, weight], bias): TwoOrThree<&Tensor>,
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let Some(states) = self.states.get() else { bail!("backward before forward") };
        let (Sizes { n, t, h }, width) = (self.sizes, self.width());
        let [read_gradient, state_gradient] = read([weight, y, &dy], |[weight, y, dy]| {
            Ok(self.through_time(states, weight, [y, dy]))
        })?;
        let db = match (&self.db, bias) {
            (Some(db), Some(bias)) => db.send(column_sums(&state_gradient, width), bias)?,
            _ => None,
        };
        let before = Matrix::new(&states.before, t * n, h).panels();
        let slopes = Matrix::new(&state_gradient, t * n, width).transposed();
        let dw = self.dw.send_written(weight, |dw| {
            multiply(dw, slopes, &before, Write::Replace, Sums::Long);
        })?;
        Ok(([Some(tensor(read_gradient, gates.shape())?), dw], Some(db)))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use test_support::assert_refused;

    use super::super::testing::{check_weights, flat, on_threads, values};
    use super::*;

    fn sigma(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// Step by step, as PyTorch's documentation has the formulas.
    fn slow(v: &[Vec<f64>], [n, t, h]: [usize; 3], cell: Cell, reverse: bool) -> Vec<f64> {
        let width = cell.gates() * h;
        let mut y = vec![0.0; n * t * h];
        for sample in 0..n {
            let (mut hidden, mut c) = (vec![0.0; h], vec![0.0; h]);
            for k in 0..t {
                let at = sample * t + if reverse { t - 1 - k } else { k };
                let x = &v[0][at * width..][..width];
                let state: Vec<f64> = (0..width)
                    .map(|i| v[2][i] + (0..h).map(|j| v[1][i * h + j] * hidden[j]).sum::<f64>())
                    .collect();
                let sum = |gate: usize, j: usize| x[gate * h + j] + state[gate * h + j];
                let next: Vec<f64> = (0..h)
                    .map(|j| match cell {
                        Cell::Lstm => {
                            c[j] = sigma(sum(1, j)) * c[j] + sigma(sum(0, j)) * sum(2, j).tanh();
                            sigma(sum(3, j)) * c[j].tanh()
                        }
                        Cell::Gru => {
                            let (r, z) = (sigma(sum(0, j)), sigma(sum(1, j)));
                            let new = (x[2 * h + j] + r * state[2 * h + j]).tanh();
                            (1.0 - z) * new + z * hidden[j]
                        }
                        Cell::Tanh => sum(0, j).tanh(),
                        Cell::Relu => sum(0, j).max(0.0),
                    })
                    .collect();
                hidden = next;
                y[at * h..][..h].copy_from_slice(&hidden);
            }
        }
        y
    }

    const CELLS: [Cell; 4] = [Cell::Lstm, Cell::Gru, Cell::Tanh, Cell::Relu];

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for cell in CELLS {
            for [n, t, h] in [[1, 1, 1], [2, 3, 4], [3, 5, 2]] {
                for reverse in [false, true] {
                    let width = cell.gates() * h;
                    check_weights(
                        &[&[n, t, width], &[width, h], &[width]],
                        |v| recurrent(v[0].tensor(), &v[1], Some(&v[2]), cell, reverse),
                        |v| slow(v, [n, t, h], cell, reverse),
                        2e-5,
                    );
                }
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let run = |threads| {
            on_threads(threads, || {
                let var = |name: &str, shape: &[usize]| {
                    let n = shape.iter().product();
                    Var::from_vec(values(name, 0, n), shape, &Device::Cpu).unwrap()
                };
                let (x, weight) = (var("x", &[130, 6, 32]), var("weight", &[32, 8]));
                let weights = Weight::from(weight.as_tensor());
                let y = recurrent(&x, &weights, None, Cell::Lstm, false).unwrap();
                let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                [flat(&y), flat(grads.get(&x).unwrap()), flat(grads.get(&weight).unwrap())]
            })
        };
        assert!(run(1) == run(2) && run(1) == run(3));
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() -> Result<()> {
        let x = Tensor::zeros((2, 3, 8), candle_core::DType::F32, &Device::Cpu)?;
        let weight = Weight::from(&Tensor::zeros((8, 2), candle_core::DType::F32, &Device::Cpu)?);
        assert!(recurrent(&x, &weight, None, Cell::Lstm, false).is_ok());
        assert_refused(recurrent(&x, &weight, None, Cell::Gru, false), "Gru over [2, 3, 8]");
        assert_refused(
            recurrent(&x, &weight, Some(&weight), Cell::Lstm, false),
            "Lstm over [2, 3, 8]",
        );
        Ok(())
    }
}
