//! What is measured: models with their samples, and the plan of a run on them.

use std::path::Path;

use candle_core::{Device, Result, Tensor};
use ddprun::config::{self, Vocabulary};
use ddprun::data::Batch;
use ddprun::model::Registry;
use ddprun::plan::{DataFacts, Facts, Plan, SourcePlan};
use ddprun::rng::{Key, Purpose};

/// Different batches of each rank.
pub(crate) const BATCHES: usize = 4;

/// One model at one batch size; `models.py` has the same under the same name.
pub(crate) struct Work {
    pub(crate) name: &'static str,
    /// Shape of a sample.
    sample: &'static [usize],
    classes: usize,
    /// What its experiment says beside `work.toml`.
    settings: &'static [&'static str],
}

/// All of them. A new model is a line here.
pub(crate) const WORKS: [Work; 3] = [
    Work { name: "mlp", sample: &[1, 28, 28], classes: 10, settings: &["model.hidden=[512,512]"] },
    Work {
        name: "resnet18_cifar",
        sample: &[3, 32, 32],
        classes: 10,
        settings: &["model.name=resnet18", "model.stem=cifar"],
    },
    Work {
        name: "resnet18_imagenet",
        sample: &[3, 224, 224],
        classes: 90,
        settings: &["model.name=resnet18", "train.batch_size=16"],
    },
];

impl Work {
    pub(crate) fn of(name: &str) -> Option<&'static Self> {
        WORKS.iter().find(|work| work.name == name)
    }

    /// The plan for `ranks` ranks of `threads` threads, decided as the command line decides it.
    pub(crate) fn plan(&self, ranks: u32, threads: u32, registry: &Registry) -> Plan {
        let models = registry.names().into_iter().map(str::to_owned).collect();
        let mut changes: Vec<String> = self.settings.iter().map(|&change| change.into()).collect();
        changes.push(format!("distributed.devices={ranks}"));
        changes.push(format!("distributed.threads_per_rank={threads}"));
        let (path, text) = (Path::new("benches/peers/work.toml"), include_str!("work.toml"));
        let loaded = config::load_text(path, text, &changes, &Vocabulary { models })
            .unwrap_or_else(|problems| panic!("{}", problems.page(false, 100)));
        let describe = |model: &_| registry.describe(model);
        Plan::new(&loaded, &self.facts(ranks), &describe)
            .unwrap_or_else(|problems| panic!("{}", problems.page(false, 100)))
    }

    fn facts(&self, ranks: u32) -> Facts {
        let data = DataFacts {
            source: SourcePlan::Mnist { dir: "memory".into() },
            // More than any batch; the samples themselves are made once for each of `BATCHES`.
            n_train: 1024 * ranks as usize,
            n_val: 1,
            classes: (0..self.classes).map(|class| class.to_string()).collect(),
            sample: Some(self.sample.to_vec()),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Facts { cores, data, launched_world: None }
    }

    /// The `index`-th batch of a rank: noise of mean 0 and variance 1, and labels.
    pub(crate) fn batch(&self, n: usize, rank: u32, index: usize) -> Result<Batch> {
        let key = Key::new(u64::from(rank), Purpose::Generate, 0, index as u64);
        let dims: Vec<usize> = std::iter::once(n).chain(self.sample.iter().copied()).collect();
        // Uniform over an interval of length sqrt(12).
        let value = |i: usize| (3.464_101_6 * (key.uniform(i as u64) - 0.5)) as f32;
        let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
        let labels: Vec<u32> = (0..n).map(|i| (i * 7 % self.classes) as u32).collect();
        Ok(Batch {
            inputs: Tensor::from_vec(values, dims, &Device::Cpu)?,
            targets: Tensor::from_vec(labels, n, &Device::Cpu)?,
            samples: (0..n as u32).collect(),
        })
    }
}
