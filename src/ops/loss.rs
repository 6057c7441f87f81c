//! Softmax cross-entropy with class labels or class probabilities, and the scores of an evaluation.

use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
#[cfg(feature = "cuda")]
use super::cuda;
use super::lanes::{build, maximum, sum, sum_of_pairs, vectorised};
use super::math::exp;
use super::storage::{output, read, slice, tensor};

/// The label of a sample that does not count, as `ignore_index` of PyTorch; possible in i64 labels only.
pub const IGNORED_LABEL: i64 = -100;

/// Mean over the samples that count of -sum target log softmax(logits), with target = (1 - smoothing)
/// one-hot + smoothing / classes, as `torch.nn.CrossEntropyLoss(label_smoothing=...)`.
///
/// logits (n, classes) f32, labels (n) u32 or i64 -> scalar f32; sums over samples in f64. The logits are
/// not copied: backward makes their gradient, and nothing else of their size. Labels on a GPU, u32, are not looked at:
/// whoever put them there has seen that they are classes.
///
/// # Errors
///
/// A label that is neither a class nor [`IGNORED_LABEL`], no sample that counts (PyTorch: NaN), or shapes
/// that do not fit.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if labels.device().is_cuda() {
        let n = labels.dims1()?;
        return apply(logits, Targets::Placed(labels.clone()), smoothing, n as f64);
    }
    let labels = checked_labels(logits, labels)?;
    let counted = labels.iter().flatten().count();
    if counted == 0 {
        bail!("{} labels, of which none counts", labels.len());
    }
    apply(logits, Targets::Labels(labels), smoothing, counted as f64)
}

/// Sum over the samples that count instead of their mean, and how many they are: where samples of several
/// batches are averaged, the mean of the batches' means is not the mean over the samples.
///
/// # Errors
///
/// As [`cross_entropy`], but no sample need count.
pub fn cross_entropy_sum(
    logits: &Tensor,
    labels: &Tensor,
    smoothing: f64,
) -> Result<(Tensor, usize)> {
    let labels = checked_labels(logits, labels)?;
    let counted = labels.iter().flatten().count();
    Ok((apply(logits, Targets::Labels(labels), smoothing, 1.0)?, counted))
}

/// [`cross_entropy`] with a probability of each class as target, (n, classes) f32, as PyTorch's with
/// floating-point targets. No gradient flows to the targets.
///
/// # Errors
///
/// No samples, or shapes that do not fit.
pub fn cross_entropy_soft(logits: &Tensor, targets: &Tensor, smoothing: f64) -> Result<Tensor> {
    let (n, classes) = logits.dims2()?;
    if n == 0 || classes == 0 || targets.dims() != logits.dims() {
        bail!("targets {:?} for logits {:?}", targets.dims(), logits.dims());
    }
    let targets = Targets::Probabilities(targets.detach().contiguous()?);
    apply(logits, targets, smoothing, n as f64)
}

/// Scores of the samples of one batch that count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassScores {
    /// Loss of each sample.
    pub losses: Vec<f32>,
    /// Sum of the losses.
    pub loss_sum: f64,
    /// Samples whose largest logit (the first, if several) is that of their label.
    pub n_correct: usize,
}

/// Losses and hits of each sample, without a graph. Arguments as [`cross_entropy`].
///
/// # Errors
///
/// As [`cross_entropy`], but no sample need count.
pub fn score_classes(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<ClassScores> {
    let labels = checked_labels(logits, labels)?;
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        return score_on_gpu(logits, &labels, smoothing);
    }
    read([logits], |[values]| {
        let mut scores = ClassScores::default();
        for (row, label) in values.chunks_exact(values.len() / labels.len()).zip(labels) {
            let Some(label) = label else { continue };
            let (loss, _) = label_loss(row, label, smoothing);
            scores.losses.push(loss as f32);
            scores.loss_sum += loss;
            scores.n_correct += usize::from(first_maximum(row) == label);
        }
        Ok(scores)
    })
}

/// The class of each row's largest logit (the first, if several), (n) u32, on the GPU: nobody waits for it. `labels` as
/// [`cross_entropy`]'s on a GPU.
#[cfg(feature = "cuda")]
pub(crate) fn best_classes(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (logits, sizes) = (logits.contiguous()?, logits.dims2()?);
    let (gpu, at) = (cuda::Gpu::of_tensor(&logits)?, cuda::of_tensor(&logits)?);
    cuda::CrossEntropy::best(&gpu, at, &cuda::Targets::Placed(cuda::of_tensor(labels)?), sizes)
}

#[cfg(feature = "cuda")]
fn score_on_gpu(logits: &Tensor, labels: &[Option<usize>], smoothing: f64) -> Result<ClassScores> {
    let (logits, sizes) = (logits.contiguous()?, logits.dims2()?);
    let (gpu, at) = (cuda::Gpu::of_tensor(&logits)?, cuda::of_tensor(&logits)?);
    let targets = cuda::Targets::Labels(labels);
    let found = cuda::CrossEntropy::score(&gpu, at, &targets, sizes, smoothing)?;
    let mut scores = ClassScores::default();
    for ((label, loss), best) in labels.iter().zip(found.losses).zip(found.best) {
        let Some(label) = *label else { continue };
        scores.losses.push(loss as f32);
        scores.loss_sum += loss;
        scores.n_correct += usize::from(best as usize == label);
    }
    Ok(scores)
}

enum Targets {
    /// Classes; `None` does not count.
    Labels(Vec<Option<usize>>),
    /// Classes on the GPU, (n) u32.
    #[cfg(feature = "cuda")]
    Placed(Tensor),
    /// (n, classes), contiguous.
    Probabilities(Tensor),
}

#[cfg(feature = "cuda")]
impl Targets {
    fn on_gpu(&self) -> Result<cuda::Targets<'_>> {
        Ok(match self {
            Self::Labels(labels) => cuda::Targets::Labels(labels),
            Self::Placed(labels) => cuda::Targets::Placed(cuda::of_tensor(labels)?),
            Self::Probabilities(targets) => cuda::Targets::Probabilities(cuda::of_tensor(targets)?),
        })
    }
}

struct CrossEntropy {
    targets: Targets,
    smoothing: f64,
    /// What the sum of the losses is divided by.
    divisor: f64,
    /// What forward found out about each row that counts, for backward.
    rows: OnceLock<Vec<Option<Row>>>,
    /// The same on a GPU.
    #[cfg(feature = "cuda")]
    rows_on_gpu: OnceLock<cuda::CrossEntropy>,
}

/// What turns the logits of a row into the gradient: `factor` e^(logit - `largest`) minus the target.
#[derive(Clone, Copy)]
struct Row {
    largest: f32,
    /// The sum of the target over the sum of the exponentials.
    factor: f32,
}

fn apply(logits: &Tensor, targets: Targets, smoothing: f64, divisor: f64) -> Result<Tensor> {
    let op = CrossEntropy {
        targets,
        smoothing,
        divisor,
        rows: OnceLock::new(),
        #[cfg(feature = "cuda")]
        rows_on_gpu: OnceLock::new(),
    };
    chain::apply1(&logits.contiguous()?, op)
}

impl CrossEntropy {
    /// Loss of each row, 0 where it does not count.
    fn losses(&self, logits: &[f32], classes: usize) -> Result<Vec<(f64, Option<Row>)>> {
        let rows = logits.par_chunks_exact(classes).with_min_len(16);
        let counted = |(loss, row)| (loss, Some(row));
        match &self.targets {
            Targets::Labels(labels) => {
                let loss = |(x, label): (&[f32], &Option<usize>)| {
                    label.map_or((0.0, None), |label| counted(label_loss(x, label, self.smoothing)))
                };
                Ok(rows.zip(labels).map(loss).collect())
            }
            #[cfg(feature = "cuda")]
            Targets::Placed(_) => bail!("labels on a GPU for logits that are not"),
            Targets::Probabilities(targets) => read([targets], |[targets]| {
                let rows = rows.zip(targets.par_chunks_exact(classes));
                Ok(rows.map(|(x, t)| counted(soft_loss(x, t, self.smoothing))).collect())
            }),
        }
    }

    /// (softmax - target) scale, in blocks that may begin and end within a row.
    fn gradient(
        &self,
        x: &[f32],
        targets: Option<&[f32]>,
        rows: &[Option<Row>],
        scale: f64,
    ) -> Vec<f32> {
        let classes = x.len() / rows.len();
        let hit = ((1.0 - self.smoothing) * scale) as f32;
        let uniform = (self.smoothing * scale) as f32 / classes as f32;
        build(x.len(), |start, block| {
            let mut rest = block;
            let mut at = start;
            while !rest.is_empty() {
                let (index, class) = (at / classes, at % classes);
                let (gradient, after) = rest.split_at_mut((classes - class).min(rest.len()));
                let here = at..at + gradient.len();
                (rest, at) = (after, here.end);
                // A block comes zeroed, which is the gradient of a row that does not count.
                let Some(row) = rows[index] else { continue };
                let row = Row { factor: row.factor * scale as f32, ..row };
                let target = targets.map(|targets| &targets[here.clone()]);
                vectorised(
                    #[inline(always)]
                    || part_of_gradient(gradient, &x[here.clone()], row, uniform, target, hit),
                );
                if let Targets::Labels(labels) = &self.targets
                    && let Some(at) = labels[index].and_then(|label| label.checked_sub(class))
                    && let Some(gradient) = gradient.get_mut(at)
                {
                    *gradient -= hit;
                }
            }
        })
    }
}

/// Factor e^(x - largest) - uniform - hit target.
#[inline(always)]
fn part_of_gradient(
    gradient: &mut [f32],
    x: &[f32],
    Row { largest, factor }: Row,
    uniform: f32,
    target: Option<&[f32]>,
    hit: f32,
) {
    for (gradient, x) in gradient.iter_mut().zip(x) {
        *gradient = exp(x - largest) * factor - uniform;
    }
    if let Some(target) = target {
        for (gradient, target) in gradient.iter_mut().zip(target) {
            *gradient -= hit * target;
        }
    }
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, classes) = layout.shape().dims2()?;
        let (losses, rows): (Vec<f64>, _) =
            self.losses(slice(logits, layout)?, classes)?.into_iter().unzip();
        // Forward runs once for each operation.
        self.rows.get_or_init(|| rows);
        Ok(output(vec![(losses.iter().sum::<f64>() / self.divisor) as f32], ()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, logits: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (sizes, at) = (layout.shape().dims2()?, cuda::of_storage(logits, layout)?);
        let targets = self.targets.on_gpu()?;
        let numbers = (self.smoothing, self.divisor);
        let gpu = cuda::Gpu::of(logits);
        let (loss, rows) = cuda::CrossEntropy::forward(&gpu, at, &targets, sizes, numbers)?;
        self.rows_on_gpu.get_or_init(|| rows);
        Ok((loss, ().into()))
    }

    fn bwd(&self, logits: &Tensor, _loss: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        if let Some(rows) = self.rows_on_gpu.get() {
            return rows.backward(&cuda::Gpu::of_tensor(dy)?, logits, dy).map(Some);
        }
        let scale = f64::from(dy.to_scalar::<f32>()?) / self.divisor;
        let Some(rows) = self.rows.get() else { bail!("backward of a loss that was not computed") };
        let gradient = match &self.targets {
            Targets::Labels(_) => read([logits], |[x]| Ok(self.gradient(x, None, rows, scale)))?,
            #[cfg(feature = "cuda")]
            Targets::Placed(_) => bail!("labels on a GPU for logits that are not"),
            Targets::Probabilities(targets) => {
                read([logits, targets], |[x, t]| Ok(self.gradient(x, Some(t), rows, scale)))?
            }
        };
        Ok(Some(tensor(gradient, logits.shape())?))
    }
}

/// The largest logit, the sum of e^(logit - largest), and the sum of logit - largest. NaN if any logit is.
fn sums(x: &[f32]) -> (f32, f64, f64) {
    vectorised(
        #[inline(always)]
        || {
            // The large numbers are subtracted first: their difference is exact.
            let largest = maximum(x);
            let exponentials = sum(
                x,
                #[inline(always)]
                |x| exp(x - largest),
            );
            (
                largest,
                exponentials,
                sum(
                    x,
                    #[inline(always)]
                    |x| x - largest,
                ),
            )
        },
    )
}

fn label_loss(x: &[f32], label: usize, smoothing: f64) -> (f64, Row) {
    let (largest, exponentials, differences) = sums(x);
    let log_sum = exponentials.ln();
    let hit = log_sum - (f64::from(x[label]) - f64::from(largest));
    let row = Row { largest, factor: (1.0 / exponentials) as f32 };
    if smoothing == 0.0 {
        return (hit, row);
    }
    let mean = log_sum - differences / x.len() as f64;
    ((1.0 - smoothing) * hit + smoothing * mean, row)
}

fn soft_loss(x: &[f32], target: &[f32], smoothing: f64) -> (f64, Row) {
    let (largest, exponentials, differences) = sums(x);
    let (weight, hits) = vectorised(
        #[inline(always)]
        || {
            let hits = sum_of_pairs(
                x,
                target,
                #[inline(always)]
                |x, t| t * (x - largest),
            );
            (
                sum(
                    target,
                    #[inline(always)]
                    |t| t,
                ),
                hits,
            )
        },
    );
    let log_sum = exponentials.ln();
    let uniform = if smoothing == 0.0 { 0.0 } else { smoothing / x.len() as f64 * differences };
    let weight = (1.0 - smoothing) * weight + smoothing;
    let loss = weight * log_sum - (1.0 - smoothing) * hits - uniform;
    (loss, Row { largest, factor: (weight / exponentials) as f32 })
}

fn first_maximum(row: &[f32]) -> usize {
    let mut best = 0;
    for (class, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = class;
        }
    }
    best
}

/// The class of each sample; `None` if it does not count.
fn checked_labels(logits: &Tensor, labels: &Tensor) -> Result<Vec<Option<usize>>> {
    let (n, classes) = logits.dims2()?;
    let labels: Vec<i64> = match labels.dtype() {
        DType::I64 => labels.to_vec1()?,
        _ => labels.to_vec1::<u32>()?.into_iter().map(i64::from).collect(),
    };
    if n == 0 || labels.len() != n {
        bail!("{} labels for {n} samples", labels.len());
    }
    let class = |label: i64| match usize::try_from(label) {
        Ok(class) if class < classes => Ok(Some(class)),
        _ if label == IGNORED_LABEL => Ok(None),
        _ => bail!("label {label} for a model with {classes} outputs"),
    };
    labels.into_iter().map(class).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use proptest::prelude::*;

    use super::super::testing::{check_gradients, values};
    use super::*;

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
        assert!(cross_entropy(&x, &none, 0.0).is_err());
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
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
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
        assert!(cross_entropy(&logits, &labels(&[0]), 0.0).is_err());
        Ok(())
    }
}
