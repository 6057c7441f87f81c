//! Time of a training pass and of the gradients' way into their buckets on a GPU, on samples in memory; one line per
//! model and precision. `just gpu` runs it beside `benches/peers/bench_gpu.py`, which prints PyTorch's lines.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark may stop, and prints its table"
)]

use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use ddprun::model::Registry;
use ddprun::nn::Pass;
use ddprun::ops::{GradientSink, cross_entropy, open_gpu, visible_gpus};
use ddprun::plan::{ModelPlan, Precision};
use ddprun::rng::{Key, Purpose};

const WARM: usize = 5;
const PASSES: usize = 20;

/// Gradients that nobody needs.
struct Ignored;

impl GradientSink for Ignored {
    fn add(&self, _: usize, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn add_tensor(&self, _: usize, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn complete(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

/// A model, its input and the batch.
struct Work {
    model: &'static str,
    input: &'static [usize],
    outputs: usize,
    batch: usize,
}

const WORKS: [Work; 4] = [
    Work { model: "resnet50", input: &[3, 224, 224], outputs: 1000, batch: 64 },
    Work { model: "resnet18", input: &[3, 32, 32], outputs: 10, batch: 256 },
    Work { model: "gpt", input: &[1024], outputs: 50_257, batch: 4 },
    Work { model: "mlp", input: &[784], outputs: 10, batch: 256 },
];

impl Work {
    fn plan(&self) -> ModelPlan {
        let mut plan: ModelPlan = serde_json::from_str(include_str!("model.json")).expect("a plan");
        self.model.clone_into(&mut plan.name);
        plan.input = self.input.to_vec();
        plan.outputs = self.outputs;
        plan.hidden = vec![2048, 2048];
        if self.model == "resnet50" {
            plan.stem = ddprun::plan::Stem::Imagenet;
        }
        if self.model == "gpt" {
            plan.target = self.input.to_vec();
            plan.sequence.d_model = 768;
            plan.sequence.n_layers = 12;
            plan.sequence.n_heads = 12;
            plan.sequence.bias = true;
        }
        plan
    }

    fn inputs(&self, device: &Device) -> Result<(Tensor, Tensor)> {
        let shape = [&[self.batch], self.input].concat();
        if self.model == "gpt" {
            // Tokens stay in the CPU's memory, as in training.
            let tokens = Tensor::zeros(shape.clone(), DType::F32, &Device::Cpu)?;
            return Ok((
                tokens,
                Tensor::zeros(shape.iter().product::<usize>(), DType::U32, &Device::Cpu)?,
            ));
        }
        let images = Tensor::randn(0f32, 1f32, shape, device)?;
        Ok((images, Tensor::zeros(self.batch, DType::U32, &Device::Cpu)?))
    }

    fn seconds_per_pass(&self, device: &Device, precision: Precision) -> Result<f64> {
        let (model, params) =
            Registry::default().build_on(&self.plan(), 0, device).expect("a model");
        let (inputs, labels) = self.inputs(device)?;
        let sink: Arc<dyn GradientSink> = Arc::new(Ignored);
        let key = Key::new(0, Purpose::Dropout, 0, 0);
        let pass = || -> Result<()> {
            params.begin_pass(Some(&sink));
            let outputs = model.forward(&inputs, &Pass::train(key, precision))?;
            let rows = outputs.flatten_to(outputs.rank() - 2)?;
            cross_entropy(&rows, &labels, 0.0)?.backward()?;
            params.end_pass();
            Ok(())
        };
        (0..WARM).try_for_each(|_| pass())?;
        device.synchronize()?;
        let began = Instant::now();
        (0..PASSES).try_for_each(|_| pass())?;
        device.synchronize()?;
        Ok(began.elapsed().as_secs_f64() / PASSES as f64)
    }
}

fn main() {
    let gpus = visible_gpus().and_then(std::result::Result::ok).unwrap_or_default();
    let Some((name, _)) = gpus.first() else {
        println!("SKIPPED: no GPU");
        return;
    };
    let device = open_gpu(0).expect("a GPU");
    for work in &WORKS {
        for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
            let line = match work.seconds_per_pass(&device, precision) {
                Ok(seconds) => format!("{:.1} samples/s", work.batch as f64 / seconds),
                Err(error) => format!("failed: {error}"),
            };
            let Work { model, batch, .. } = work;
            println!(
                "TABLE | ddprun {model}, batch {batch}, {precision:?}, forward and backward | {line} | {name} |"
            );
        }
    }
}
