//! Losses of preferences, which compare the log-probabilities of a chosen and a rejected answer:
//! `loss.name = "dpo"`, `"simpo"`, `"orpo"`.
//!
//! Outputs are (n, 2), the log-probabilities of each pair's answers; targets are (n, 4), those of
//! the reference, and the tokens that were added up. Each formula stands once, over numbers that
//! carry their derivatives.

use std::ops::{Add, Mul, Neg, Sub};

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::loss::Loss;
use crate::plan::Targets;

/// Direct preference optimization (Rafailov et al. 2023, <https://arxiv.org/abs/2305.18290>), and
/// losses like it: a policy is compared with the model that it was at the start, as TRL's
/// `DPOTrainer` does. For pairs of answers (`data.name = "preferences"`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dpo {
    /// how strongly the policy is held to the reference: rewards are beta times the log-ratio of
    /// the two.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub beta: f64,
    /// the formula, by its name in TRL.
    pub loss_type: DpoLoss,
    /// share of pairs of which the wrong answer was chosen, for `sigmoid` (conservative DPO),
    /// `robust` and `exo_pair`. As in TRL it applies to val/loss, too.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 0.5))]
    pub label_smoothing: f64,
}

/// Formulas of `dpo`, over the log-ratios c and r of the chosen and the rejected answer, and h = c -
/// r.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DpoLoss {
    /// -log sigmoid(beta h): DPO.
    #[default]
    Sigmoid,
    /// max(0, 1 - beta h): `SLiC` (Zhao et al. 2023, <https://arxiv.org/abs/2305.10425>).
    Hinge,
    /// (h - 1 / (2 beta))^2 with means over tokens: IPO (Azar et al. 2023,
    /// <https://arxiv.org/abs/2310.12036>).
    Ipo,
    /// DPO without the bias of wrong labels (Chowdhury et al. 2024,
    /// <https://arxiv.org/abs/2403.00409>).
    Robust,
    /// the reverse divergence of EXO (Ji et al. 2024, <https://arxiv.org/abs/2402.00856>).
    ExoPair,
    /// noise-contrastive alignment (Chen et al. 2024, <https://arxiv.org/abs/2402.05369>).
    NcaPair,
    /// (c - 1 / (2 beta))^2 + (r + 1 / (2 beta))^2: SPPO (Wu et al. 2024,
    /// <https://arxiv.org/abs/2405.00675>).
    SppoHard,
    /// anchored (D'Oosterlinck et al. 2024, <https://arxiv.org/abs/2408.06266>): chosen answers
    /// become likelier.
    ApoZero,
    /// the same for models that are better than the chosen answers, which become less likely.
    ApoDown,
}

/// simple preference optimization (Meng et al. 2024, <https://arxiv.org/abs/2405.14734>): mean
/// log-probabilities of the answers' tokens with a margin, and no reference. For pairs of answers
/// (`data.name = "preferences"`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SimPo {
    /// rewards are beta times the mean log-probability of an answer's tokens.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub beta: f64,
    /// reward by which the chosen answer should be better (TRL's `simpo_gamma`).
    #[schemars(range(min = 0.0))]
    pub gamma: f64,
    /// share of pairs of which the wrong answer was chosen.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 0.5))]
    pub label_smoothing: f64,
}

/// odds ratio preference optimization (Hong et al. 2024, <https://arxiv.org/abs/2403.07691>): the
/// cross-entropy of the chosen answer, and beta times -log sigmoid of the log-ratio of the answers'
/// odds; no reference. For pairs of answers (`data.name = "preferences"`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Orpo {
    /// weight of the odds ratio: the paper's lambda.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub beta: f64,
}

impl Default for Dpo {
    /// TRL's.
    fn default() -> Self {
        Self { beta: 0.1, loss_type: DpoLoss::Sigmoid, label_smoothing: 0.0 }
    }
}

impl Default for SimPo {
    /// The paper's.
    fn default() -> Self {
        Self { beta: 2.0, gamma: 0.5, label_smoothing: 0.0 }
    }
}

impl Default for Orpo {
    /// The paper's and TRL's.
    fn default() -> Self {
        Self { beta: 0.1 }
    }
}

impl Kind for Dpo {
    const NAME: &'static str = "dpo";

    fn check(&self) -> Vec<OptionConflict> {
        let smooths =
            matches!(self.loss_type, DpoLoss::Sigmoid | DpoLoss::Robust | DpoLoss::ExoPair);
        let idle = || OptionConflict {
            key: "label_smoothing",
            with: &["loss_type"],
            what: "does nothing with this `loss_type`: it belongs to `sigmoid`, `robust` and \
                   `exo_pair`"
                .to_owned(),
        };
        if self.label_smoothing > 0.0 && !smooths { vec![idle()] } else { Vec::new() }
    }
}

impl Kind for SimPo {
    const NAME: &'static str = "simpo";
}

impl Kind for Orpo {
    const NAME: &'static str = "orpo";
}

impl Loss for Dpo {
    fn targets(&self) -> Targets {
        Targets::Preferences
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        mean(outputs, targets, |pair| self.of(pair))
    }

    fn weighs_labels(&self) -> bool {
        true
    }

    fn is_never_negative(&self) -> bool {
        self.loss_type != DpoLoss::Robust
    }

    fn needs_reference(&self) -> bool {
        true
    }

    fn rewards(&self, outputs: &Tensor, targets: &Tensor) -> Result<Vec<[f64; 2]>> {
        let rewards = |pair: &Pair| self.ratios(pair).map(|ratio| self.beta * ratio.value);
        Ok(Pair::of_batch(outputs, targets)?.iter().map(rewards).collect())
    }
}

impl Dpo {
    /// The log-ratios of the two answers: those of their tokens on average for IPO, as in TRL.
    fn ratios(&self, pair: &Pair) -> [Dual; 2] {
        let [chosen, rejected] = [0, 1].map(|at| pair.policy(at) - pair.reference[at]);
        match self.loss_type {
            DpoLoss::Ipo => [chosen * (1.0 / pair.tokens[0]), rejected * (1.0 / pair.tokens[1])],
            _ => [chosen, rejected],
        }
    }

    fn of(&self, pair: &Pair) -> Dual {
        let Self { beta, label_smoothing: smoothing, .. } = *self;
        let [chosen, rejected] = self.ratios(pair);
        let margin = chosen - rejected;
        let x = margin * beta;
        match self.loss_type {
            DpoLoss::Sigmoid => smoothed(x, smoothing),
            DpoLoss::Hinge => (x * -1.0 + 1.0).relu(),
            DpoLoss::Ipo => (margin - 1.0 / (2.0 * beta)).square(),
            DpoLoss::Robust => {
                let (right, wrong) = (x.log_sigmoid(), (-x).log_sigmoid());
                (wrong * smoothing - right * (1.0 - smoothing)) * (1.0 / (1.0 - 2.0 * smoothing))
            }
            DpoLoss::ExoPair => {
                // As in TRL: without any smoothing the divergence would be infinite.
                let smoothing = if smoothing > 0.0 { smoothing } else { 1e-3 };
                let part = |x: Dual, share: f64| x.sigmoid() * (x.log_sigmoid() - share.ln());
                part(x, 1.0 - smoothing) + part(-x, smoothing)
            }
            DpoLoss::NcaPair => {
                let [chosen, rejected] = [chosen * beta, rejected * beta];
                let both = (-chosen).log_sigmoid() + (-rejected).log_sigmoid();
                chosen.log_sigmoid() * -1.0 - both * 0.5
            }
            DpoLoss::SppoHard => (chosen - 0.5 / beta).square() + (rejected + 0.5 / beta).square(),
            DpoLoss::ApoZero => (rejected * beta).sigmoid() - (chosen * beta).sigmoid() + 1.0,
            DpoLoss::ApoDown => (chosen * beta).sigmoid() - x.sigmoid() + 1.0,
        }
    }
}

impl Loss for SimPo {
    fn targets(&self) -> Targets {
        Targets::Preferences
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        mean(outputs, targets, |pair| {
            let [chosen, rejected] = pair.means();
            smoothed((chosen - rejected) * self.beta - self.gamma, self.label_smoothing)
        })
    }

    fn weighs_labels(&self) -> bool {
        true
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn rewards(&self, outputs: &Tensor, targets: &Tensor) -> Result<Vec<[f64; 2]>> {
        scaled_means(outputs, targets, self.beta)
    }
}

impl Loss for Orpo {
    fn targets(&self) -> Targets {
        Targets::Preferences
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        mean(outputs, targets, |pair| {
            let [chosen, rejected] = pair.means();
            // log(p / (1 - p))
            let log_odds = |mean: Dual| mean - mean.log_one_minus_exp();
            let ratio = log_odds(chosen) - log_odds(rejected);
            ratio.log_sigmoid() * -self.beta - chosen
        })
    }

    fn weighs_labels(&self) -> bool {
        true
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn rewards(&self, outputs: &Tensor, targets: &Tensor) -> Result<Vec<[f64; 2]>> {
        scaled_means(outputs, targets, self.beta)
    }
}

/// -log sigmoid(x), of which a share counts for the other answer.
fn smoothed(x: Dual, smoothing: f64) -> Dual {
    x.log_sigmoid() * (smoothing - 1.0) - (-x).log_sigmoid() * smoothing
}

/// Rewards without a reference.
fn scaled_means(outputs: &Tensor, targets: &Tensor, beta: f64) -> Result<Vec<[f64; 2]>> {
    let rewards = |pair: &Pair| pair.means().map(|mean| beta * mean.value);
    Ok(Pair::of_batch(outputs, targets)?.iter().map(rewards).collect())
}

/// A pair of answers, the chosen one first.
#[derive(Clone, Copy, Debug)]
struct Pair {
    policy: [f64; 2],
    reference: [f64; 2],
    tokens: [f64; 2],
}

impl Pair {
    /// The pairs of outputs (n, 2) and targets (n, 4).
    fn of_batch(outputs: &Tensor, targets: &Tensor) -> Result<Vec<Self>> {
        let rows = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.to_vec2::<f64>();
        let pair = |(policy, target): (Vec<f64>, Vec<f64>)| match (&policy[..], &target[..]) {
            (&[chosen, rejected], &[reference, other, n_chosen, n_rejected]) => Ok(Self {
                policy: [chosen, rejected],
                reference: [reference, other],
                // An answer that was cut off has no tokens.
                tokens: [n_chosen.max(1.0), n_rejected.max(1.0)],
            }),
            _ => bail!("outputs {:?} for targets {:?}", policy.len(), target.len()),
        };
        rows(outputs)?.into_iter().zip(rows(targets)?).map(pair).collect()
    }

    /// Log-probability of an answer, 0 the chosen one.
    fn policy(&self, at: usize) -> Dual {
        let mut slope = [0.0; 2];
        slope[at] = 1.0;
        Dual { value: self.policy[at], slope }
    }

    /// Mean log-probabilities of the answers' tokens.
    fn means(&self) -> [Dual; 2] {
        [0, 1].map(|at| self.policy(at) * (1.0 / self.tokens[at]))
    }
}

/// Mean of a loss over the pairs of a batch, scalar f32, in the graph.
fn mean(outputs: &Tensor, targets: &Tensor, loss: impl Fn(&Pair) -> Dual) -> Result<Tensor> {
    let losses: Vec<Dual> = Pair::of_batch(&outputs.detach(), targets)?.iter().map(loss).collect();
    let n = losses.len().max(1) as f64;
    let value = (losses.iter().map(|loss| loss.value).sum::<f64>() / n) as f32;
    let slopes = losses.iter().flat_map(|loss| loss.slope.map(|slope| (slope / n) as f32));
    let slopes = Tensor::from_vec(slopes.collect(), (losses.len(), 2), outputs.device())?;
    outputs.apply_op1(Computed { value, slopes })
}

/// A value whose gradient in the operand is known.
struct Computed {
    value: f32,
    slopes: Tensor,
}

impl CustomOp1 for Computed {
    fn name(&self) -> &'static str {
        "preferences"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.value]), ().into()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        self.slopes.broadcast_mul(gradient).map(Some)
    }
}

/// A number that follows from the log-probabilities of both answers, and its derivatives in them.
#[derive(Clone, Copy, Debug)]
struct Dual {
    value: f64,
    slope: [f64; 2],
}

impl Dual {
    /// f(x), where `slope` is f'(x).
    fn chained(self, value: f64, slope: f64) -> Self {
        Self { value, slope: self.slope.map(|of| slope * of) }
    }

    fn sigmoid(self) -> Self {
        let value = sigmoid(self.value);
        self.chained(value, value * sigmoid(-self.value))
    }

    fn log_sigmoid(self) -> Self {
        let x = self.value;
        let value = x.min(0.0) - (-x.abs()).exp().ln_1p();
        self.chained(value, sigmoid(-x))
    }

    /// log(1 - e^x) for x < 0.
    fn log_one_minus_exp(self) -> Self {
        // Of an answer that is certain the odds are infinite.
        let x = self.value.min(-1e-12);
        self.chained((-x.exp_m1()).ln(), -1.0 / (-x).exp_m1())
    }

    fn relu(self) -> Self {
        self.chained(self.value.max(0.0), f64::from(self.value > 0.0))
    }

    fn square(self) -> Self {
        self.chained(self.value * self.value, 2.0 * self.value)
    }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

impl Add for Dual {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let slope = [0, 1].map(|at| self.slope[at] + other.slope[at]);
        Self { value: self.value + other.value, slope }
    }
}

impl Sub for Dual {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Neg for Dual {
    type Output = Self;

    fn neg(self) -> Self {
        self * -1.0
    }
}

impl Mul for Dual {
    type Output = Self;

    #[expect(clippy::suspicious_arithmetic_impl, reason = "the rule of products is a sum")]
    fn mul(self, other: Self) -> Self {
        let slope = [0, 1].map(|at| self.slope[at] * other.value + self.value * other.slope[at]);
        Self { value: self.value * other.value, slope }
    }
}

impl Add<f64> for Dual {
    type Output = Self;

    fn add(self, number: f64) -> Self {
        Self { value: self.value + number, ..self }
    }
}

impl Sub<f64> for Dual {
    type Output = Self;

    fn sub(self, number: f64) -> Self {
        self + -number
    }
}

impl Mul<f64> for Dual {
    type Output = Self;

    fn mul(self, number: f64) -> Self {
        self.chained(self.value * number, number)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use serde_json::Value;

    use super::*;
    use crate::config::kind::Choice;
    use crate::loss::{Losses, testing::numbers};

    fn golden() -> Value {
        serde_json::from_str(include_str!("../../../../tests/golden/preferences.json")).unwrap()
    }

    fn tensor(name: &str, columns: usize) -> Tensor {
        let values = numbers(&golden()[name]);
        let rows = values.len() / columns;
        let values = values.into_iter().map(|value| value as f32).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }

    #[test]
    fn losses_gradients_and_rewards_are_those_of_trls_formulas() {
        let golden = golden();
        let (outputs, targets) = (tensor("outputs", 2), tensor("targets", 4));
        let cases = golden["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 18);
        for case in cases {
            let name = case["name"].as_str().unwrap();
            let options = case["options"].as_object().unwrap().clone();
            let choice = Choice { name: name.to_owned(), options: options.into_iter().collect() };
            let loss = Losses::default().build(&choice).unwrap();
            let variable = Var::from_tensor(&outputs).unwrap();
            let mean = loss.mean(&variable, &targets).unwrap();
            let gradients = mean.backward().unwrap();
            let found = f64::from(mean.to_scalar::<f32>().unwrap());
            let expected = case["value"].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{case}: {found}");
            let gradient = gradients.get(&variable).unwrap().flatten_all().unwrap();
            let gradient = gradient.to_vec1::<f32>().unwrap();
            for (found, expected) in gradient.iter().zip(numbers(&case["gradient"])) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 1e-6 * expected.abs().max(0.1), "{case}: {gradient:?}");
            }
            let rewards = loss.rewards(&outputs, &targets).unwrap();
            for (found, expected) in rewards.concat().iter().zip(numbers(&case["rewards"])) {
                assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{case}");
            }
        }
    }

    #[test]
    fn log_probabilities_of_texts_are_pytorchs() {
        let golden = &golden()["log_probs"];
        let values = |name: &str| numbers(&golden[name]);
        let logits: Vec<f32> = values("logits").into_iter().map(|value| value as f32).collect();
        let labels: Vec<i64> = serde_json::from_value(golden["labels"].clone()).unwrap();
        let logits = Var::from_vec(logits, (3, 4, 5), &Device::Cpu).unwrap();
        let labels = Tensor::from_vec(labels, (3, 4), &Device::Cpu).unwrap();
        let sums = crate::ops::label_log_probs(&logits, &labels).unwrap();
        let near = |found: &[f32], expected: &str| {
            for (found, expected) in found.iter().zip(values(expected)) {
                assert!((f64::from(*found) - expected).abs() < 2e-6, "{found}, not {expected}");
            }
        };
        near(&sums.to_vec1::<f32>().unwrap(), "sums");
        let slopes = Tensor::new(&[1f32, -2.0, 0.5], &Device::Cpu).unwrap();
        let gradients = (sums * slopes).unwrap().sum_all().unwrap().backward().unwrap();
        let gradient = gradients.get(&logits).unwrap().flatten_all().unwrap();
        near(&gradient.to_vec1::<f32>().unwrap(), "gradient");
    }

    #[test]
    fn a_policy_that_is_its_reference_has_the_loss_log_2_and_a_slope() {
        let outputs = Var::new(&[[-20f32, -30.0]], &Device::Cpu).unwrap();
        let targets = Tensor::new(&[[-20f32, -30.0, 5.0, 6.0]], &Device::Cpu).unwrap();
        let loss = Dpo::default().mean(&outputs, &targets).unwrap();
        let gradients = loss.backward().unwrap();
        assert_eq!(loss.to_scalar::<f32>().unwrap(), 2f32.ln());
        let gradient = gradients.get(&outputs).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(gradient, [[-0.05, 0.05]]);
        assert_eq!(Dpo::default().rewards(&outputs, &targets).unwrap(), [[0.0, 0.0]]);
    }

    #[test]
    fn smoothing_is_refused_where_it_does_nothing() {
        let dpo = |loss_type, label_smoothing| Dpo { loss_type, label_smoothing, beta: 0.1 };
        assert!(dpo(DpoLoss::Robust, 0.1).check().is_empty());
        assert_eq!(dpo(DpoLoss::Hinge, 0.1).check()[0].key, "label_smoothing");
    }
}
