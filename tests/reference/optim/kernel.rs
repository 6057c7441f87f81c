//! The GPU's kernel of the update, compiled as C++, against the CPU's update.

use ddprun::config::kind::Kind;
use ddprun::optim::{
    self, Adagrad, Adam, AdamW, Lion, NAdam, Optimizer, ParameterState, ParameterUpdate,
    Preparation, Rates, RmsProp, Sgd, Update, sum_of_squares,
};
use ddprun::plan::OptimizerPlan;

use crate::emulator::Arg::{Bytes, Count, Double, Doubles, Nothing, Out, Whole, Words};
use crate::emulator::{STRIDING, agree, emulator, rows, values};

/// `ParameterAddresses` of optimizer.cu.
#[repr(C)]
struct Place {
    values: *mut f32,
    gradient: *const f32,
    state: [*mut f32; 3],
    average: *mut f32,
    n: u64,
    decays: u32,
    idle: u32,
}

const PER_BLOCK: usize = 300;
/// Share of the averages that stays.
const KEEP: f32 = 0.75;
const PREPARATION: Preparation = Preparation { mean: 0.5, clip: 0.9, limit: 0.6 };

/// A rule and its plan.
type Planned = (Box<dyn Optimizer>, OptimizerPlan);

fn plan<K: Kind + Optimizer>(rule: K) -> Planned {
    let plan =
        OptimizerPlan { weight_decay: DECAY, no_decay_on_1d: true, ..optim::plan(&rule, LR) };
    (Box::new(rule), plan)
}

/// The rule as words: kind, then f32 in the order of `Rule` in optimizer.cu.
fn words(kind: u32, numbers: [f64; 12]) -> Vec<u32> {
    let numbers = numbers.map(|v| (v as f32).to_bits());
    let Preparation { mean, clip, limit } = PREPARATION;
    let prepared = [mean, clip, limit, 1.0 - KEEP].map(f32::to_bits);
    [&[kind][..], &numbers, &prepared].concat()
}

/// Rate and weight decay of `plan`, and the update that is made.
const LR: f64 = 0.1;
const DECAY: f64 = 0.02;
const COUNT: i32 = 3;

/// Every rule, and as words: rate, momentum and damping; the three of means, and epsilon; step size
/// and root correction; penalty, shrink and start.
fn rules() -> Vec<(Planned, Vec<u32>)> {
    let (lr, decay, count) = (LR, DECAY, COUNT);
    let (betas, eps) = ([0.9f64, 0.99999], 1e-8);
    let [rest1, rest2] = betas.map(|beta| 1.0 - beta);
    let [c1, c2] = betas.map(|beta| 1.0 - beta.powi(count));
    let beta2 = betas[1];
    let shrink = 1.0 - lr * decay;
    let sgd = |momentum, damp| [lr, momentum, damp, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, decay, 1.0, 0.0];
    let adam = |penalty, shrink| {
        [0.0, 0.0, 0.0, rest1, beta2, rest2, eps, lr / c1, c2.sqrt(), penalty, shrink, 0.0]
    };
    let lion = [lr, 0.0, 0.0, rest1, 0.0, rest2, 0.0, 0.0, 0.0, 0.0, shrink, 0.0];
    let rmsprop =
        |momentum| [lr, momentum, 0.0, 0.0, 0.99, 1.0 - 0.99, eps, 0.0, 0.0, decay, 1.0, 0.0];
    let adagrad = |lr, start| [lr, 0.0, 0.0, 0.0, 0.0, 0.0, eps, 0.0, 0.0, decay, 1.0, start];
    let mu = |t: f64| betas[0] * (1.0 - 0.5 * 0.96f64.powf(t * 4e-3));
    let product: f64 = (1..=count).map(|t| mu(t.into())).product();
    let (now, next) = (mu(count.into()), mu(f64::from(count) + 1.0));
    let of_momentum = lr * next / (1.0 - product * next);
    let of_gradient = lr * (1.0 - now) / (1.0 - product);
    let means = [rest1, beta2, rest2, eps];
    let nadam = |penalty, shrink| {
        let [a, b, c, d] = means;
        [of_gradient, 0.0, 0.0, a, b, c, d, of_momentum, c2.sqrt(), penalty, shrink, 0.0]
    };
    let with =
        |nesterov, dampening| plan(Sgd { momentum: 0.8, dampening, nesterov, ..Sgd::default() });
    let rms = |momentum| plan(RmsProp { eps, momentum, ..RmsProp::default() });
    let grad = |lr_decay| plan(Adagrad { eps, lr_decay, ..Adagrad::default() });
    let n = |decoupled_weight_decay| {
        plan(NAdam { betas, eps, decoupled_weight_decay, ..NAdam::default() })
    };
    let amsgrad = plan(AdamW { betas, eps, amsgrad: true, ..AdamW::default() });
    vec![
        (plan(Sgd::default()), words(0, sgd(0.0, 1.0))),
        (with(false, 0.1), words(1, sgd(0.8, 0.9))),
        (with(true, 0.0), words(2, sgd(0.8, 1.0))),
        (plan(Adam { betas, eps, ..Adam::default() }), words(3, adam(decay, 1.0))),
        (plan(AdamW { betas, eps, ..AdamW::default() }), words(3, adam(0.0, shrink))),
        (amsgrad, words(10, adam(0.0, shrink))),
        (plan(Lion { betas, ..Lion::default() }), words(5, lion)),
        (rms(0.0), words(6, rmsprop(0.0))),
        (rms(0.8), words(7, rmsprop(0.8))),
        (grad(0.0), words(8, adagrad(lr, 0.0))),
        (grad(0.5), words(8, adagrad(lr / 2.0, 0.0))),
        (n(false), words(9, nadam(decay, 1.0))),
        (n(true), words(9, nadam(0.0, shrink))),
    ]
}

#[test]
fn every_rule_moves_parameters_as_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    // A matrix of several blocks, a vector without weight decay, and one that is not used.
    let sizes = [(700usize, 2usize), (50, 1), (10, 2)];
    for ((rule, plan), words) in rules() {
        let start: Vec<Vec<f32>> = (0..3).map(|i| values(i, sizes[i as usize].0)).collect();
        let gradients: Vec<Vec<f32>> = (3..6).map(|i| values(i, sizes[i as usize - 3].0)).collect();

        let mut expected = start.clone();
        // The first parameter alone has an average.
        let state = |(i, (n, _)): (usize, &(usize, usize))| {
            let mut state = ParameterState::zeros(&plan, 0, &[*n]);
            for (tensor, seed) in state.tensors.iter_mut().zip((6 + 3 * i as u64)..) {
                tensor.values = values(seed, *n);
                // Means of squares are positive.
                if tensor.name.contains("sq") || tensor.name == "sum" {
                    tensor.values.iter_mut().for_each(|v| *v *= *v);
                }
            }
            state
        };
        let mut states: Vec<ParameterState> = sizes.iter().enumerate().map(state).collect();
        states[0].average = values(9, sizes[0].0);
        let mut average = states[0].average.clone();
        let averages = [average.as_mut_ptr(), std::ptr::null_mut(), std::ptr::null_mut()];
        let mut states_found = states.clone();
        let update = Update::new(rule.as_ref(), &plan, Rates { lr: LR, momentum: None });
        let update = update.prepared(PREPARATION).averaging(KEEP.into());
        let all = expected.iter_mut().zip(&gradients).zip(&mut states).zip(sizes).take(2);
        update.apply(all.map(|(((values, gradient), state), (_, dimensions))| ParameterUpdate {
            values,
            gradient,
            state,
            index: 0,
            shape: &[1; 2][..dimensions],
            count: Some(COUNT as u64),
        }));

        let mut found = start;
        let place = |(i, (values, of)): (usize, (&mut Vec<f32>, &mut ParameterState))| {
            let mut state = [std::ptr::null_mut(); 3];
            for (address, tensor) in state.iter_mut().zip(&mut of.tensors) {
                *address = tensor.values.as_mut_ptr();
            }
            Place {
                values: values.as_mut_ptr(),
                gradient: gradients[i].as_ptr(),
                state,
                average: averages[i],
                n: sizes[i].0 as u64,
                decays: u32::from(sizes[i].1 > 1),
                idle: u32::from(i == 2),
            }
        };
        let mut places: Vec<Place> =
            found.iter_mut().zip(&mut states_found).enumerate().map(place).collect();
        let mut parts = [[0u32, 0], [0, 1], [0, 2], [1, 0], [2, 0]];
        let (table, order) = (places.as_mut_ptr().cast(), parts.as_mut_ptr().cast());
        let per_block = || Count(PER_BLOCK as u64);
        let update = |mut decision: [u32; 2], words: &[u32]| {
            let decision = Words(&mut decision);
            let arguments = &mut [Bytes(table), Bytes(order), Whole(words), decision, per_block()];
            gpu.run("update", rows(parts.len()), arguments);
        };
        // What the GPU decides replaces the clipping that the rule holds; and here nothing moves.
        let Preparation { clip, .. } = PREPARATION;
        let mut unclipped = words.clone();
        unclipped[14] = 7f32.to_bits();
        update([0, 0], &words);
        update([clip.to_bits(), 1], &unclipped);
        let mut sums = vec![0.0; parts.len()];
        let arguments =
            &mut [Bytes(table), Bytes(order), Doubles(&mut sums), Count(PER_BLOCK as u64)];
        gpu.run("squares", rows(parts.len()), arguments);
        let mut total = [0.0];
        let arguments = &mut [Doubles(&mut sums), Doubles(&mut total), Count(parts.len() as u64)];
        gpu.run("total_of_squares", rows(1), arguments);

        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            agree(&format!("{rule:?}, parameter {i}"), found, expected, 1e-6);
        }
        for (expected, found) in states.iter().zip(&states_found).take(2) {
            for (expected, found) in expected.tensors.iter().zip(&found.tensors) {
                agree(&expected.name, &found.values, &expected.values, 1e-6);
            }
        }
        agree("average", &average, &states[0].average, 1e-6);
        let squares: f64 = gradients.iter().map(|gradient| sum_of_squares(gradient)).sum();
        assert!((total[0] - squares).abs() < 1e-9 * squares);
    }
}

#[test]
fn an_average_follows_a_parameter_that_no_pass_used() {
    let Some(gpu) = emulator() else { return };
    let (mut found, gradient, mut average) = (values(1, 500), values(2, 500), values(3, 500));
    let (start, before) = (found.clone(), average.clone());
    let mut place = Place {
        values: found.as_mut_ptr(),
        gradient: gradient.as_ptr(),
        state: [std::ptr::null_mut(); 3],
        average: average.as_mut_ptr(),
        n: 500,
        decays: 1,
        idle: 0,
    };
    let (mut parts, still) = ([[0u32, 0], [0, 1]], words(4, [0.0; 12]));
    let (table, order) = (std::ptr::from_mut(&mut place).cast(), parts.as_mut_ptr().cast());
    let per_block = Count(PER_BLOCK as u64);
    let arguments = &mut [Bytes(table), Bytes(order), Whole(&still), Nothing, per_block];
    gpu.run("update", rows(parts.len()), arguments);
    let nearer = before.iter().zip(&start).map(|(a, v)| a + (1.0 - KEEP) * (v - a));
    agree("average", &average, &nearer.collect::<Vec<_>>(), 1e-6);
    assert_eq!(found, start);
}

#[test]
fn the_gpu_decides_about_an_update_as_the_cpu_does() {
    let Some(gpu) = emulator() else { return };
    let decide = |squares: f64, losses: [f64; 2], most_norm: f64, most_loss: f64| {
        // The second pass weighs three times as much as the first.
        let [first, second] = losses;
        let mut found = [squares, 0.0, 0.0, first, 1.0, 2.0, second, 1.0, 6.0];
        let mut decision = [0u32; 2];
        let arguments = &mut [
            Doubles(&mut found),
            Words(&mut decision),
            Double(0.5),
            Double(most_norm),
            Double(most_loss),
            Count(2),
        ];
        gpu.run("decide", [1, 1, 1, 32, 1, 1], arguments);
        (f32::from_bits(decision[0]), decision[1] == 1)
    };
    let (free, nan) = (f64::INFINITY, f64::NAN);
    let clipped = |limit| optim::clip_coefficient(8.0, limit) as f32;
    assert_eq!(decide(256.0, [1.0, 2.0], free, free), (1.0, true));
    assert_eq!(decide(256.0, [1.0, 2.0], 2.0, free), (clipped(2.0), true));
    assert_eq!(decide(256.0, [1.0, 2.0], 9.0, 1.75), (clipped(9.0), true), "the mean is 1.75");
    assert!(!decide(256.0, [1.0, 2.0], free, 1.74).1, "past the greatest loss");
    for (squares, losses) in
        [(nan, [1.0; 2]), (free, [1.0; 2]), (1e80, [1.0; 2]), (1.0, [nan, 1.0]), (1.0, [1.0, free])]
    {
        assert!(!decide(squares, losses, 2.0, free).1, "{squares}, {losses:?}");
    }
}

#[test]
fn parameters_and_averages_change_places() {
    let Some(gpu) = emulator() else { return };
    let (mut x, mut y) = (values(1, 700), values(2, 700));
    let exchanged = (y.clone(), x.clone());
    let arguments = &mut [Out(&mut x), Out(&mut y), Count(700)];
    gpu.run("exchange", STRIDING, arguments);
    assert_eq!((x, y), exchanged);
}
