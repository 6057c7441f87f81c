//! Parameters for modules that take theirs from a `candle_nn::VarBuilder`: candle-nn's layers and
//! the models of candle-transformers.
//!
//! Such a module holds tensors, not [`Param`]s. So it is loaded once to learn its parameters, and
//! again in each pass, with the tensors of that pass: gradients go where those of other layers go,
//! and nothing that a module computes while it loads (a transposed or concatenated weight) is out
//! of date after a step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::NormalOrUniform;
use candle_nn::var_builder::SimpleBackend;

use super::params::lock;
use super::{Builder, ForwardContext, Init, Param};
use crate::Precision;

/// Parameters of a module that takes them from a `VarBuilder`.
pub struct VarBuilderParams {
    registered: Arc<Registered>,
    device: Device,
}

#[derive(Default)]
struct Registered {
    params: HashMap<String, Param>,
    /// Answers of `VarBuilder::contains_tensor`, which have to stay the same.
    contains: HashMap<String, bool>,
}

impl VarBuilderParams {
    /// Registers what `load` takes from its `VarBuilder`, below the builder's path and in that
    /// order, with the initial values that it asks for. The tensors that `load` sees have shapes,
    /// not values.
    ///
    /// A `VarBuilder` that creates parameters has every name that it is asked for. `has` answers
    /// for optional ones, which a module takes only if they exist.
    ///
    /// # Errors
    ///
    /// `load` fails, asks for the statistics of a `candle_nn::BatchNorm`, or asks for an initial
    /// distribution that [`Init`] does not have.
    pub fn register<T>(
        builder: &Builder,
        has: impl Fn(&str) -> bool + Send + Sync + 'static,
        load: impl FnOnce(VarBuilder<'static>) -> Result<T>,
    ) -> Result<Self> {
        let device = builder.device().clone();
        let registered = Arc::new(Mutex::default());
        let registration =
            Registration { builder: builder.clone(), has, registered: Arc::clone(&registered) };
        load(VarBuilder::from_backend(Box::new(registration), DType::F32, device.clone()))?;
        // What one rank draws on its CPU, or uploads, is in no recorded graph.
        builder.computes_on_cpu();
        let registered = std::mem::take(&mut *lock(&registered));
        Ok(Self { registered: Arc::new(registered), device })
    }

    /// The tensors of a pass, to load the module with: in the graph if gradients are wanted, in
    /// [`compute_dtype`]'s numbers.
    pub fn var_builder(&self, pass: &ForwardContext) -> VarBuilder<'static> {
        let tensors = PassTensors(Arc::clone(&self.registered));
        VarBuilder::from_backend(
            Box::new(tensors),
            compute_dtype(pass.precision),
            self.device.clone(),
        )
    }
}

/// Numbers in which a module of candle-nn computes all of its pass.
pub fn compute_dtype(precision: Precision) -> DType {
    match precision {
        Precision::Fp32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::Fp16 => DType::F16,
    }
}

/// The `VarBuilder` of the first load, whose names are registered.
struct Registration<H> {
    builder: Builder,
    has: H,
    registered: Arc<Mutex<Registered>>,
}

impl<H: Fn(&str) -> bool + Send + Sync> SimpleBackend for Registration<H> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        if !(self.has)(name) {
            return Err(absent(name));
        }
        if name.ends_with("running_mean") || name.ends_with("running_var") {
            bail!(
                "`{}` belongs to a `candle_nn::BatchNorm`, whose statistics are those of one \
                 rank's samples: use `ddprun::nn::BatchNorm2d`, or `candle_nn::GroupNorm`",
                self.builder.name(name)
            );
        }
        let mut registered = lock(&self.registered);
        match registered.params.get(name) {
            Some(param) if param.shape() == shape.dims() => {}
            Some(param) => {
                bail!("`{name}` is taken as {:?} and as {:?}", param.shape(), shape.dims())
            }
            None => {
                let param = self.builder.param(name, shape.dims(), initial(init, name, &shape)?)?;
                registered.params.insert(name.to_owned(), param);
            }
        }
        Tensor::zeros((), dtype, device)?.broadcast_as(shape)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("`{name}` is taken without a shape, so it cannot be created")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let mut registered = lock(&self.registered);
        let answer = registered.params.contains_key(name) || (self.has)(name);
        registered.contains.insert(name.to_owned(), answer);
        answer
    }
}

/// The `VarBuilder` of a pass.
struct PassTensors(Arc<Registered>);

impl SimpleBackend for PassTensors {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if *tensor.shape() != shape {
            bail!("`{name}` is {:?}, and is taken as {shape:?}", tensor.shape());
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> Result<Tensor> {
        let param = self.0.params.get(name).ok_or_else(|| absent(name))?;
        param.tensor()?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        match self.0.contains.get(name) {
            Some(answer) => *answer,
            None => self.0.params.contains_key(name),
        }
    }
}

fn absent(name: &str) -> candle_core::Error {
    candle_core::Error::CannotFindTensor { path: name.to_owned() }.bt()
}

/// The same distribution, drawn from the run's seed.
fn initial(init: candle_nn::Init, name: &str, shape: &Shape) -> Result<Init> {
    Ok(match init {
        candle_nn::Init::Const(value) => Init::Constant(value),
        candle_nn::Init::Randn { mean: 0.0, stdev } => Init::Normal(stdev),
        candle_nn::Init::Uniform { lo, up } if lo == -up => Init::Uniform(up),
        candle_nn::Init::Kaiming { dist, fan, non_linearity } => {
            let std = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Normal => Init::Normal(std),
                NormalOrUniform::Uniform => Init::Uniform(3.0_f64.sqrt() * std),
            }
        }
        other => bail!("`{name}` is initialised by {other:?}, which is not around zero"),
    })
}

#[cfg(test)]
mod tests {
    use candle_nn::Module;
    use test_support::assert_refused;

    use super::*;
    use crate::nn::Linear;
    use crate::ops::GradientSink;
    use crate::ops::testing::Collected;
    use crate::rng::{Key, Purpose};

    /// Names, values and gradients of a pass of sum(f(x)^2) for x of (4, 3).
    fn gradients(
        builder: Builder,
        forward: impl Fn(&Tensor, &ForwardContext) -> Result<Tensor>,
    ) -> Result<Vec<(String, Vec<f32>)>> {
        let params = builder.finish();
        for param in params.parameters() {
            let n = param.elem_count();
            let values: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
            param.var()?.set(&Tensor::from_vec(values, param.shape(), &Device::Cpu)?)?;
        }
        let collected = Arc::new(Collected::default());
        let sink: Arc<dyn GradientSink> = collected.clone();
        let x = Tensor::arange(0f32, 12.0, &Device::Cpu)?.reshape((4, 3))?;
        let pass = ForwardContext::train(Key::new(0, Purpose::Dropout, 0, 0), Precision::Fp32);
        params.begin_pass(Some(&sink));
        forward(&x, &pass)?.sqr()?.sum_all()?.backward()?;
        params.end_pass();
        let gradient = |(index, param): (usize, &Param)| {
            let values = collected.of(index).unwrap().to_vec1()?;
            Ok((param.name().to_owned(), values))
        };
        params.parameters().iter().enumerate().map(gradient).collect()
    }

    fn register<T>(
        builder: &Builder,
        load: impl FnOnce(VarBuilder<'static>) -> Result<T>,
    ) -> Result<VarBuilderParams> {
        VarBuilderParams::register(builder, |name| name != "absent", load)
    }

    #[test]
    fn a_layer_of_candle_nn_has_the_gradients_of_ours() -> Result<()> {
        let builder = Builder::new(1);
        let ours = Linear::new(&builder.pp("body.fc"), 3, 2)?;
        let expected = gradients(builder, |x, pass| ours.forward(x, pass))?;

        let builder = Builder::new(1);
        let load = |vb: VarBuilder<'static>| candle_nn::linear(3, 2, vb.pp("fc"));
        let params = register(&builder.pp("body"), load)?;
        let actual = gradients(builder, |x, pass| load(params.var_builder(pass))?.forward(x))?;
        assert_eq!(actual.len(), 2);
        for ((name, gradient), (expected_name, expected)) in actual.iter().zip(&expected) {
            assert_eq!(name, expected_name);
            for (a, e) in gradient.iter().zip(expected) {
                assert!((a - e).abs() <= 1e-5 * e.abs().max(1.0), "{name}: {a} instead of {e}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_weight_that_is_made_while_a_module_loads_follows_its_parameters() -> Result<()> {
        let builder = Builder::new(1);
        let load =
            |vb: VarBuilder<'static>| Tensor::cat(&[vb.get((1, 3), "q")?, vb.get((1, 3), "k")?], 0);
        let params = register(&builder, load)?;
        let actual = gradients(builder, |x, pass| x.matmul(&load(params.var_builder(pass))?.t()?))?;
        // d/dq of the sum of (x q)^2 is 2 X'X q, for q = sin(0, 0.7, 1.4).
        let q = [0.0f32, 0.7, 1.4].map(f32::sin);
        let x = |row: usize, column: usize| (3 * row + column) as f32;
        let product = |row| (0..3).map(|column| x(row, column) * q[column]).sum::<f32>();
        for (name, gradient) in &actual {
            for (column, value) in gradient.iter().enumerate() {
                let expected: f32 = (0..4).map(|row| 2.0 * product(row) * x(row, column)).sum();
                assert!((value - expected).abs() < 1e-3, "{name}: {value} instead of {expected}");
            }
        }
        Ok(())
    }

    #[test]
    fn names_are_shared_optional_or_refused() -> Result<()> {
        let builder = Builder::describe();
        register(&builder, |vb| {
            vb.get(3, "tied")?;
            vb.get(3, "tied")?;
            assert!(vb.get(3, "absent").is_err());
            assert!(vb.contains_tensor("optional") && !vb.contains_tensor("absent"));
            Ok(())
        })?;
        let params = builder.finish();
        assert_eq!(params.parameters().len(), 1);

        let refused = |load: fn(VarBuilder<'static>) -> Result<Tensor>, expected: &str| {
            assert_refused(register(&Builder::describe(), load).map(|_| ()), expected);
        };
        refused(
            |vb| {
                vb.get(3, "tied")?;
                vb.get(4, "tied")
            },
            "`tied` is taken as [3] and as [4]",
        );
        refused(|vb| vb.get_unchecked("x"), "`x` is taken without a shape");
        let shifted = candle_nn::Init::Randn { mean: 1.0, stdev: 1.0 };
        let shifted = move |vb: VarBuilder<'static>| vb.get_with_hints(3, "x", shifted);
        assert_refused(register(&Builder::describe(), shifted).map(|_| ()), "not around zero");
        Ok(())
    }
}
