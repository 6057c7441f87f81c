//! Fully connected layer: y = activation(x weight^T + bias).

mod activation;
#[cfg(feature = "cuda")]
mod on_gpu;

use candle_core::{Result, Shape, Tensor, bail};

pub use activation::LinearActivation;
use activation::{Finish, pull_back};

use super::chain;
use super::kernel::{
    Format, Matrix, Rowwise, StoredMatrix, Sums, Write, multiply_and_finish, rows_per_block,
};
use super::operation::{
    Gradients, Input, OneOrTwo, Operation, SavedForBackward, TwoOrThree, add_multiplications,
};
use super::precision::{Round, bias_gradient, operand, rounded};
use super::scratch::{filled, filled_together};
use super::storage::{overwrite, read, tensor};
use super::stored::StoredTensor;
use super::weight::{Destination, Weight};
use crate::Precision;

/// `torch.nn.functional.linear`: x (..., in), weight (out, in), bias (out) -> (..., out), f32.
///
/// Under a half precision, operands, result and gradients are rounded to it.
pub fn linear(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    precision: Precision,
) -> Result<Tensor> {
    linear_activated(x, weight, bias, LinearActivation::Identity, precision)
}

/// [`linear`] and an activation in one pass. On a GPU, under a half precision, the result behind an
/// activation has the precision's type, as that of [`super::conv_batch_norm`].
pub fn linear_activated(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Weight>,
    activation: LinearActivation,
    precision: Precision,
) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims2()?;
    let stored = weight.as_stored().filter(|_| x.device().is_cpu());
    if x.dims().last() != Some(&inputs) {
        bail!("a linear layer over {inputs} features was given {:?}", x.dims());
    }
    let n = x.dims()[..x.rank() - 1].iter().product();
    add_multiplications(n * inputs * outputs);
    let dw = weight.destination();
    let db = bias.map(Weight::destination);
    let learnt = if stored.is_some() { None } else { Some(weight.tensor()) };
    let tracked = [Some(x), learnt, bias.map(Weight::tensor)];
    let tracked = tracked.into_iter().flatten().any(Tensor::track_op);
    let before = (activation.needs_its_input() && tracked).then(SavedForBackward::default);
    let op = Linear { n, inputs, outputs, activation, precision, before, dw, db };
    let bias = bias.map(Weight::tensor);
    if let Some(bias) = bias.filter(|bias| bias.dims() != [outputs]) {
        bail!("a bias of shape {:?} for {outputs} outputs", bias.dims());
    }
    match stored {
        Some(stored) => chain::apply(([x], bias), StoredLinear { weight: stored.clone(), op }),
        None => chain::apply(([x, weight.tensor()], bias), op),
    }
}

struct Linear {
    n: usize,
    inputs: usize,
    outputs: usize,
    activation: LinearActivation,
    precision: Precision,
    /// Input of the activation, where its gradient needs that.
    before: Option<SavedForBackward<Vec<f32>>>,
    dw: Destination,
    db: Option<Destination>,
}

impl Linear {
    /// Shape of the result for x.
    fn output_shape(&self, x: &Shape) -> Shape {
        Shape::from([&x.dims()[..x.rank() - 1], &[self.outputs]].concat())
    }

    /// x (n, inputs) times the transposed weight.
    fn values(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let x = operand(x, self.precision);
        let weight = operand(weight, self.precision);
        let x = Matrix::new(&x, self.n, self.inputs);
        let weight = Matrix::new(&weight, self.outputs, self.inputs).transposed();
        let product = Rowwise::new(x, weight, Format::of(self.precision), Sums::Long);
        self.finished(&product, bias)
    }

    /// The rows of the product; bias and activation are applied while they are in the cache.
    fn finished(&self, product: &Rowwise<'_>, bias: Option<&[f32]>) -> Vec<f32> {
        let precision = self.precision;
        let width = self.outputs;
        let bias = bias.map(|bias| rounded(bias, precision));
        let rows = rows_per_block(Format::of(precision), self.n);
        let fill = |start: usize, y: &mut [f32], before: Option<&mut [f32]>| {
            let bias = bias.as_deref();
            let activation = self.activation;
            let mut finish = Finish { bias, activation, width, before, precision };
            product.write(y, start / width, &mut finish);
        };
        let Some(kept) = &self.before else {
            return filled(self.n * width, rows * width, |start, y| fill(start, y, None));
        };
        let [y, before] = filled_together(self.n * width, rows * width, |start, [y, before]| {
            fill(start, y, Some(before));
        });
        kept.keep(before);
        y
    }

    /// dx (n, inputs).
    fn input_gradient(&self, dy: Matrix<'_>, weight: &[f32]) -> Vec<f32> {
        let weight = operand(weight, self.precision);
        let weight = Matrix::new(&weight, self.outputs, self.inputs);
        self.rounded(&Rowwise::new(dy, weight, Format::of(self.precision), Sums::Long))
    }

    /// The rows of a gradient (n, inputs), rounded while they are in the cache.
    fn rounded(&self, product: &Rowwise<'_>) -> Vec<f32> {
        let inputs = self.inputs;
        let rows = rows_per_block(Format::of(self.precision), self.n);
        filled(self.n * inputs, rows * inputs, |start, dx| {
            product.write(dx, start / inputs, &mut Round(self.precision));
        })
    }

    /// Turns the gradient of the result into that of what entered the activation, in its place;
    /// both are of autocast's half type.
    fn pull_back(&self, y: &Tensor, dy: &Tensor) -> Result<()> {
        if self.activation == LinearActivation::Identity {
            return Ok(());
        }
        let kept = self.before.as_ref().and_then(SavedForBackward::get);
        if kept.is_none() && self.activation.needs_its_input() {
            bail!("what entered {:?} was not kept", self.activation);
        }
        read([y], |[y]| {
            let before = kept.map_or(y, Vec::as_slice);
            overwrite(dy, |dy| pull_back(dy, before, self.activation, self.precision))
        })
    }

    fn bias_gradient(&self, bias: Option<&Tensor>, dy: &[f32]) -> Result<Option<Tensor>> {
        let (Some(destination), Some(bias)) = (&self.db, bias) else { return Ok(None) };
        destination.send(bias_gradient(dy, self.outputs, self.precision), bias)
    }
}

impl Operation for Linear {
    type Operands<T> = TwoOrThree<T>;

    const NAME: &'static str = "linear";

    fn forward(&self, ([x, weight], bias): TwoOrThree<Input<'_>>) -> Result<(Vec<f32>, Shape)> {
        let bias = bias.map(|bias| bias.values);
        let y = self.values(x.values, weight.values, bias);
        Ok((y, self.output_shape(x.shape)))
    }

    #[cfg(any(feature = "cuda", test))]
    fn reads_result(&self) -> bool {
        self.activation != LinearActivation::Identity
    }

    /// The bias's gradient leaves first: it was registered last.
    fn backward(
        &self,
        ([x, weight], bias): TwoOrThree<&Tensor>,
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        self.pull_back(y, &dy)?;
        read([x, weight, &dy], |[x_values, weight_values, dy]| {
            let dy = operand(dy, self.precision);
            let db = self.bias_gradient(bias, &dy)?;
            let dy = Matrix::new(&dy, self.n, self.outputs);
            let dw = if weight.track_op() {
                let x_values = operand(x_values, self.precision);
                let x = Matrix::new(&x_values, self.n, self.inputs);
                let x = x.panels_of(Format::of(self.precision));
                let round = Round(self.precision);
                self.dw.send_written(weight, |dw| {
                    multiply_and_finish(dw, dy.transposed(), &x, Write::Replace, Sums::Long, round);
                })?
            } else {
                None
            };
            let dx = if x.track_op() {
                Some(tensor(self.input_gradient(dy, weight_values), x.shape())?)
            } else {
                None
            };
            Ok(([dx, dw], Some(db)))
        })
    }
}

/// [`Linear`] by a weight that nothing changes, which stays as its file holds it.
struct StoredLinear {
    weight: StoredTensor,
    op: Linear,
}

impl StoredLinear {
    fn matrix(&self) -> StoredMatrix<'_> {
        let Linear { outputs: rows, inputs: columns, precision, .. } = self.op;
        // Products of bf16 numbers round their operands themselves.
        let rounding = match Format::of(precision) {
            Format::F32 => precision,
            Format::Bf16(_) => Precision::Fp32,
        };
        StoredMatrix { numbers: self.weight.numbers(), rows, columns, rounding }
    }
}

impl Operation for StoredLinear {
    type Operands<T> = OneOrTwo<T>;

    const NAME: &'static str = "linear";

    fn forward(&self, ([x], bias): OneOrTwo<Input<'_>>) -> Result<(Vec<f32>, Shape)> {
        let op = &self.op;
        let values = operand(x.values, op.precision);
        let values = Matrix::new(&values, op.n, op.inputs);
        let product = self.matrix().applied_to(values, Format::of(op.precision));
        let y = op.finished(&product, bias.map(|bias| bias.values));
        Ok((y, op.output_shape(x.shape)))
    }

    #[cfg(any(feature = "cuda", test))]
    fn reads_result(&self) -> bool {
        self.op.reads_result()
    }

    fn backward(&self, ([x], bias): OneOrTwo<&Tensor>, y: &Tensor, dy: Tensor) -> Gradients<Self> {
        let op = &self.op;
        op.pull_back(y, &dy)?;
        read([&dy], |[dy]| {
            let dy = operand(dy, op.precision);
            let db = op.bias_gradient(bias, &dy)?;
            if !x.track_op() {
                return Ok(([None], Some(db)));
            }
            let dy = Matrix::new(&dy, op.n, op.outputs);
            let dx = op.rounded(&self.matrix().pulled_back(dy, Format::of(op.precision)));
            Ok(([Some(tensor(dx, x.shape())?)], Some(db)))
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use proptest::prelude::*;

    use super::super::stored::StoredType;
    use super::super::testing::{check_gradients, on_threads, stored, values};
    use super::*;

    fn slow(x: &[f64], w: &[f64], b: Option<&Vec<f64>>, inputs: usize, outputs: usize) -> Vec<f64> {
        let n = x.len() / inputs;
        (0..n * outputs)
            .map(|i| {
                let (row, out) = (i / outputs, i % outputs);
                let dot: f64 = (0..inputs).map(|j| x[row * inputs + j] * w[out * inputs + j]).sum();
                dot + b.map_or(0.0, |b| b[out])
            })
            .collect()
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (n, inputs, outputs) in [(1, 1, 1), (1, 7, 3), (5, 2, 11), (67, 3, 2), (2, 3, 131)] {
            check_gradients(
                &[&[n, inputs], &[outputs, inputs], &[outputs]],
                |t| linear(&t[0], &(&t[1]).into(), Some(&(&t[2]).into()), Precision::Fp32),
                |v| slow(&v[0], &v[1], Some(&v[2]), inputs, outputs),
                1e-5,
            );
            check_gradients(
                &[&[n, inputs], &[outputs, inputs]],
                |t| linear(&t[0], &(&t[1]).into(), None, Precision::Fp32),
                |v| slow(&v[0], &v[1], None, inputs, outputs),
                1e-5,
            );
        }
    }

    #[test]
    fn activations_and_leading_dimensions_equal_the_slow_ones() {
        fn gelu_tanh(z: f64) -> f64 {
            0.5 * z
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (z + 0.044_715 * z.powi(3))).tanh())
        }
        let gelu = |z: f64| 0.5 * z * (1.0 + candle_core::cpu::erf::erf_f64(z / 2f64.sqrt()));
        let cases: [(LinearActivation, &dyn Fn(f64) -> f64); 4] = [
            (LinearActivation::Identity, &|z| z),
            (LinearActivation::Relu, &|z| z.max(0.0)),
            (LinearActivation::Gelu, &gelu),
            (LinearActivation::GeluTanh, &gelu_tanh),
        ];
        for (activation, exact) in cases {
            for (leading, inputs, outputs) in [([1, 1], 1, 1), ([2, 5], 7, 3), ([31, 2], 5, 67)] {
                check_gradients(
                    &[&[leading[0], leading[1], inputs], &[outputs, inputs], &[outputs]],
                    |t| {
                        let (w, b) = ((&t[1]).into(), (&t[2]).into());
                        let y = linear_activated(&t[0], &w, Some(&b), activation, Precision::Fp32)?;
                        assert_eq!(y.dims(), [leading[0], leading[1], outputs]);
                        Ok(y)
                    },
                    |v| {
                        let z = slow(&v[0], &v[1], Some(&v[2]), inputs, outputs);
                        z.into_iter().map(exact).collect()
                    },
                    1e-5,
                );
            }
        }
    }

    #[test]
    fn a_bias_that_is_trained_alone_has_its_gradient() -> Result<()> {
        for activation in [LinearActivation::Relu, LinearActivation::Gelu] {
            let of_bias = |trains_weight: bool| -> Result<Vec<f32>> {
                let x = tensor(values("x", 0, 15), (3, 5))?;
                let w = Var::from_tensor(&tensor(values("w", 0, 10), (2, 5))?)?;
                let b = Var::from_tensor(&tensor(values("b", 0, 2), 2)?)?;
                let detached = w.as_detached_tensor();
                let w = Weight::from(if trains_weight { w.as_tensor() } else { &detached });
                let bias = Weight::from(b.as_tensor());
                let y = linear_activated(&x, &w, Some(&bias), activation, Precision::Fp32)?;
                y.sqr()?.sum_all()?.backward()?.get(&b).unwrap().to_vec1()
            };
            assert_eq!(of_bias(false)?, of_bias(true)?, "{activation:?}");
        }
        Ok(())
    }

    /// The result with a GELU, and the gradients of x and weight, on so many threads.
    fn results(threads: usize, [n, inputs, outputs]: [usize; 3]) -> [Vec<f32>; 3] {
        on_threads(threads, || {
            let var = |name, r, c| {
                Var::from_tensor(&tensor(values(name, 0, r * c), (r, c)).unwrap()).unwrap()
            };
            let (x, w) = (var("x", n, inputs), var("w", outputs, inputs));
            let weight = Weight::from(w.as_tensor());
            let gelu = LinearActivation::Gelu;
            let y = linear_activated(&x, &weight, None, gelu, Precision::Fp32).unwrap();
            let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            [&y, grads.get(&x).unwrap(), grads.get(&w).unwrap()]
                .map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap())
        })
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        for shape in [[300, 67, 131], [17, 130, 301]] {
            let one = results(1, shape);
            assert!(one == results(2, shape) && one == results(3, shape), "{shape:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn outputs_are_close_to_f64_for_any_shape(
            n in 1usize..80, inputs in 1usize..300, outputs in 1usize..200
        ) {
            let (x, w) = (values("x", 1, n * inputs), values("w", 1, outputs * inputs));
            let exact = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            let slow = slow(&exact(&x), &exact(&w), None, inputs, outputs);
            let (x, w) = (tensor(x, (n, inputs)).unwrap(), tensor(w, (outputs, inputs)).unwrap());
            let y = linear(&x, &Weight::from(&w), None, Precision::Fp32).unwrap();
            let y = y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let error = y.iter().zip(slow).map(|(y, exact)| (f64::from(*y) - exact).abs());
            let error = error.fold(0.0, f64::max) / inputs as f64;
            println!("{inputs} to {outputs} features, {n} rows: error against f64 {error:.1e} of the sum's size");
            prop_assert!(error < 2e-7);
        }
    }

    #[test]
    fn a_stored_weight_gives_the_bits_of_the_same_weight_in_f32() -> Result<()> {
        use StoredType::{Bf16, F16, F32};
        let shapes = [[1, 1, 1], [1, 300, 70], [5, 130, 64], [37, 257, 131], [200, 64, 19]];
        for ([n, inputs, outputs], dtype) in shapes.into_iter().zip([F32, Bf16, F16, Bf16, Bf16]) {
            let weight = stored("w", dtype, &[outputs, inputs]);
            let wide = weight.widened()?;
            let x = Var::from_tensor(&tensor(values("x", 0, n * inputs), (n, inputs))?)?;
            let bias = Var::from_tensor(&tensor(values("b", 0, outputs), outputs)?)?;
            for activation in [LinearActivation::Identity, LinearActivation::Gelu] {
                for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
                    for bias in [None, Some(&bias)] {
                        let results = |weight: Weight| -> Result<Vec<Vec<f32>>> {
                            let b = bias.map(|bias| Weight::from(bias.as_tensor()));
                            let y =
                                linear_activated(&x, &weight, b.as_ref(), activation, precision)?;
                            let grads = y.sqr()?.sum_all()?.backward()?;
                            let found = [Some(&y), grads.get(&x), bias.and_then(|b| grads.get(b))];
                            found
                                .into_iter()
                                .flatten()
                                .map(|t| t.flatten_all()?.to_vec1())
                                .collect()
                        };
                        let kept = results(Weight::stored(weight.clone()))?;
                        assert_eq!(kept.len(), 2 + usize::from(bias.is_some()));
                        let same = kept == results(Weight::from(&wide))?;
                        assert!(
                            same,
                            "{n} {inputs} {outputs} {dtype:?} {activation:?} {precision:?}"
                        );
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn under_bf16_every_result_is_a_bf16_number() -> Result<()> {
        let x = tensor(values("x", 0, 15), (3, 5))?;
        let w = Weight::from(&tensor(values("w", 0, 10), (2, 5))?);
        let y = linear(&x, &w, None, Precision::Bf16)?.flatten_all()?.to_vec1::<f32>()?;
        let exact = linear(&x, &w, None, Precision::Fp32)?.flatten_all()?.to_vec1::<f32>()?;
        assert!(y.iter().all(|v| v.to_bits().trailing_zeros() >= 16));
        assert!(y.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 0.03));
        assert_ne!(y, exact);
        Ok(())
    }
}
