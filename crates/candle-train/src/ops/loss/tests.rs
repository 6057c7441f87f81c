//! Losses compared with slow ones in f64.

use candle_core::{Device, Var};
use proptest::prelude::*;
use test_support::assert_refused;

use super::*;
use crate::ops::testing::{check_gradients, on_threads, values};

fn labels(values: &[u32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn slow(x: &[f64], labels: &[u32], smoothing: f64) -> f64 {
    let classes = x.len() / labels.len();
    let loss = |(row, &y): (&[f64], &u32)| {
        let sum: f64 = row.iter().map(|v| v.exp()).sum();
        let log_p = |c: usize| row[c] - sum.ln();
        let uniform: f64 = (0..classes).map(log_p).sum::<f64>() / classes as f64;
        -(1.0 - smoothing) * log_p(y as usize) - smoothing * uniform
    };
    x.chunks(classes).zip(labels).map(loss).sum::<f64>() / labels.len() as f64
}

#[test]
fn outputs_and_gradients_equal_the_slow_ones() {
    for (classes, y) in [(1, vec![0]), (3, vec![2, 0, 1, 1, 2]), (7, vec![6])] {
        for smoothing in [0.0, 0.1] {
            check_gradients(
                &[&[y.len(), classes]],
                |t| cross_entropy(&t[0], &labels(&y), smoothing),
                |v| vec![slow(&v[0], &y, smoothing)],
                1e-6,
            );
        }
    }
}

#[test]
fn class_probabilities_are_targets_too() {
    for (n, classes) in [(1, 1), (5, 3), (2, 97)] {
        let targets = values("targets", 0, n * classes);
        let targets: Vec<f32> = targets.iter().map(|t| t.abs()).collect();
        for smoothing in [0.0, 0.1] {
            let slow = |x: &[f64]| {
                let rows = x.chunks(classes).zip(targets.chunks(classes));
                let loss = |(x, t): (&[f64], &[f32])| -> f64 {
                    let log_sum = x.iter().map(|v| v.exp()).sum::<f64>().ln();
                    let target =
                        |t: f32| (1.0 - smoothing) * f64::from(t) + smoothing / classes as f64;
                    x.iter().zip(t).map(|(x, &t)| -target(t) * (x - log_sum)).sum()
                };
                vec![rows.map(loss).sum::<f64>() / n as f64]
            };
            let tensor = Tensor::from_slice(&targets, (n, classes), &Device::Cpu).unwrap();
            check_gradients(
                &[&[n, classes]],
                |t| cross_entropy_soft(&t[0], &tensor, smoothing),
                |v| slow(&v[0]),
                2e-6,
            );
        }
    }
}

/// `torch.nn.functional.cross_entropy` of PyTorch 2.15.
#[test]
fn losses_and_gradients_are_those_of_pytorch() -> Result<()> {
    let x = vec![0.5f32, -1.0, 2.0, 1.5, 0.25, -0.75, 0.1, 0.2, 0.3];
    let x = Var::from_vec(x, (3, 3), &Device::Cpu)?;
    let check = |loss: Tensor, expected: f32, gradient: [f32; 9]| -> Result<()> {
        assert!((loss.to_scalar::<f32>()? - expected).abs() < 1e-6);
        let found = loss.backward()?.get(&x).unwrap().flatten_all()?.to_vec1::<f32>()?;
        assert!(found.iter().zip(gradient).all(|(a, b)| (a - b).abs() < 1e-7), "{found:?}");
        Ok(())
    };
    let some = Tensor::new(&[2i64, -100, 0], &Device::Cpu)?;
    check(
        cross_entropy(&x, &some, 0.1)?,
        0.791_627_1,
        [
            0.070_978_53,
            0.002_889_618_3,
            -0.073_868_155,
            0.0,
            0.0,
            0.0,
            -0.316_361_87,
            0.149_445_82,
            0.166_916_03,
        ],
    )?;
    let soft = tensor(vec![0.2, 0.3, 0.5, 1.0, 0.0, 0.0, 0.1, 0.1, 0.8], (3, 3))?;
    check(
        cross_entropy_soft(&x, &soft, 0.1)?,
        0.985_864_6,
        [
            -0.012_680_98,
            -0.088_073_59,
            0.100_754_57,
            -0.071_631,
            0.057_501_09,
            0.014_129_908,
            0.059_092_086,
            0.069_630_55,
            -0.128_722_65,
        ],
    )
}

#[test]
fn one_hot_probabilities_give_what_labels_give() -> Result<()> {
    let x = Var::from_vec(values("one hot", 0, 15), (5, 3), &Device::Cpu)?;
    let hot = |label: u32| (0..3).map(move |class| f32::from(u8::from(class == label)));
    let probabilities: Vec<f32> = [0, 2, 1, 1, 0].into_iter().flat_map(hot).collect();
    let losses = [
        cross_entropy(&x, &labels(&[0, 2, 1, 1, 0]), 0.1)?,
        cross_entropy_soft(&x, &tensor(probabilities, (5, 3))?, 0.1)?,
    ];
    let gradient = |loss: &Tensor| -> Result<Vec<f32>> {
        loss.backward()?.get(&x).unwrap().flatten_all()?.to_vec1()
    };
    let pairs = gradient(&losses[0])?.into_iter().zip(gradient(&losses[1])?);
    assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-7));
    let [labels, soft] = losses.map(|loss| loss.to_scalar::<f32>());
    assert!((labels? - soft?).abs() < 1e-6);
    Ok(())
}

#[test]
fn ignored_labels_count_neither_in_the_loss_nor_in_the_gradient() -> Result<()> {
    let x = Var::from_vec(values("ignored", 0, 12), (4, 3), &Device::Cpu)?;
    let some = Tensor::new(&[-100i64, 2, -100, 0], &Device::Cpu)?;
    let kept = Tensor::cat(&[x.narrow(0, 1, 1)?, x.narrow(0, 3, 1)?], 0)?;
    for smoothing in [0.0, 0.1] {
        let loss = cross_entropy(&x, &some, smoothing)?;
        let alone = cross_entropy(&kept, &labels(&[2, 0]), smoothing)?;
        assert_eq!(loss.to_scalar::<f32>()?, alone.to_scalar::<f32>()?);
        let of = |loss: &Tensor| -> Result<Vec<Vec<f32>>> {
            loss.backward()?.get(&x).unwrap().to_vec2()
        };
        assert_eq!(of(&loss)?, of(&alone)?);
        assert_eq!(of(&loss)?[0], [0.0; 3]);
        let (sum, counted) = cross_entropy_sum(&x, &some, smoothing)?;
        assert_eq!(counted, 2);
        assert!((sum.to_scalar::<f32>()? / 2.0 - loss.to_scalar::<f32>()?).abs() < 1e-6);
        assert_eq!(score_classes(&x, &some, smoothing)?.losses.len(), 2);
    }
    let none = Tensor::new(&[-100i64; 4], &Device::Cpu)?;
    assert_refused(cross_entropy(&x, &none, 0.0), "4 labels, of which none counts");
    assert_eq!(cross_entropy_sum(&x, &none, 0.0)?.0.to_scalar::<f32>()?, 0.0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn large_vocabularies_stay_close_to_f64_on_any_number_of_threads(
        n in 1usize..6, classes in 1usize..9000, spread in 0.1f32..30.0
    ) {
        let x: Vec<f32> =
            values("any", classes as u64, n * classes).iter().map(|v| v * spread).collect();
        let exact: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        let y: Vec<u32> = (0..n).map(|i| (i * 7919 % classes) as u32).collect();
        let x = Var::from_vec(x, (n, classes), &Device::Cpu).unwrap();
        let run = |threads| {
            on_threads(threads, || {
                let loss = cross_entropy(&x, &labels(&y), 0.1).unwrap();
                let grads = loss.backward().unwrap();
                let gradient = grads.get(&x).unwrap().flatten_all().unwrap();
                (loss.to_scalar::<f32>().unwrap(), gradient.to_vec1::<f32>().unwrap())
            })
        };
        let (loss, gradient) = run(1);
        prop_assert!((loss, &gradient) == (run(2).0, &run(2).1));
        prop_assert!((loss, &gradient) == (run(3).0, &run(3).1));
        let exact = slow(&exact, &y, 0.1);
        let error = (f64::from(loss) - exact).abs() / exact.max(1.0);
        let total: f64 = gradient.iter().map(|&g| f64::from(g)).sum();
        println!("cross entropy of ({n}, {classes}): relative error against f64 {error:.1e}");
        prop_assert!(error < 1e-6 && total.abs() < 2e-6, "{error} {total}");
    }
}

#[test]
fn scores_sum_to_the_loss_and_count_the_hits() -> Result<()> {
    let logits = tensor(values("logits", 0, 12), (4, 3))?;
    let y = labels(&[0, 1, 2, 0]);
    let scores = score_classes(&logits, &y, 0.1)?;
    let mean = f64::from(cross_entropy(&logits, &y, 0.1)?.to_scalar::<f32>()?);
    assert!((scores.loss_sum / 4.0 - mean).abs() < 1e-6);
    let best = logits.argmax(1)?.to_vec1::<u32>()?;
    let hits = best.iter().zip([0, 1, 2, 0]).filter(|(a, b)| **a == *b).count();
    assert_eq!((scores.n_correct, scores.losses.len()), (hits, 4));
    Ok(())
}

#[test]
fn hits_are_counted_alike_alone_and_in_parallel() -> Result<()> {
    for (n, classes) in [(1usize, 1usize), (7, 3), (1000, 5)] {
        // Few values, so that many rows have several largest ones.
        let rounded = |v: &f32| (2.0 * v).round();
        let logits: Vec<f32> = values("logits", 0, n * classes).iter().map(rounded).collect();
        let logits = tensor(logits, (n, classes))?;
        let given: Vec<i64> =
            (0..n).map(|i| if i % 5 == 4 { IGNORED_LABEL } else { (i % classes) as i64 }).collect();
        let given = Tensor::from_vec(given, n, &Device::Cpu)?;
        assert_eq!(count_correct(&logits, &given)?, score_classes(&logits, &given, 0.0)?.n_correct);
    }
    Ok(())
}

#[test]
fn extreme_logits_stay_finite_and_nan_stays_visible() -> Result<()> {
    let loss = |row: [f32; 2]| -> Result<f32> {
        cross_entropy(&tensor(row.to_vec(), (1, 2))?, &labels(&[1]), 0.0)?.to_scalar()
    };
    assert_eq!(loss([1e30, 1e30])?, std::f32::consts::LN_2);
    assert_eq!(loss([1e4, -1e4])?, 2e4);
    assert!(loss([f32::NAN, 0.0])?.is_nan());
    Ok(())
}

#[test]
fn a_label_that_is_no_class_is_named() -> Result<()> {
    let logits = tensor(vec![0.0; 6], (2, 3))?;
    let error = cross_entropy(&logits, &labels(&[0, 3]), 0.0).unwrap_err().to_string();
    assert!(error.contains("label 3 for a model with 3 outputs"), "{error}");
    assert_refused(cross_entropy(&logits, &labels(&[0]), 0.0), "1 labels for 2 samples");
    Ok(())
}
