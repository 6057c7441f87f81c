//! Time of what a training step consists of. `just bench -- --save-baseline before`, change
//! something, `just bench -- --baseline before`.
#![expect(clippy::expect_used, reason = "a benchmark may stop")]

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ddprun::nn::{Builder, ForwardContext, Init, Param, Params};
use ddprun::ops::{ConvOptions, GradientSink, Window, conv2d, cross_entropy};
use ddprun::optim::{
    self, AdamW, Optimizer, ParameterState, ParameterUpdate, Rates, Sgd, Update, sum_of_squares,
};
use ddprun::plan::{Convolutions, ModelPlan, OptimizerPlan, Precision};
use ddprun::rng::{Key, Purpose};

/// As the command `ddprun`.
#[global_allocator]
static ALLOCATOR: ddprun::memory::Allocator = ddprun::memory::Allocator;

/// Gradients that nobody needs.
struct Ignored;

impl GradientSink for Ignored {
    fn add(&self, _: usize, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn complete(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

/// Runs `loss` forward and backward.
fn pass(params: &Params, loss: impl Fn() -> Result<Tensor>) {
    let sink: Arc<dyn GradientSink> = Arc::new(Ignored);
    params.begin_pass(Some(&sink));
    loss().and_then(|loss| loss.backward()).expect("the pass runs");
    params.end_pass();
}

fn convolution(c: &mut Criterion) {
    let shape = [64, 64, 3, 3];
    let images = Tensor::ones((32, 32, 32, 64), DType::F32, &Device::Cpu).expect("memory");
    let builder = Builder::new(0);
    let weight: Param = builder.param("weight", &shape, Init::he_fan_out(&shape)).expect("memory");
    let params = builder.finish();
    let options = ConvOptions {
        window: Window { stride: 1, padding: 1 }.into(),
        groups: 1,
        precision: Precision::Fp32,
        convolutions: Convolutions::Fast,
    };
    c.bench_function("conv2d 3x3 64->64, 32x32, batch 32, forward and backward", |bencher| {
        bencher.iter(|| {
            pass(&params, || conv2d(&images, &weight.weight()?, None, options)?.sum_all());
        });
    });
}

fn resnets(c: &mut Criterion) {
    let mut plan: ModelPlan = serde_json::from_str(include_str!("model.json")).expect("a plan");
    let images = Tensor::ones((32, 3, 32, 32), DType::F32, &Device::Cpu).expect("memory");
    let labels = Tensor::zeros(32, DType::U32, &Device::Cpu).expect("memory");
    let key = Key::new(0, Purpose::Dropout, 0, 0);
    for name in ["resnet8", "resnet18"] {
        name.clone_into(&mut plan.kind.name);
        let registry = ddprun::model::Models::default();
        let (model, params) = registry.instantiate(&plan, 0).expect("a model");
        c.bench_function(&format!("{name}, 32x32, batch 32, forward and backward"), |bencher| {
            bencher.iter(|| {
                pass(&params, || {
                    let logits =
                        model.forward(&images, &ForwardContext::train(key, Precision::Fp32))?;
                    cross_entropy(&logits, &labels, 0.0)
                });
            });
        });
    }
}

/// One update of as many parameters as `ResNet`-18 has, and the measuring before it.
/// The rates count what has to be read and written once.
fn update(c: &mut Criterion) {
    const N: usize = 11_181_642;
    let gradient = vec![1e-3f32; N];
    let mut values = vec![1f32; N];
    let mut group = c.benchmark_group("update of 11.2 M parameters");
    let bytes = |vectors: u64| Throughput::Bytes(vectors * 4 * N as u64);
    group.throughput(bytes(1));
    group.bench_function("norm", |bencher| bencher.iter(|| sum_of_squares(&gradient)));
    let sgd = Sgd { momentum: 0.9, nesterov: true, weight_decay: 5e-4, ..Sgd::default() };
    let adam_w = AdamW { weight_decay: 5e-4, ..AdamW::default() };
    let rules: [(_, OptimizerPlan, Box<dyn Optimizer>, u64); 2] = [
        ("sgd with momentum", optim::plan(&sgd, 1e-3), Box::new(sgd), 5),
        ("adamw", optim::plan(&adam_w, 1e-3), Box::new(adam_w), 7),
    ];
    for (name, plan, rule, vectors) in rules {
        let mut state = ParameterState::zeros(&plan, 0, &[N]);
        group.throughput(bytes(vectors));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let (values, gradient) = (&mut values[..], &gradient[..]);
                let (state, count) = (&mut state, Some(2));
                let part =
                    ParameterUpdate { values, gradient, state, index: 0, shape: &[N, 1], count };
                let rates = Rates { lr: plan.lr, momentum: None };
                Update::new(rule.as_ref(), &plan, rates).apply([part]);
            });
        });
    }
}

criterion_group! {
    name = benches;
    // Criterion's pictures need a system font; the numbers do not.
    config = Criterion::default().sample_size(10).without_plots();
    targets = convolution, resnets, update
}
criterion_main!(benches);
