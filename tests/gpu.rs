//! Each operation on a GPU against its twin on the CPU, and whole runs. Needs a GPU and the feature
//! `cuda`; without a GPU every test says aloud that it was skipped.
#![cfg(feature = "cuda")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, which prints a row of a table"
)]

#[path = "gpu/attention.rs"]
mod attention;
#[path = "gpu/half.rs"]
mod half;
#[path = "gpu/sharded.rs"]
mod sharded;

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use candle_core::{Device, Result, Tensor, Var};
use ddprun::nn::Init;
use ddprun::ops::{
    self, Activation, Attention, Average, Cell, ConvNorm, ConvOptions, GradientSink,
    LinearActivation, Rounding, SlidingWindow, Uses, Weight, WeightUse, Window,
};
use ddprun::plan::{Convolutions, Precision};
use ddprun::rng::{Key, Purpose};

/// The first GPU, opened once: what a thread keeps belongs to one stream. `None`, said aloud,
/// without one.
fn gpu(test: &str) -> Option<Device> {
    static GPU: OnceLock<Device> = OnceLock::new();
    match ops::visible_gpus() {
        Some(Ok(gpus)) if !gpus.is_empty() => {
            Some(GPU.get_or_init(|| ops::open_gpu(0).unwrap()).clone())
        }
        found => {
            println!("SKIPPED {test}: no GPU ({found:?})");
            None
        }
    }
}

/// Gradients of weights, by their index.
struct Collected(Mutex<Vec<Vec<f32>>>);

impl GradientSink for Collected {
    fn add(&self, index: usize, gradient: &[f32]) -> Result<()> {
        let mut all = self.0.lock().unwrap();
        all[index].resize(gradient.len(), 0.0);
        all[index].iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        Ok(())
    }

    fn complete(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

fn values(stream: u64, n: usize) -> Vec<f32> {
    let mut draws = Key::new(11, Purpose::Generate, stream, 0).stream();
    (0..n).map(|_| draws.normal() as f32).collect()
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Operands and weights of these shapes, the same on every device.
struct Twin<'a> {
    operands: &'a [&'a [usize]],
    weights: &'a [&'a [usize]],
    /// Of the largest entry.
    tolerance: f32,
}

type Op<'a> = &'a dyn Fn(&[Tensor], &[Weight]) -> Result<Tensor>;

impl Twin<'_> {
    /// Output, gradients of operands and gradients of weights on a device.
    fn run(&self, device: &Device, op: Op<'_>) -> Vec<Vec<f32>> {
        let var = |(i, shape): (usize, &&[usize])| {
            let values = values(i as u64, shape.iter().product());
            Var::from_vec(values, *shape, device).unwrap()
        };
        let operands: Vec<Var> = self.operands.iter().enumerate().map(var).collect();
        let learnt: Vec<Var> =
            self.weights.iter().enumerate().map(|(i, shape)| var((100 + i, shape))).collect();
        let collected = Arc::new(Collected(Mutex::new(vec![Vec::new(); learnt.len()])));
        let sink: Arc<dyn GradientSink> = collected.clone();
        let weight = |(i, var)| Weight::learnt(var, WeightUse::new(&sink, i, &Uses::default()));
        let weights: Vec<Weight> = learnt.iter().enumerate().map(weight).collect();
        let tensors: Vec<Tensor> = operands.iter().map(|var| var.as_tensor().clone()).collect();
        let y = ops::widen(&op(&tensors, &weights).unwrap()).unwrap();
        let dy = Tensor::from_vec(values(999, y.elem_count()), y.shape(), device).unwrap();
        let gradients = (&y * dy).unwrap().sum_all().unwrap().backward().unwrap();
        let of_operands =
            operands.iter().map(|var| gradients.get(var).map(flat).unwrap_or_default());
        let all = [flat(&y)].into_iter().chain(of_operands).collect::<Vec<_>>();
        let of_weights = collected.0.lock().unwrap().clone();
        [all, of_weights].concat()
    }

    #[track_caller]
    fn check(&self, name: &str, op: Op<'_>) {
        let Some(device) = gpu(name) else { return };
        let (expected, found) = (self.run(&Device::Cpu, op), self.run(&device, op));
        let mut worst = 0f32;
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.len(), expected.len(), "{name}, result {i}");
            let largest = expected.iter().fold(1e-3f32, |a, v| a.max(v.abs()));
            let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / largest);
            let difference = differences.fold(0f32, f32::max);
            assert!(difference <= self.tolerance, "{name}, result {i}: {difference:.1e}");
            worst = worst.max(difference);
        }
        println!(
            "TABLE | {name} | {worst:.1e} of the largest entry | allowed {:.0e} |",
            self.tolerance
        );
        assert_eq!(found, self.run(&device, op), "{name}: other bits the second time");
    }
}

const ALL: [Precision; 3] = [Precision::Fp32, Precision::Bf16, Precision::Fp16];

fn tolerance(precision: Precision) -> f32 {
    match precision {
        Precision::Fp32 => 2e-5,
        Precision::Bf16 => 3e-2,
        Precision::Fp16 => 4e-3,
    }
}

fn conv(stride: usize, padding: usize, groups: usize, precision: Precision) -> ConvOptions {
    let window = Window { stride, padding }.into();
    ConvOptions { window, groups, precision, convolutions: Convolutions::Direct }
}

#[test]
fn gpu_convolutions() {
    for precision in ALL {
        let tolerance = tolerance(precision);
        for (k, stride, padding, groups) in
            [(3, 1, 1, 1), (1, 2, 0, 1), (7, 2, 3, 1), (3, 1, 1, 2), (3, 1, 1, 4), (3, 2, 1, 8)]
        {
            let weight = [16, 8 / groups, k, k];
            let twin = Twin { operands: &[&[2, 13, 11, 8]], weights: &[&weight, &[16]], tolerance };
            let options = conv(stride, padding, groups, precision);
            let name = format!("conv2d {k}x{k} stride {stride} groups {groups} {precision:?}");
            twin.check(&name, &|x, w| ops::conv2d(&x[0], &w[0], Some(&w[1]), options));
        }
        let (wide, grouped): (&[usize], &[usize]) = (&[2, 6, 7, 12], &[12, 3, 3, 3]);
        let twin = Twin { operands: &[wide], weights: &[grouped, &[12]], tolerance };
        let options = conv(1, 1, 4, precision);
        let name = format!("conv2d of groups that cuDNN may refuse {precision:?}");
        twin.check(&name, &|x, w| ops::conv2d(&x[0], &w[0], Some(&w[1]), options));
        let twin = Twin { operands: &[&[3, 17, 8]], weights: &[&[16, 8, 5], &[16]], tolerance };
        let options = conv(2, 2, 1, precision);
        let name = format!("conv1d {precision:?}");
        twin.check(&name, &|x, w| ops::conv1d(&x[0], &w[0], Some(&w[1]), options));
        let twin = Twin { operands: &[&[3, 9, 8]], weights: &[&[8, 16, 4], &[16]], tolerance };
        let options = conv(2, 1, 1, precision);
        let name = format!("conv_transpose1d {precision:?}");
        twin.check(&name, &|x, w| ops::conv_transpose1d(&x[0], &w[0], &w[1], options));
    }
}

#[test]
fn gpu_convolutions_with_batch_norm() {
    for precision in ALL {
        let tolerance = 4.0 * tolerance(precision);
        let twin = Twin {
            operands: &[&[4, 9, 9, 8], &[4, 9, 9, 16]],
            weights: &[&[16, 8, 3, 3], &[16], &[16]],
            tolerance,
        };
        twin.check(&format!("conv_batch_norm {precision:?}"), &|x, w| {
            let options = conv(1, 1, 1, precision);
            let activation = Activation::Identity;
            let affine = [&w[1], &w[2]];
            let layer =
                ConvNorm { weight: &w[0], affine, options, activation, eps: 1e-5, group: None };
            Ok(ops::conv_batch_norm(&x[0], Some(&x[1]), &layer)?.0)
        });
    }
}

#[test]
fn gpu_batch_norm() {
    for activation in [Activation::Identity, Activation::Relu] {
        let twin = Twin {
            operands: &[&[3, 20, 21, 40], &[3, 20, 21, 40]],
            weights: &[&[40], &[40]],
            tolerance: 5e-5,
        };
        twin.check(&format!("batch_norm {activation:?}"), &|x, w| {
            let affine = [&w[0], &w[1]];
            Ok(ops::batch_norm(&x[0], affine, Some(&x[1]), activation, 1e-5)?.0)
        });
    }
}

#[test]
fn gpu_linear_layers() {
    for precision in ALL {
        for activation in
            [LinearActivation::Identity, LinearActivation::Relu, LinearActivation::Gelu]
        {
            let twin = Twin {
                operands: &[&[5, 7, 33]],
                weights: &[&[21, 33], &[21]],
                tolerance: 2.0 * tolerance(precision),
            };
            // Under half precision a value near the rectifier's edge may fall on either side.
            if activation == LinearActivation::Relu && precision != Precision::Fp32 {
                continue;
            }
            twin.check(&format!("linear {activation:?} {precision:?}"), &|x, w| {
                ops::linear_activated(&x[0], &w[0], Some(&w[1]), activation, precision)
            });
        }
        // Without a bias the product is the result, but for outputs that are no multiple of 8.
        for outputs in [24, 21] {
            let (weight, tolerance) = ([outputs, 33], 2.0 * tolerance(precision));
            let twin = Twin { operands: &[&[5, 7, 33]], weights: &[&weight], tolerance };
            twin.check(&format!("linear of {outputs} without bias {precision:?}"), &|x, w| {
                ops::linear(&x[0], &w[0], None, precision)
            });
        }
    }
}

#[test]
fn gpu_rows() {
    let twin = Twin {
        operands: &[&[6, 5, 130], &[6, 5, 130]],
        weights: &[&[130], &[130]],
        tolerance: 2e-5,
    };
    twin.check("layer_norm", &|x, w| ops::layer_norm(&x[0], Some(&x[1]), &w[0], Some(&w[1]), 1e-5));
    let twin = Twin { operands: &[&[6, 5, 130]], weights: &[&[130]], tolerance: 2e-5 };
    twin.check("rms_norm", &|x, w| ops::rms_norm(&x[0], &w[0], 1e-5));
    let twin = Twin { operands: &[&[6, 5, 130]], weights: &[], tolerance: 1e-5 };
    twin.check("softmax", &|x, _| ops::softmax(&x[0]));
    let twin = Twin { operands: &[&[3, 70, 24]], weights: &[&[24], &[24]], tolerance: 2e-5 };
    twin.check("group_norm", &|x, w| ops::group_norm(&x[0], [&w[0], &w[1]], 4, 1e-5));
}

#[test]
fn gpu_series_and_positions() {
    let twin = Twin { operands: &[&[2, 33, 48]], weights: &[], tolerance: 2e-6 };
    twin.check("rotary", &|x, _| ops::rotary(&x[0], 3, &ops::Rope::plain(1e4, 16)));
    for (window, average) in [(25, Average::Centred), (24, Average::Trailing)] {
        // An average has no gradient: the product with x makes one.
        twin.check(&format!("moving_average {average:?}"), &|x, _| {
            &ops::moving_average(&x[0], window, average)? * &x[0]
        });
    }
    let twin = Twin { operands: &[&[4, 96, 7], &[4, 96, 7]], weights: &[], tolerance: 3e-5 };
    twin.check("time_frequency", &|x, _| ops::time_frequency(&x[0], &x[1], 0.35));
}

#[test]
fn gpu_activations_and_dropout() {
    type Function = fn(&Tensor) -> Result<Tensor>;
    let functions: [(&str, Function); 7] = [
        ("relu", ops::relu),
        ("gelu", ops::gelu),
        ("gelu_tanh", ops::gelu_tanh),
        ("silu", ops::silu),
        ("mish", ops::mish),
        ("sigmoid", ops::sigmoid),
        ("tanh", ops::tanh),
    ];
    let twin = Twin { operands: &[&[3, 1001]], weights: &[], tolerance: 2e-6 };
    for (name, function) in functions {
        twin.check(name, &|x, _| function(&x[0]));
    }
    let key = Key::new(4, Purpose::Dropout, 1, 1);
    let exact = Twin { tolerance: 0.0, ..twin };
    exact.check("dropout", &|x, _| ops::dropout(&x[0], 0.4, key));
}

#[test]
fn gpu_images() {
    let twin = Twin { operands: &[&[3, 12, 11, 20]], weights: &[], tolerance: 1e-6 };
    let window = Window { stride: 2, padding: 1 };
    twin.check("max_pool2d", &|x, _| ops::max_pool2d(&x[0], 3, window));
    twin.check("average_pool2d", &|x, _| ops::average_pool2d(&x[0], 3, window));
    twin.check("global_average_pool", &|x, _| ops::global_average_pool(&x[0]));
    twin.check("nchw_to_nhwc", &|x, _| ops::nchw_to_nhwc(&x[0]));
    twin.check("nhwc_to_nchw", &|x, _| ops::nhwc_to_nchw(&x[0]));
}

#[test]
fn gpu_what_has_no_kernel_is_computed_on_the_cpu() {
    let twin = |operands, weights| Twin { operands, weights, tolerance: 0.0 };
    let recurrent = twin(&[&[3, 5, 16]], &[&[16, 4], &[16]]);
    recurrent
        .check("recurrent", &|x, w| ops::recurrent(&x[0], &w[0], Some(&w[1]), Cell::Lstm, true));
    let images = twin(&[&[3, 12, 11, 20]], &[]);
    let slides = SlidingWindow { stride: [2, 1], padding: [1, 0], dilation: [1, 1] };
    images.check("max_pool2d of no square", &|x, _| {
        ops::max_pool2d_over(&x[0], [3, 2], slides, Rounding::Up)
    });
    let plain = SlidingWindow { padding: [0, 0], ..slides };
    images.check("average_pool2d of no square", &|x, _| {
        ops::average_pool2d_over(&x[0], [3, 2], plain)
    });
    let precision = Precision::Fp32;
    let attention = Attention { heads: 2, causal: false, dropout: None, precision };
    let shape: &[usize] = &[2, 5, 8];
    twin(&[shape; 3], &[]).check("attention within lengths", &|x, _| {
        ops::attention_within([&x[0], &x[1], &x[2]], attention, Some(&[5, 3]))
    });
}

/// A few steps with this optimizer and these keys of `[train]` where `devices` says: the loss on
/// what was not trained on.
fn loss_of(optimizer: &str, train: &str, devices: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "schema = 1\n[experiment]\nname = \"rules\"\n[model]\nname = \"mlp\"\n\
         [data]\nname = \"shapes\"\nclasses = 3\ntrain_per_class = 16\nval_per_class = 8\n\
         image_size = 8\n[train]\nsteps = 6\nbatch_size = 8\n{train}\n\
         [ema]\ndecay = 0.5\n[optimizer]\nname = \"{optimizer}\"\nlr = 0.003\n\
         [scheduler]\nname = \"constant\"\n"
    );
    ddprun::internals::files::write_atomic(&folder.path().join("rules.toml"), text.as_bytes())
        .unwrap();
    let mut command = ddprun(folder.path());
    command.arg("rules.toml").env("CUDA_VISIBLE_DEVICES", devices);
    for key in ["DDPRUN_DATA__TRAIN_PER_CLASS", "DDPRUN_DATA__VAL_PER_CLASS"] {
        command.env_remove(key);
    }
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{optimizer}: {}", String::from_utf8_lossy(&ended.stderr));
    let files = walkdir(folder.path());
    let events = files.iter().find(|path| path.ends_with("events.jsonl")).unwrap();
    let losses = std::fs::read_to_string(events).unwrap();
    let loss = losses.lines().rev().find_map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["metrics"]["val/loss"].as_f64()
    });
    loss.unwrap()
}

#[test]
fn gpu_every_optimizer_moves_weights_as_on_the_cpu() {
    if gpu("optimizers").is_none() {
        return;
    }
    // Noise lets the CPU decide about the update; otherwise the GPU clips by itself.
    let noisy = ("sgd", "gradient_noise = 0.01");
    let clipped = "clip_grad_norm = 0.05\nglobal_batch_size = 24";
    let optimizers = ddprun::optim::Optimizers::default();
    let all = optimizers.names().map(|name| (name, clipped));
    for (name, train) in all.chain([noisy]) {
        let [here, there] = ["", "0"].map(|devices| loss_of(name, train, devices));
        let difference = (here - there).abs() / here;
        println!("TABLE | {name} | {difference:.1e} of the loss | allowed 1e-03 |");
        assert!(difference < 1e-3, "{name}: {here} on the CPU, {there} on the GPU");
    }
}

#[test]
fn gpu_embedding_and_losses() {
    let indices = Tensor::new(&[3u32, 0, 3, 7, 3, 8], &Device::Cpu).unwrap();
    let twin = Twin { operands: &[], weights: &[&[9, 33]], tolerance: 1e-6 };
    twin.check("embedding", &|_, w| ops::embedding(&indices, &w[0]));
    let labels = Tensor::new(&[299i64, 0, ops::IGNORED_LABEL, 5], &Device::Cpu).unwrap();
    let twin = Twin { operands: &[&[4, 300]], weights: &[], tolerance: 3e-6 };
    twin.check("cross_entropy", &|x, _| ops::cross_entropy(&x[0], &labels, 0.1));
    let twin = Twin { operands: &[&[40, 50], &[40, 50]], weights: &[], tolerance: 3e-6 };
    twin.check("mse", &|x, _| ops::mse(&x[0], &x[1]));
    twin.check("mae", &|x, _| ops::mae(&x[0], &x[1]));
}

#[test]
fn gpu_initial_weights_are_those_of_the_cpu() {
    let Some(device) = gpu("initial weights") else { return };
    let drawn = |device: &Device| {
        let builder = ddprun::nn::Builder::on(5, device);
        let param = builder.param("weight", &[7, 9], Init::Normal(1.0)).unwrap();
        flat(param.var().unwrap())
    };
    assert_eq!(drawn(&Device::Cpu), drawn(&device));
}

/// The program, in a folder. Where it was carried to another machine, its script says where it is
/// (benches/gpu.sh).
fn ddprun(folder: &Path) -> Command {
    let mut command = Command::new(carried("DDPRUN", env!("CARGO_BIN_EXE_ddprun")));
    command.current_dir(folder);
    command
}

/// The same with a short training; the warm-up is an epoch, and two are too few for what the
/// experiment expects.
fn training(folder: &Path) -> Command {
    let root = PathBuf::from(carried("PACK_ROOT", env!("CARGO_MANIFEST_DIR")));
    let mut command = ddprun(folder);
    command.arg(root.join("experiments/quickstart.toml"));
    command.args(["train.epochs=2", "expect.\"val/accuracy\".at_least=0.0"]);
    command
}

fn carried(name: &str, built: &str) -> OsString {
    std::env::var_os(name).unwrap_or(built.into())
}

/// A whole run on GPUs: what it wrote to the terminal.
fn trains(name: &str, changes: &[&str]) {
    if gpu(name).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ended = training(folder.path()).args(changes).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    if said.contains("refuses two ranks on one GPU") {
        println!("SKIPPED {name}: the NCCL of this machine is too old");
        return;
    }
    assert!(ended.status.success() && said.contains("cuda:0"), "{name}: {said}");
    println!("TABLE | {name} | trained | {} |", shares(folder.path()));
}

/// A run on two machines that are two folders of this one, and see these GPUs.
fn trains_on_two_machines(name: &str, see: [&str; 2], changes: &[&str]) {
    if gpu(name).is_none() {
        return;
    }
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let token = folders[0].path().join("run.token");
    let made = ddprun(folders[0].path()).args(["token", "run.token"]).status().unwrap();
    assert!(made.success());
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let started: Vec<_> = (0..2)
        .map(|node| {
            training(folders[node].path())
                .args(["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"])
                .args(["--node-rank", &node.to_string(), "--master-port", &free])
                .arg("--token-file")
                .arg(&token)
                .args(changes)
                .env("CUDA_VISIBLE_DEVICES", see[node])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for (node, machine) in started.into_iter().enumerate() {
        let ended = machine.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{name}, machine {node}: {said}");
    }
    println!("TABLE | {name} | trained | {} |", shares(folders[0].path()));
}

/// What the run says about its time: the share of communication, and of the rest.
fn shares(folder: &Path) -> String {
    let files = walkdir(folder);
    let events = files.iter().find(|path| path.ends_with("events.jsonl")).unwrap();
    let events = std::fs::read_to_string(events).unwrap();
    let time = events.lines().rev().find_map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event.get("phase_seconds").cloned()
    });
    let time = time.unwrap();
    let of = |name: &str| time[name].as_f64().unwrap();
    let step = of("data") + of("forward") + of("backward") + of("communication") + of("optimizer");
    format!("communication {:.1} % of the steps' time", 100.0 * of("communication") / step)
}

/// All files below a folder.
fn walkdir(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}

#[test]
fn gpu_a_run_on_one_gpu_and_one_with_two_ranks_on_it() {
    let alone = "distributed.devices=1";
    trains("one GPU", &[alone]);
    trains("one GPU, bf16", &[alone, "train.precision=bf16"]);
    trains("one GPU, fp16", &[alone, "train.precision=fp16"]);
    trains("two ranks on one GPU", &["distributed.devices=[0, 0]"]);
    let hook = "distributed.comm_hook=bf16";
    trains("two ranks on one GPU, compressed", &["distributed.devices=[0, 0]", hook]);
}

#[test]
fn gpu_two_ranks_on_one_gpu_through_nccl() {
    trains(
        "two ranks on one GPU, NCCL",
        &["distributed.devices=[0, 0]", "distributed.backend=nccl"],
    );
}

#[test]
fn gpu_averages_of_weights_and_passes_as_one_graph() {
    let alone = "distributed.devices=1";
    trains("one GPU, averaged weights", &[alone, "ema.decay=0.9"]);
    // The run ends with an error if a replay differs from its pass by a bit.
    let graph = ["train.cuda_graph=true", "train.global_batch_size=32", "distributed.shards=1"];
    for precision in ["fp32", "bf16"] {
        let precision = format!("train.precision={precision}");
        let changes = [&graph[..], &[alone, &precision]].concat();
        trains(&format!("one GPU, graph, {precision}"), &changes);
    }
}

#[test]
fn gpu_several_passes_in_a_step_and_several_ranks_as_graphs() {
    let graph = "train.cuda_graph=true";
    let passes = [
        graph,
        "distributed.devices=1",
        "distributed.shards=1",
        "train.gradient_accumulation_steps=3",
        "train.global_batch_size=96",
    ];
    trains("one GPU, graph, 3 passes in a step", &passes);
    trains("two ranks on one GPU, graph", &[graph, "distributed.devices=[0, 0]"]);
}

#[test]
fn gpu_two_machines_with_a_gpu_each() {
    let staged = ["distributed.backend=tcp"];
    trains_on_two_machines("two machines, one GPU, through TCP", ["0", "0"], &staged);
    let gpus = ops::visible_gpus().and_then(std::result::Result::ok).map_or(0, |gpus| gpus.len());
    if gpus < 2 {
        println!("SKIPPED two machines, NCCL: {gpus} GPUs");
        return;
    }
    trains_on_two_machines("two machines, NCCL", ["0", "1"], &[]);
    let hook = ["distributed.comm_hook=bf16"];
    trains_on_two_machines("two machines, NCCL, bf16", ["0", "1"], &hook);
}

#[test]
fn gpu_a_run_with_nccl() {
    let gpus = ops::visible_gpus().and_then(std::result::Result::ok).map_or(0, |gpus| gpus.len());
    if gpus < 2 {
        println!("SKIPPED NCCL: {gpus} GPUs");
        return;
    }
    trains("two GPUs", &["distributed.devices=2"]);
    for hook in ["bf16", "fp16"] {
        let change = format!("distributed.comm_hook={hook}");
        trains(&format!("two GPUs, {hook}"), &["distributed.devices=2", &change]);
    }
}
