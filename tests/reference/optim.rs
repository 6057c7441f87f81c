//! Update rules, schedules and clipping against values recorded with PyTorch (`golden/optim.py`,
//! `golden/schedules.py`),
//! and the GPU's update against the CPU's.

mod kernel;

use ddprun::config::kind::Kind;
use ddprun::optim::{
    self, Adafactor, Adagrad, Adam, AdamW, Adan, AdjustLr, Constant, CosineAnnealingLr,
    CosineRestarts, DecayType, ExponentialLr, InverseSqrt, Lamb, Linear, Lion, MultiStepLr, Muon,
    NAdam, OneCycleLr, Optimizer, ParameterState, ParameterUpdate, Plateau, PolynomialLr, Rates,
    ReduceLrOnPlateau, RmsProp, Schedule, Scheduler, Sgd, StepLr, Update, WarmupStableDecay,
    clip_coefficient,
};
use ddprun::plan::{AnnealStrategy, OptimizerPlan, ParameterGroup, SchedulePlan};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/optim.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// A rule and its plan.
struct Case {
    rule: Box<dyn Optimizer>,
    plan: OptimizerPlan,
}

impl Case {
    fn new<K: Kind + Optimizer>(rule: K, lr: f64) -> Self {
        let plan = optim::plan(&rule, lr);
        Self { rule: Box::new(rule), plan }
    }

    fn update(&self) -> Update<'_> {
        let rates = Rates { lr: self.plan.lr, momentum: None };
        Update::new(self.rule.as_ref(), &self.plan, rates)
    }
}

/// Five updates of a 6-vector under `rule` give the recorded parameters, to the rounding of f32.
#[track_caller]
fn check_rule<K: Kind + Optimizer>(name: &str, rule: K, lr: f64) {
    let case = Case::new(rule, lr);
    let golden = golden();
    let mut values: Vec<f32> = numbers(&golden["param0"]).iter().map(|&v| v as f32).collect();
    let mut state = ParameterState::zeros(&case.plan, 0, &[6]);
    for step in 0..5 {
        let gradient: Vec<f32> =
            numbers(&golden["grads"][step]).iter().map(|&v| v as f32).collect();
        let part = ParameterUpdate {
            values: &mut values,
            gradient: &gradient,
            state: &mut state,
            index: 0,
            shape: &[6],
            count: Some(step as u64 + 1),
        };
        case.update().apply([part]);
        for (value, expected) in values.iter().zip(numbers(&golden[name][step])) {
            let error = (f64::from(*value) - expected).abs();
            assert!(error < 3e-7, "{name}, step {step}: {value} instead of {expected}");
        }
    }
}

fn sgd(momentum: f64, dampening: f64, nesterov: bool) -> Sgd {
    Sgd { momentum, dampening, nesterov, ..Sgd::default() }
}

#[test]
fn sgd_moves_as_pytorchs() {
    check_rule("sgd_lr.1", sgd(0.0, 0.0, false), 0.1);
    check_rule("sgd_lr.1_m.9", sgd(0.9, 0.0, false), 0.1);
    check_rule("sgd_lr.1_m.9_damp.5", sgd(0.9, 0.5, false), 0.1);
    let nesterov = Sgd { weight_decay: 0.01, ..sgd(0.9, 0.0, true) };
    check_rule("sgd_lr.1_m.9_wd.01_nesterov", nesterov, 0.1);
}

#[test]
fn adam_and_adamw_move_as_pytorchs() {
    check_rule("adam_lr.01", Adam::default(), 0.01);
    check_rule("adam_lr.01_wd.1_L2", Adam { weight_decay: 0.1, ..Adam::default() }, 0.01);
    check_rule("adamw_lr.01_wd.1", AdamW { weight_decay: 0.1, ..AdamW::default() }, 0.01);
    let other = AdamW { betas: [0.95, 0.999], weight_decay: 1e-6, ..AdamW::default() };
    check_rule("adamw_b.95_.999_eps1e-8_wd1e-6_lr1e-4", other, 1e-4);
}

#[test]
fn amsgrad_divides_by_the_largest_second_moment_as_pytorchs() {
    let (betas, amsgrad) = ([0.5, 0.6], true);
    let adam = Adam { betas, amsgrad, weight_decay: 0.1, ..Adam::default() };
    check_rule("adam_lr.01_wd.1_amsgrad", adam, 0.01);
    let adamw = AdamW { betas, amsgrad, weight_decay: 0.1, ..AdamW::default() };
    check_rule("adamw_lr.01_wd.1_amsgrad", adamw, 0.01);
}

#[test]
fn rmsprop_moves_as_pytorchs() {
    let rule = RmsProp { alpha: 0.9, weight_decay: 0.01, ..RmsProp::default() };
    check_rule("rmsprop_lr.01", RmsProp::default(), 0.01);
    check_rule("rmsprop_lr.01_a.9_m.9_wd.01", RmsProp { momentum: 0.9, ..rule }, 0.01);
}

#[test]
fn adagrad_moves_as_pytorchs() {
    check_rule("adagrad_lr.1", Adagrad::default(), 0.1);
    let rule = Adagrad { lr_decay: 0.1, initial_accumulator_value: 0.1, ..Adagrad::default() };
    let rule = Adagrad { weight_decay: 0.01, ..rule };
    check_rule("adagrad_lr.1_decay.1_wd.01_start.1", rule, 0.1);
}

#[test]
fn nadam_moves_as_pytorchs() {
    check_rule("nadam_lr.01", NAdam::default(), 0.01);
    let rule = NAdam { weight_decay: 0.1, ..NAdam::default() };
    let warm = NAdam { betas: [0.8, 0.99], momentum_decay: 0.1, ..rule.clone() };
    check_rule("nadam_lr.01_b.8_.99_wd.1_md.1", warm, 0.01);
    let decoupled = NAdam { decoupled_weight_decay: true, ..rule };
    check_rule("nadam_lr.01_wd.1_decoupled", decoupled, 0.01);
}

#[test]
fn lion_moves_as_its_paper_says() {
    check_rule("lion_lr.01", Lion::default(), 0.01);
    let other = Lion { betas: [0.95, 0.98], weight_decay: 0.1 };
    check_rule("lion_lr.01_b.95_.98_wd.1", other, 0.01);
}

#[test]
fn adan_moves_as_its_paper_says() {
    check_rule("adan_lr.01", Adan::default(), 0.01);
    let other = Adan { betas: [0.9, 0.8, 0.95], weight_decay: 0.1, ..Adan::default() };
    check_rule("adan_lr.01_b.9_.8_.95_wd.1", other, 0.01);
}

/// Five updates of a tensor of 24 elements under `rule` give the recorded values.
#[track_caller]
fn check_tensor<K: Kind + Optimizer>(name: &str, rule: K, lr: f64, shape: &[usize]) {
    let mut case = Case::new(rule, lr);
    let is_matrix = case.plan.matrices.is_some() && shape.len() >= 2;
    case.plan.groups = vec![ParameterGroup { is_matrix, ..group(1.0, case.plan.weight_decay, 0) }];
    case.plan.group_of = vec![0];
    let golden = golden();
    let vector = |value: &Value| numbers(value).iter().map(|&v| v as f32).collect::<Vec<f32>>();
    let mut values = vector(&golden["tensor0"]);
    let mut state = ParameterState::zeros(&case.plan, 0, shape);
    for step in 0..5 {
        let (values, state) = (&mut values, &mut state);
        let (gradient, count) = (&vector(&golden["tensor_grads"][step]), Some(step as u64 + 1));
        case.update().apply([ParameterUpdate { values, gradient, state, index: 0, shape, count }]);
        for (value, expected) in values.iter().zip(numbers(&golden[name][step])) {
            let error = (f64::from(*value) - expected).abs();
            assert!(error < 2e-6, "{name}, step {step}: {value} instead of {expected}");
        }
    }
}

#[test]
fn lamb_moves_as_timms() {
    check_tensor("lamb_lr.01", Lamb::default(), 0.01, &[4, 6]);
    let plain = Lamb { weight_decay: 0.0, ..Lamb::default() };
    let adapted = Lamb { always_adapt: true, trust_clip: true, ..plain.clone() };
    check_tensor("lamb_lr.01_wd0_adapt_clip", adapted, 0.01, &[4, 6]);
    let betas = Lamb { betas: [0.8, 0.99], ..plain };
    check_tensor("lamb_lr.01_wd0_b.8_.99", betas, 0.01, &[4, 6]);
}

#[test]
fn adafactor_moves_as_pytorchs() {
    check_tensor("adafactor_lr.1_24", Adafactor::default(), 0.1, &[24]);
    let decaying = Adafactor { weight_decay: 0.1, ..Adafactor::default() };
    check_tensor("adafactor_lr.1_4x6_wd.1", decaying, 0.1, &[4, 6]);
    let other = Adafactor { d: 2.0, beta2_decay: -0.5, ..Adafactor::default() };
    check_tensor("adafactor_lr1_2x3x4_d2", other, 1.0, &[2, 3, 4]);
}

#[test]
fn muon_moves_as_pytorchs_but_for_bf16() {
    check_tensor("muon_lr.02_4x6", Muon::default(), 0.02, &[4, 6]);
    let plain = Muon { momentum: 0.9, nesterov: false, weight_decay: 0.0, ..Muon::default() };
    check_tensor("muon_lr.02_6x4_m.9_wd0", plain, 0.02, &[6, 4]);
    let wide = Muon { adjust_lr_fn: AdjustLr::MatchRmsAdamw, ..Muon::default() };
    check_tensor("muon_lr.02_2x12_rms", wide, 0.02, &[2, 12]);
}

#[test]
fn what_is_no_matrix_moves_by_adamw_under_muon() {
    let rule = Muon { weight_decay: 0.1, ..Muon::default() };
    check_rule("adamw_lr.01_wd.1", rule, 0.01);
}

fn group(lr_factor: f64, weight_decay: f64, unfreezes_at: u64) -> ParameterGroup {
    ParameterGroup {
        name: String::new(),
        lr_factor,
        weight_decay,
        unfreezes_at,
        freezes_at: None,
        is_matrix: false,
        n_state: 0,
        n_tensors: 1,
        n_parameters: 6,
    }
}

#[test]
fn groups_move_as_pytorchs_and_count_from_their_first_step() {
    let mut case = Case::new(AdamW::default(), 0.01);
    case.plan.groups = vec![group(1.0, 0.1, 0), group(0.1, 0.0, 2)];
    case.plan.group_of = vec![0, 1];
    let golden = golden();
    let vector = |value: &Value| numbers(value).iter().map(|&v| v as f32).collect::<Vec<f32>>();
    let mut all = ["param0", "param1"].map(|name| vector(&golden[name]));
    let mut states = [(); 2].map(|()| ParameterState::zeros(&case.plan, 0, &[6]));
    for step in 0..5 {
        let gradient = vector(&golden["grads"][step]);
        let parts = all.iter_mut().zip(&mut states).enumerate();
        case.update().apply(parts.map(|(index, (values, state))| {
            let starts = case.plan.groups[index].unfreezes_at;
            let is_trained = case.plan.is_trained(index, step as u64);
            let gradient = if is_trained { &gradient[..] } else { &[] };
            let count = is_trained.then(|| step as u64 - starts + 1);
            ParameterUpdate { values, gradient, state, index, shape: &[6], count }
        }));
        for (values, expected) in all.iter().zip(golden["adamw_groups"][step].as_array().unwrap()) {
            for (value, expected) in values.iter().zip(numbers(expected)) {
                let error = (f64::from(*value) - expected).abs();
                assert!(error < 3e-7, "step {step}: {value} instead of {expected}");
            }
        }
    }
}

/// The formulas of PyTorch's documentation in f64, for one element: its value after each step. In
/// steps without a gradient it does not take part.
fn in_f64(formula: &Formula, lr: f64, start: f64, gradients: &[Option<f64>]) -> Vec<f64> {
    let (mut value, mut m, mut v, mut t) = (start, 0.0f64, 0.0f64, 0);
    let mut step = |g: f64| {
        t += 1;
        match *formula {
            Formula::Sgd(Sgd { momentum, dampening, nesterov, weight_decay }) => {
                let g = g + weight_decay * value;
                m = if t == 1 { g } else { momentum * m + (1.0 - dampening) * g };
                value -= lr * if nesterov { g + momentum * m } else { m };
            }
            Formula::Adam { betas: [beta1, beta2], penalty, decay } => {
                value *= 1.0 - lr * decay;
                let g = g + penalty * value;
                m = beta1 * m + (1.0 - beta1) * g;
                v = beta2 * v + (1.0 - beta2) * g * g;
                let (m, v) = (m / (1.0 - beta1.powi(t)), v / (1.0 - beta2.powi(t)));
                value -= lr * m / (v.sqrt() + 1e-8);
            }
        }
        value
    };
    let mut last = start;
    let after = gradients.iter().map(|gradient| {
        last = gradient.map_or(last, &mut step);
        last
    });
    after.collect()
}

/// A rule as PyTorch's documentation writes it.
#[derive(Debug)]
enum Formula {
    Sgd(Sgd),
    Adam { betas: [f64; 2], penalty: f64, decay: f64 },
}

/// A hundred updates of a parameter that is first used in step `first`, and now and then not used
/// later, are those of `in_f64`.
#[track_caller]
fn check_late<K: Kind + Optimizer>(rule: K, formula: &Formula, first: usize) {
    const N: usize = 40;
    const STEPS: usize = 100;
    let case = Case::new(rule, 0.01);
    let wave = |i: usize, step: usize| 1.0 + ((i * 7 + step * 13) as f32 * 0.37).sin();
    let used = |step: usize| step >= first && step % 17 != 16;
    let start: Vec<f32> = (0..N).map(|i| wave(i, 1000)).collect();
    let (mut values, mut count) = (start.clone(), 0);
    let mut state = ParameterState::zeros(&case.plan, 0, &[N]);
    for step in 0..STEPS {
        let gradient: Vec<f32> = (0..N).map(|i| wave(i, step)).collect();
        count += u64::from(used(step));
        let part = ParameterUpdate {
            values: &mut values,
            gradient: &gradient,
            state: &mut state,
            index: 0,
            shape: &[N, 1],
            count: used(step).then_some(count),
        };
        case.update().apply([part]);
    }
    for (i, (value, start)) in values.iter().zip(start).enumerate() {
        let gradient = |step| used(step).then(|| f64::from(wave(i, step)));
        let gradients: Vec<_> = (0..STEPS).map(gradient).collect();
        let expected = in_f64(formula, 0.01, start.into(), &gradients)[STEPS - 1];
        let error = (f64::from(*value) - expected).abs();
        assert!(error < 4e-6, "{formula:?} from step {first}: {value}, not {expected}");
    }
}

#[test]
fn updates_are_those_of_f64_for_every_beta_and_from_the_first_use_on() {
    for first in [0, 30] {
        for betas in [[0.9, 0.999], [0.95, 0.9999], [0.9, 0.99999], [0.4, 0.9], [0.0, 0.5]] {
            let formula = Formula::Adam { betas, penalty: 0.01, decay: 0.0 };
            check_late(Adam { betas, weight_decay: 0.01, ..Adam::default() }, &formula, first);
            let formula = Formula::Adam { betas, penalty: 0.0, decay: 0.1 };
            check_late(AdamW { betas, weight_decay: 0.1, ..AdamW::default() }, &formula, first);
        }
        for rule in [sgd(0.9, 0.7, false), sgd(0.9, 0.0, true), sgd(0.0, 0.0, false)] {
            let rule = Sgd { weight_decay: 0.01, ..rule };
            check_late(rule.clone(), &Formula::Sgd(rule), first);
        }
    }
}

#[test]
fn an_average_follows_the_weights_as_exactly_as_f32_can() {
    let case = Case::new(sgd(0.0, 0.0, false), 0.01);
    for decay in [0.0, 0.4, 0.999, 0.99999, 1.0] {
        let mut values = vec![1f32];
        let mut state = ParameterState::zeros(&case.plan, 0, &[1]).averaged(1);
        let mut expected = 0.0;
        for step in 0..2000 {
            let gradient = [(step as f32).sin()];
            // The weight is not used any more in the end; its average follows.
            let count = (step < 1500).then_some(step + 1);
            let (values, state) = (&mut values, &mut state);
            let part = ParameterUpdate {
                values,
                gradient: &gradient,
                state,
                index: 0,
                shape: &[1],
                count,
            };
            case.update().averaging(decay).apply([part]);
            expected = decay * expected + (1.0 - decay) * f64::from(values[0]);
        }
        let error = (f64::from(state.average[0]) - expected).abs();
        assert!(error < 2e-6, "{decay}: {} instead of {expected}", state.average[0]);
    }
}

/// The scheduler's rates in a run of `steps` steps, of which the first `warmup` are a warm-up from
/// 0.01.
fn rates<K: Kind + Scheduler>(scheduler: &K, (steps, warmup): (u64, u64), lr: f64) -> Vec<Rates> {
    let schedule = optim::schedule(scheduler, steps - warmup);
    let plan = SchedulePlan { warmup_steps: warmup, warmup_start_factor: 0.01, ..schedule };
    let schedule = Schedule::new(scheduler, &plan, lr);
    (0..=steps).map(|done| schedule.rates(done, &Plateau::default())).collect()
}

#[track_caller]
fn check_schedule<K: Kind + Scheduler>(name: &str, scheduler: &K, (steps, warmup): (u64, u64)) {
    let found = rates(scheduler, (steps, warmup), 0.1);
    for (step, expected) in numbers(&golden()[name]).into_iter().enumerate() {
        let lr = found[step].lr;
        assert!((lr - expected).abs() < 1e-9, "{name}, step {step}: {lr}");
    }
}

#[test]
fn schedules_give_pytorchs_learning_rates() {
    let cosine = CosineAnnealingLr::default();
    check_schedule("cosine_T10_eta0", &cosine, (10, 0));
    check_schedule("step_3_.1", &StepLr { step_size: 3, gamma: 0.1 }, (10, 0));
    let milestones = MultiStepLr { milestones: vec![2, 5], gamma: 0.1 };
    check_schedule("multistep_2_5_.1", &milestones, (10, 0));
    check_schedule("exponential_.9", &ExponentialLr { gamma: 0.9 }, (10, 0));
    check_schedule("linear_start.01_iters5_then_cosine_T15(SequentialLR)", &cosine, (20, 5));
    let one_cycle = OneCycleLr { pct_start: 0.2, ..OneCycleLr::default() };
    check_schedule("onecycle_max.1_total20_pct.2", &one_cycle, (20, 0));
    let linear = OneCycleLr {
        pct_start: 0.23,
        div_factor: 5.0,
        final_div_factor: 1.0 / 0.35,
        anneal_strategy: AnnealStrategy::Linear,
        cycle_momentum: false,
    };
    check_schedule("onecycle_max.1_total20_pct.23_linear", &linear, (20, 0));
    assert!(rates(&linear, (20, 0), 0.1).iter().all(|rates| rates.momentum.is_none()));
}

/// Schedules of `golden/schedules.py`: 24 steps, `warmup` of them before the schedule, which begin
/// where the recorded ones do.
#[track_caller]
fn check_recorded<K: Kind + Scheduler>(name: &str, scheduler: &K, warmup: u64) {
    let golden: Value = serde_json::from_str(include_str!("../golden/schedules.json")).unwrap();
    let schedule = optim::schedule(scheduler, 24 - warmup);
    let recorded = numbers(&golden[name]);
    let warmup_start_factor = recorded[0] / 0.1;
    let plan = SchedulePlan { warmup_steps: warmup, warmup_start_factor, ..schedule };
    let schedule = Schedule::new(scheduler, &plan, 0.1);
    assert_eq!(recorded.len(), 25);
    for (done, expected) in recorded.into_iter().enumerate() {
        let Rates { lr, .. } = schedule.rates(done as u64, &Plateau::default());
        assert!((lr - expected).abs() < 1e-12, "{name}, step {done}: {lr}, not {expected}");
    }
}

#[test]
fn schedules_to_the_end_of_the_run_are_those_of_pytorch_and_transformers() {
    check_recorded("polynomial_2", &PolynomialLr { power: 2.0, eta_min: 0.0 }, 0);
    check_recorded("restarts_5", &CosineRestarts { t_0: 5, t_mult: 1, eta_min: 0.01 }, 0);
    check_recorded("restarts_3_2", &CosineRestarts { t_0: 3, t_mult: 2, eta_min: 0.0 }, 0);
    check_recorded("linear_warmup", &Linear::default(), 4);
    check_recorded("polynomial_.5_warmup", &PolynomialLr { power: 0.5, eta_min: 0.02 }, 4);
    check_recorded("inverse_sqrt_warmup", &InverseSqrt::default(), 4);
    check_recorded("inverse_sqrt_9_warmup", &InverseSqrt { timescale: Some(9) }, 4);
    for (name, decay_type, eta_min) in [
        ("wsd_linear_warmup", DecayType::Linear, 0.0),
        ("wsd_cosine_warmup", DecayType::Cosine, 0.01),
        ("wsd_1-sqrt_warmup", DecayType::OneMinusSqrt, 0.0),
    ] {
        check_recorded(name, &WarmupStableDecay { decay: 0.3, decay_type, eta_min }, 4);
    }
}

#[test]
fn one_cycle_moves_adams_first_beta_against_the_rate() {
    let one_cycle = OneCycleLr { pct_start: 0.2, ..OneCycleLr::default() };
    let found = rates(&one_cycle, (20, 0), 2e-4);
    let golden = golden();
    let recorded = golden["onecycle_adam_max2e-4_total20_pct.2 (lr,beta1)"].as_array().unwrap();
    assert_eq!(recorded.len(), 20);
    for (rates, expected) in found.iter().zip(recorded) {
        assert!((rates.lr - expected[0].as_f64().unwrap()).abs() < 1e-9);
        assert!((rates.momentum.unwrap() - expected[1].as_f64().unwrap()).abs() < 1e-6);
    }
}

#[test]
fn plateau_drops_on_the_bad_epoch_after_its_patience() {
    let rule = ReduceLrOnPlateau { factor: 0.5, patience: 2, ..ReduceLrOnPlateau::default() };
    let plan = optim::schedule(&rule, 13);
    let mut plateau = Plateau::default();
    for pair in golden()["plateau_f.5_p2_thr1e-4rel"].as_array().unwrap() {
        rule.observe(&mut plateau, pair[0].as_f64().unwrap(), plan.better);
        let rates = Schedule::new(&rule, &plan, 0.1).rates(0, &plateau);
        assert!((rates.lr - pair[1].as_f64().unwrap()).abs() < 1e-12, "{pair}");
    }
}

#[test]
fn warmup_meets_the_schedule_without_a_jump() {
    for warmup in [1, 7, 100] {
        let found = rates(&Constant {}, (warmup + 1, warmup), 0.5);
        let (before, after) = (found[warmup as usize - 1].lr, found[warmup as usize].lr);
        assert!((after - 0.5).abs() < 1e-12);
        let rise = after - before;
        assert!(rise > 0.0 && rise <= 0.5 * 0.99 / warmup as f64 + 1e-12);
    }
}

#[test]
fn the_clipping_coefficient_is_pytorchs() {
    assert!((clip_coefficient(4.726_864_829_775_482, 1.0) - 0.211_556_671_166_928).abs() < 1e-12);
    assert_eq!(clip_coefficient(0.5, 1.0), 1.0);
}
