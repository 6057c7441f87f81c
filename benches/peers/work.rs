//! Measured work: models with their samples, and the plan of a run on them.

use std::path::Path;

use candle_core::{Device, Result, Tensor};
use ddprun::config;
use ddprun::data::Batch;
use ddprun::kinds::Kinds;
use ddprun::ops;
use ddprun::plan::{DataFacts, Facts, Modality, Plan, SourcePlan};
use ddprun::rng::{Key, Purpose};

/// Data that a work is trained on.
pub(crate) struct Shape {
    pub(crate) ranks: u32,
    /// Threads of each rank.
    pub(crate) threads: u32,
    /// "fp32" or "bf16"
    pub(crate) dtype: String,
}

/// Different batches of each rank.
pub(crate) const BATCHES: usize = 4;

/// One model at one batch size; `models.py` has the same under the same name.
pub(crate) struct Work {
    pub(crate) name: &'static str,
    /// Shape of a sample.
    sample: &'static [usize],
    kind: Kind,
    /// Settings of its experiment besides `work.toml`.
    settings: &'static [&'static str],
}

/// Kind of sample, and its target.
#[derive(Clone, Copy)]
enum Kind {
    /// Noise, and one of so many classes.
    Classes(usize),
    /// Tokens out of so many, and the token that follows each.
    Text(usize),
    /// Noise (time, series), and as much that follows.
    Series,
}

/// All of them. A new model is a line here.
pub(crate) const WORKS: [Work; 6] = [
    Work {
        name: "mlp",
        sample: &[1, 28, 28],
        kind: Kind::Classes(10),
        settings: &["model.hidden=[512,512]"],
    },
    Work {
        name: "resnet18_cifar",
        sample: &[3, 32, 32],
        kind: Kind::Classes(10),
        settings: &["model.name=resnet18", "model.stem=cifar"],
    },
    Work {
        name: "resnet18_imagenet",
        sample: &[3, 224, 224],
        kind: Kind::Classes(90),
        settings: &["model.name=resnet18", "train.batch_size=16"],
    },
    Work {
        name: "gpt_cpu",
        sample: &[64],
        kind: Kind::Text(65),
        settings: &[
            "data.name=tokens",
            "data.file=memory",
            "data.seq_len=64",
            "model.name=gpt",
            "model.n_layers=4",
            "model.n_heads=4",
            "model.d_model=128",
            "train.batch_size=12",
            "train.clip_grad_norm=1.0",
            "optimizer.name=adamw",
            "optimizer.lr=1e-3",
            "optimizer.betas=[0.9,0.99]",
            "optimizer.weight_decay=0.1",
        ],
    },
    Work {
        name: "gpt_baby",
        sample: &[256],
        kind: Kind::Text(65),
        settings: &[
            "data.name=tokens",
            "data.file=memory",
            "data.seq_len=256",
            "model.name=gpt",
            "model.n_layers=6",
            "model.n_heads=6",
            "model.d_model=384",
            "train.batch_size=12",
            "train.clip_grad_norm=1.0",
            "optimizer.name=adamw",
            "optimizer.lr=1e-3",
            "optimizer.betas=[0.9,0.99]",
            "optimizer.weight_decay=0.1",
        ],
    },
    Work {
        name: "itransformer",
        sample: &[96, 321],
        kind: Kind::Series,
        settings: &[
            "data.name=csv_forecast",
            "data.file=memory",
            "data.seq_len=96",
            "data.pred_len=96",
            "model.name=itransformer",
            "model.n_layers=2",
            "model.n_heads=8",
            "model.d_model=128",
            "model.d_ff=256",
            "model.dropout=0.0",
            "train.batch_size=16",
            "loss.name=mse",
            "optimizer.name=adam",
            "optimizer.lr=1e-4",
            "optimizer.weight_decay=0.0",
        ],
    },
];

impl Work {
    pub(crate) fn of(name: &str) -> Option<&'static Self> {
        WORKS.iter().find(|work| work.name == name)
    }

    /// The plan in `shape`, decided as the command line decides it.
    pub(crate) fn plan(&self, shape: &Shape, kinds: &Kinds) -> Plan {
        let Shape { ranks, threads, dtype } = shape;
        let mut changes: Vec<String> = self.settings.iter().map(|&change| change.into()).collect();
        changes.push(format!("distributed.devices={ranks}"));
        changes.push(format!("distributed.threads_per_rank={threads}"));
        changes.push(format!("train.precision={dtype}"));
        let (path, text) = (Path::new("benches/peers/work.toml"), include_str!("work.toml"));
        let loaded = config::load_text(path, text, &changes, &kinds.vocabulary())
            .unwrap_or_else(|problems| panic!("{}", problems.page(false, 100)));
        Plan::new(&loaded, &self.facts(*ranks), kinds)
            .unwrap_or_else(|problems| panic!("{}", problems.page(false, 100)))
    }

    fn facts(&self, ranks: u32) -> Facts {
        let (n_classes, source, target) = match self.kind {
            Kind::Classes(n) => (n, SourcePlan::new("mnist", Modality::Images), &[][..]),
            Kind::Text(n) => (n, SourcePlan::new("tokens", Modality::Text), self.sample),
            Kind::Series => (0, SourcePlan::new("csv_forecast", Modality::Series), self.sample),
        };
        let data = DataFacts {
            source,
            // More than any batch; the samples themselves are made once for each of `BATCHES`.
            n_train: 1024 * ranks as usize,
            n_val: 1,
            classes: (0..n_classes).map(|class| class.to_string()).collect(),
            sample: Some(self.sample.to_vec()),
            target: target.to_vec(),
            ..DataFacts::default()
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (bf16, bf16_is_faster) = (ops::bf16_instructions(), ops::bf16_is_faster());
        Facts { cores, bf16, bf16_is_faster, ..Facts::of(data) }
    }

    /// The `index`-th batch of a rank: noise of mean 0 and variance 1 or tokens, and their answers.
    pub(crate) fn batch(&self, n: usize, rank: u32, index: usize) -> Result<Batch> {
        let key = |part| Key::new(u64::from(rank), Purpose::Generate, part, index as u64);
        let (key, of_targets) = (key(0), key(1));
        let shape: Vec<usize> = std::iter::once(n).chain(self.sample.iter().copied()).collect();
        let elements: usize = shape.iter().product();
        // Uniform over an interval of length sqrt(12).
        let noise = |key: &Key, i: usize| (3.464_101_6 * (key.uniform(i as u64) - 0.5)) as f32;
        let classes = |key: &Key, n: usize, count| -> Vec<u32> {
            (0..count).map(|i| (key.uniform(i as u64) * n as f64) as u32).collect()
        };
        let cpu = &Device::Cpu;
        let values = |key: &Key| {
            let values = (0..elements).map(|i| noise(key, i)).collect();
            Tensor::from_vec(values, shape.clone(), cpu)
        };
        let (inputs, targets) = match self.kind {
            Kind::Classes(many) => {
                (values(&key)?, Tensor::from_vec(classes(&of_targets, many, n), n, cpu)?)
            }
            Kind::Text(many) => {
                let tokens = |key| classes(key, many, elements);
                let next = Tensor::from_vec(tokens(&of_targets), shape.clone(), cpu)?;
                (Tensor::from_vec(tokens(&key), shape, cpu)?, next)
            }
            Kind::Series => (values(&key)?, values(&of_targets)?),
        };
        Ok(Batch {
            inputs,
            targets,
            samples: (0..n as u32).collect(),
            segments: None,
            unreadable: 0,
        })
    }
}
