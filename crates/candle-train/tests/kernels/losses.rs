use candle_train::ops;

use crate::emulator::Arg::{Bytes, Count, Double, Doubles, Flag, In, Nothing, Out, Words};
use crate::emulator::{Arg, Emulator, STRIDING, emulator, rows};
use crate::{agree, reference, tensor, values, var};

/// Results of the GPU for rows of logits: loss, gradient for `dy`, losses and best classes of the
/// rows.
fn cross_entropy(
    gpu: &Emulator,
    logits: &[f32],
    target: impl Fn() -> [Arg<'static>; 2],
    [n, classes]: [usize; 2],
    [smoothing, divisor]: [f64; 2],
    dy: f32,
) -> (f32, Vec<f32>, Vec<f64>, Vec<u32>) {
    let (mut losses, mut best) = (vec![0.0; n], vec![0; n]);
    let (mut largest, mut factor) = (vec![0.0; n], vec![0.0; n]);
    let [labels, targets] = target();
    gpu.run(
        "cross_entropy_rows",
        rows(n),
        &mut [
            In(logits),
            labels,
            targets,
            Doubles(&mut losses),
            Out(&mut largest),
            Out(&mut factor),
            Words(&mut best),
            Double(smoothing),
            Count(classes as u64),
        ],
    );
    let mut loss = [0.0];
    let mut row_losses = losses.clone();
    let arguments =
        &mut [Doubles(&mut row_losses), Out(&mut loss), Double(divisor), Count(n as u64)];
    gpu.run("total", rows(1), arguments);
    let mut gradient = vec![0.0; logits.len()];
    let [labels, targets] = target();
    gpu.run(
        "cross_entropy_gradient",
        STRIDING,
        &mut [
            In(logits),
            labels,
            targets,
            In(&largest),
            In(&factor),
            In(&[dy]),
            Out(&mut gradient),
            Double(smoothing),
            Double(divisor),
            Count(classes as u64),
            Count(logits.len() as u64),
        ],
    );
    (loss[0], gradient, losses, best)
}

/// Results of the GPU for rows of logits in one pass: loss, gradient for the gradient `dy` of the loss,
/// and the number of rows that are right. The gradient takes the place of the logits if `in_place`.
fn scored(
    gpu: &Emulator,
    logits: &[f32],
    labels: &mut [i32],
    [smoothing, divisor]: [f64; 2],
    dy: f32,
    in_place: bool,
) -> (f32, Vec<f32>, f64) {
    let n = labels.len();
    let (classes, at) = ((logits.len() / n) as u64, labels.as_mut_ptr().cast());
    let (mut losses, mut hits, mut given) = (vec![0.0; n], vec![0; n], logits.to_vec());
    let mut apart = vec![0.0; logits.len()];
    let place = if in_place { given.as_mut_ptr() } else { apart.as_mut_ptr() };
    gpu.run(
        "cross_entropy_scored",
        rows(n),
        &mut [
            Bytes(given.as_mut_ptr().cast()),
            Bytes(at),
            Doubles(&mut losses),
            Words(&mut hits),
            Bytes(place.cast()),
            Double(smoothing),
            Double(divisor),
            Count(classes),
        ],
    );
    let (mut loss, mut found) = ([0.0], [0.0; 3]);
    gpu.run(
        "cross_entropy_found",
        rows(1),
        &mut [
            Doubles(&mut losses),
            Words(&mut hits),
            Out(&mut loss),
            Doubles(&mut found),
            Double(divisor),
            Double(4.5),
            Count(n as u64),
        ],
    );
    let expected = [f64::from(loss[0]), 4.5];
    assert_eq!([found[0], found[2]].map(f64::to_bits), expected.map(f64::to_bits));
    let mut gradient = if in_place { given } else { apart };
    let n = gradient.len() as u64;
    gpu.run("scale", STRIDING, &mut [Out(&mut gradient), In(&[dy]), Count(n)]);
    (loss[0], gradient, found[1])
}

#[test]
fn one_pass_gives_the_loss_the_right_answers_and_the_gradient_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let (n, classes) = (6usize, 300usize);
    let mut logits = values(1, n * classes);
    // The first of two equal maxima is the answer.
    logits[3 * classes + 5] = 9.0;
    logits[3 * classes + 270] = 9.0;
    logits[17] = 11.0;
    for ignored in [ops::IGNORED_LABEL, 7] {
        let labels = [17i64, 0, ignored, 5, 17, 270];
        let mut numbers = labels.map(|label| label.max(-1) as i32);
        let targets = candle_core::Tensor::new(&labels, &candle_core::Device::Cpu).unwrap();
        let counted = numbers.iter().filter(|label| **label >= 0).count() as f64;
        for (smoothing, dy, in_place) in
            [(0.0, 1.0, true), (0.1, 1.0, false), (0.1, 0.7, true), (0.0, 256.0, false)]
        {
            let operand = var(&logits, &[n, classes]);
            let (y, gradients) =
                reference(&[&operand], &[dy], || ops::cross_entropy(&operand, &targets, smoothing));
            let settings = [smoothing, counted];
            let (loss, gradient, right) =
                scored(gpu, &logits, &mut numbers, settings, dy, in_place);
            agree("loss", &[loss], &y, 1e-6);
            agree("gradient", &gradient, &gradients[0], 1e-6);
            assert_eq!(right as usize, ops::count_correct(&operand, &targets).unwrap());
        }
    }
}

#[test]
fn rows_of_many_classes_are_read_in_packs_wherever_they_begin() {
    let Some(gpu) = emulator() else { return };
    let (n, classes) = (3usize, 9001usize);
    let mut logits = values(1, n * classes);
    logits[classes + 4100] = 9.0;
    logits[classes + 8200] = 9.0;
    logits[2 * classes] = 8.0;
    logits[3 * classes - 1] = 9.0;
    let labels = [17i64, 4100, 9000];
    let mut numbers = labels.map(|label| label as i32);
    let targets = candle_core::Tensor::new(&labels, &candle_core::Device::Cpu).unwrap();
    for (smoothing, in_place) in [(0.0, true), (0.1, false)] {
        let operand = var(&logits, &[n, classes]);
        let (y, gradients) =
            reference(&[&operand], &[1.0], || ops::cross_entropy(&operand, &targets, smoothing));
        let settings = [smoothing, n as f64];
        let (loss, gradient, right) = scored(gpu, &logits, &mut numbers, settings, 1.0, in_place);
        agree("loss", &[loss], &y, 1e-6);
        agree("gradient", &gradient, &gradients[0], 1e-6);
        assert_eq!(right as usize, 2);
    }
}

#[test]
fn a_row_that_is_not_finite_has_no_best_class_and_no_loss() {
    let Some(gpu) = emulator() else { return };
    let classes = 1003;
    let zeros: Vec<f32> = (0..classes).map(|i| if i == 17 { -0.0 } else { 0.0 }).collect();
    let with = |value: f32| {
        let mut row = values(1, classes);
        row[501] = value;
        row
    };
    let rows_of = [with(f32::NAN), with(f32::INFINITY), vec![f32::NEG_INFINITY; classes], zeros];
    let logits = rows_of.concat();
    let mut labels = [17i32, 501, 0, 0];
    let at = labels.as_mut_ptr() as usize;
    let target = || [Bytes(at as *mut _), Nothing];
    let (_, gradient, losses, best) =
        cross_entropy(gpu, &logits, target, [4, classes], [0.1, 4.0], 1.0);
    assert_eq!(best, [1003, 1003, 1003, 0]);
    assert!(losses[..3].iter().all(|loss| loss.is_nan()) && losses[3].is_finite());
    assert!(gradient[..3 * classes].iter().all(|g| g.is_nan()));
    let (_, gradient, right) =
        scored(gpu, &logits[classes..], &mut labels[1..], [0.1, 3.0], 1.0, true);
    assert!(gradient[..2 * classes].iter().all(|g| g.is_nan()));
    assert!(gradient[2 * classes..].iter().all(|g| g.is_finite()));
    assert_eq!(right as usize, 1);
    // Classes of logit -infinity take no part.
    let mut masked = values(2, classes);
    masked[..600].fill(f32::NEG_INFINITY);
    let (loss, gradient, _) = scored(gpu, &masked, &mut [700], [0.0, 1.0], 1.0, false);
    let (expected, _) = {
        let operand = var(&masked[600..], &[1, classes - 600]);
        let target = candle_core::Tensor::new(&[100i64], &candle_core::Device::Cpu).unwrap();
        reference(&[&operand], &[1.0], || ops::cross_entropy(&operand, &target, 0.0))
    };
    agree("loss", &[loss], &expected, 1e-6);
    assert!(gradient[..600].iter().all(|g| *g == 0.0));
}

#[test]
fn one_pass_gives_the_slope_of_the_loss() {
    let Some(gpu) = emulator() else { return };
    let (logits, mut labels) = (values(3, 10), [3i32, 1]);
    let (_, gradient, _) = scored(gpu, &logits, &mut labels, [0.1, 2.0], 1.0, false);
    for at in 0..logits.len() {
        let mut loss = |step: f32| {
            let mut moved = logits.clone();
            moved[at] += step;
            f64::from(scored(gpu, &moved, &mut labels, [0.1, 2.0], 1.0, false).0)
        };
        let slope = (loss(0.02) - loss(-0.02)) / 0.04;
        assert!((slope - f64::from(gradient[at])).abs() < 2e-4, "{at}: {slope} {}", gradient[at]);
    }
}

#[test]
fn a_loss_of_another_kind_is_noted_beside_the_right_answers() {
    let Some(gpu) = emulator() else { return };
    for (right, kept) in [(-1.0, 8.0), (3.0, 3.0)] {
        let mut found = [0.0, 8.0, 0.0];
        let arguments = &mut [In(&[0.25]), Doubles(&mut found), Double(right), Double(4.0)];
        gpu.run("note_found", rows(1), arguments);
        assert_eq!(found, [0.25, kept, 4.0]);
    }
}

#[test]
fn cross_entropy_with_labels_is_that_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let (n, classes) = (6usize, 300usize);
    let mut logits = values(1, n * classes);
    // The first of two equal maxima is the answer.
    logits[3 * classes + 5] = 9.0;
    logits[3 * classes + 270] = 9.0;
    let labels = [299i64, 0, ops::IGNORED_LABEL, 5, 17, 270];
    let mut numbers = [299i32, 0, -1, 5, 17, 270];
    let at = numbers.as_mut_ptr() as usize;
    for smoothing in [0.0, 0.1] {
        let operand = var(&logits, &[n, classes]);
        let targets = candle_core::Tensor::new(&labels, &candle_core::Device::Cpu).unwrap();
        let (y, gradients) =
            reference(&[&operand], &[0.7], || ops::cross_entropy(&operand, &targets, smoothing));
        let scores = ops::score_classes(&operand, &targets, smoothing).unwrap();
        let target = || [Bytes(at as *mut _), Nothing];
        let sizes = [n, classes];
        let (loss, gradient, losses, best) =
            cross_entropy(gpu, &logits, target, sizes, [smoothing, 5.0], 0.7);
        agree("loss", &[loss], &y, 1e-6);
        agree("gradient", &gradient, &gradients[0], 2e-6);
        let counted = [0, 1, 3, 4, 5];
        let found: Vec<f32> = counted.iter().map(|&row| losses[row] as f32).collect();
        agree("losses", &found, &scores.losses, 1e-6);
        let right = counted.iter().filter(|&&row| best[row] as i32 == numbers[row]).count();
        assert_eq!((right, best[3]), (scores.n_correct, 5));
    }
}

#[test]
fn cross_entropy_with_probabilities_is_that_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let (n, classes) = (3usize, 20usize);
    let logits = values(1, n * classes);
    let probabilities = ops::softmax(&tensor(&values(2, n * classes), &[n, classes])).unwrap();
    let mut numbers = crate::flat(&probabilities);
    let at = numbers.as_mut_ptr() as usize;
    let operand = var(&logits, &[n, classes]);
    let (y, gradients) =
        reference(&[&operand], &[1.0], || ops::cross_entropy_soft(&operand, &probabilities, 0.2));
    let target = || [Nothing, Bytes(at as *mut _)];
    let (loss, gradient, ..) =
        cross_entropy(gpu, &logits, target, [n, classes], [0.2, n as f64], 1.0);
    agree("loss", &[loss], &y, 1e-6);
    agree("gradient", &gradient, &gradients[0], 2e-6);
}

#[test]
fn losses_of_numbers_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let n = 1000usize;
    let (p, mut t) = (values(1, n), values(2, n));
    t[7] = p[7];
    let per_block = 300u64;
    let blocks = n.div_ceil(per_block as usize);
    for absolute in [false, true] {
        let (operand, target) = (var(&p, &[n]), tensor(&t, &[n]));
        let (y, gradients) = reference(&[&operand], &[0.3], || {
            if absolute { ops::mae(&operand, &target) } else { ops::mse(&operand, &target) }
        });
        let mut sums = vec![0.0; blocks];
        let flag = || Flag(absolute.into());
        gpu.run(
            "regression_sums",
            rows(blocks),
            &mut [In(&p), In(&t), Doubles(&mut sums), flag(), Count(per_block), Count(n as u64)],
        );
        let mut loss = [0.0];
        let arguments =
            &mut [Doubles(&mut sums), Out(&mut loss), Double(n as f64), Count(blocks as u64)];
        gpu.run("total", rows(1), arguments);
        agree("loss", &loss, &y, 1e-6);
        let mut gradient = vec![0.0; n];
        let arguments =
            &mut [In(&p), In(&t), In(&[0.3]), Out(&mut gradient), flag(), Count(n as u64)];
        gpu.run("regression_gradient", STRIDING, arguments);
        agree("gradient", &gradient, &gradients[0], 1e-6);
    }
}
