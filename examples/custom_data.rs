//! Your own data set, loss and metric: registered by your program, chosen in TOML, their options
//! checked as ddprun's own are.
//!
//! ```text
//! cargo run --release --example custom_data -- examples/custom_data.toml
//! cargo run --release --example custom_data -- plan examples/custom_data.toml data.nois=0.2
//! ```
//!
//! The second command is refused: `did you mean data.noise?`

use std::f64::consts::TAU;
use std::process::ExitCode;
use std::sync::Arc;

use candle_core::{D, Result, Tensor};
use ddprun::config::kind::{Capability, Kind, Modality};
use ddprun::data::{self, DataSource, Dataset, OpenRequest, SampleError, Splits, Target};
use ddprun::kinds::Kinds;
use ddprun::loss::Loss;
use ddprun::metric::{Metric, MetricState};
use ddprun::plan::{MetricContext, Mode, Targets};
use ddprun::rng::{Key, Purpose};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// arms of a spiral in the plane; the arm is the class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Spirals {
    /// number of arms.
    #[schemars(range(min = 2, max = 20))]
    arms: u32,
    /// points of each arm to train on; a fifth as many validate.
    #[schemars(range(min = 5, max = 100_000))]
    points: usize,
    /// standard deviation of the points around their arm.
    #[schemars(range(min = 0.0, max = 1.0))]
    noise: f64,
}

impl Default for Spirals {
    fn default() -> Self {
        Self { arms: 3, points: 200, noise: 0.05 }
    }
}

impl Kind for Spirals {
    const NAME: &'static str = "spirals";
    const CAPABILITIES: &'static [Capability] = &[Capability::Samples(Modality::Table)];
}

impl DataSource for Spirals {
    fn open(&self, reading: &OpenRequest<'_>) -> std::result::Result<Splits, data::Error> {
        let seed = reading.survey.seed;
        let part = |part, per_arm| Arc::new(Points { spirals: self.clone(), seed, part, per_arm });
        let classes = (0..self.arms).map(|arm| format!("arm {arm}")).collect();
        let (train, val) = (part(0, self.points), part(1, self.points / 5));
        Ok(Splits { train, val, test: None, classes })
    }
}

/// One split; its points are drawn when they are asked for.
struct Points {
    spirals: Spirals,
    seed: u64,
    part: u64,
    per_arm: usize,
}

impl Dataset for Points {
    fn len(&self) -> usize {
        self.per_arm * self.spirals.arms as usize
    }

    fn shape(&self) -> &[usize] {
        &[2]
    }

    fn classifies(&self) -> bool {
        true
    }

    fn name(&self, index: usize) -> String {
        format!("point {index}")
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> std::result::Result<Target, SampleError> {
        let arm = index % self.spirals.arms as usize;
        let mut draws = Key::new(self.seed, Purpose::Generate, self.part, index as u64).stream();
        let along = draws.uniform();
        let angle = TAU * (along + arm as f64 / f64::from(self.spirals.arms));
        for place in [along * angle.cos(), along * angle.sin()] {
            values.push((place + self.spirals.noise * draws.normal()) as f32);
        }
        Ok(Target::Class(arm as u32))
    }
}

/// cross entropy that looks away from what is already right (Lin et al. 2017).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Focal {
    /// how much it looks away; 0 is cross entropy.
    #[schemars(range(min = 0.0, max = 10.0))]
    gamma: f64,
}

impl Default for Focal {
    fn default() -> Self {
        Self { gamma: 2.0 }
    }
}

impl Kind for Focal {
    const NAME: &'static str = "focal";
}

impl Loss for Focal {
    fn targets(&self) -> Targets {
        Targets::Classes
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let right = log_probability(outputs, targets)?;
        let wrong = right.exp()?.affine(-1.0, 1.0)?; // probability of the other classes
        (wrong.powf(self.gamma)? * right)?.mean_all()?.neg()
    }
}

/// Logarithm of the probability of the right class, (n).
fn log_probability(outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let right = outputs.gather(&targets.unsqueeze(1)?, D::Minus1)?;
    right.squeeze(1)? - outputs.log_sum_exp(D::Minus1)?
}

/// Mean probability of the right class.
#[derive(Debug)]
pub(crate) struct Confidence;

impl Metric for Confidence {
    fn name(&self) -> &'static str {
        "confidence"
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, answers: &MetricContext) -> Option<String> {
        (!answers.has_classes())
            .then(|| "is a classification metric, but the loss is a regression loss".to_owned())
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        let probabilities = log_probability(outputs, targets)?.exp()?.to_vec1::<f32>()?;
        Ok(MetricState::of_samples(&probabilities.into_iter().map(f64::from).collect::<Vec<_>>()))
    }
}

/// Adds the kinds of this file.
pub(crate) fn register(kinds: &mut Kinds) {
    kinds.data.add::<Spirals>();
    kinds.losses.add::<Focal>();
    kinds.metrics.add(Confidence);
}

fn main() -> ExitCode {
    let mut kinds = Kinds::default();
    register(&mut kinds);
    ddprun::cli::run(std::env::args_os(), &kinds)
}
