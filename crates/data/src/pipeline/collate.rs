//! One request -> one batch: loads its samples, and deals with those that cannot be read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::{Device, Tensor};

use crate::error::{Error, SampleError};
use crate::failpoint;
use crate::ops::Segments;
use crate::pipeline::mixup::{Mixture, Sample, StepKey};
use crate::pipeline::request::{Loaded, Request, Settings, Unreadable};
use crate::plan::{MixupPlan, OnBadSample};
use crate::read::panic_message;
use crate::rng::{Key, Purpose};
use crate::{Batch, Dataset, IGNORED, IGNORED_LABEL, Target};

/// Unreadable samples in a row after which `skip` gives up.
const MAX_CONSECUTIVE_BAD_SAMPLES: usize = 100;

/// Loads one pass into one buffer. Stops early, with what it has, once `cancelled`.
pub(crate) fn load(
    dataset: &dyn Dataset,
    request: &Request,
    settings: &Settings,
    cancelled: &dyn Fn() -> bool,
) -> Result<Loaded, Error> {
    let size: usize = dataset.shape().iter().product();
    // The tensor's own memory: filled in place, and never cleared first.
    let mut values = Vec::with_capacity(size * request.samples.len());
    let mut targets = Vec::with_capacity(request.samples.len());
    let mut samples = Vec::with_capacity(request.samples.len());
    let mut unreadable = Vec::new();
    for (at, &sample) in request.samples.iter().enumerate() {
        if cancelled() {
            break;
        }
        let [copy, _] = request.copies.get(at).copied().unwrap_or_default();
        let found = load_or_replace(dataset, sample, copy, &mut values, request.epoch, settings)?;
        unreadable.extend(found.warning);
        if let Some((sample, target)) = found.sample {
            samples.push(sample);
            targets.push(target);
        }
    }
    let is_whole = samples.len() == request.samples.len() && !request.partners.is_empty();
    let mixed = settings.mixup.filter(|_| is_whole);
    let mixed = mixed
        .map(|plan| Mixing { dataset, request, settings, plan: &plan }.mix(&mut values, &targets));
    let length = settings.pad_to_longest.then(|| longest(dataset, &samples)).flatten();
    if let Some(length) = length {
        cut(&mut values, &mut targets, dataset, length);
    }
    let mut batch = to_batch(dataset, values, &targets, mixed.transpose()?, samples, length)?;
    batch.unreadable = unreadable.len() as u64;
    Ok(Loaded { batch, unreadable })
}

/// Places of the longest of `samples` before its padding, up to a multiple of which processors like
/// multiples; `None` if nothing can be cut off.
fn longest(dataset: &dyn Dataset, samples: &[u32]) -> Option<usize> {
    const MULTIPLE: usize = 8;
    let whole = *dataset.shape().first()?;
    let lengths: Option<Vec<usize>> =
        samples.iter().map(|&sample| dataset.length(sample as usize)).collect();
    let longest = lengths?.into_iter().max()?.next_multiple_of(MULTIPLE);
    (longest < whole && dataset.target_shape().first() == Some(&whole)).then_some(longest)
}

/// Cuts samples and their labels off after `length` places.
fn cut(values: &mut Vec<f32>, targets: &mut [Target], dataset: &dyn Dataset, length: usize) {
    let places = dataset.shape()[0];
    let of = |shape: &[usize]| shape[1..].iter().product::<usize>();
    let (size, kept) = (places * of(dataset.shape()), length * of(dataset.shape()));
    for (row, start) in (0..values.len()).step_by(size.max(1)).enumerate() {
        values.copy_within(start..start + kept, row * kept);
    }
    values.truncate(values.len() / size.max(1) * kept);
    let kept = length * of(dataset.target_shape());
    for target in targets {
        match target {
            Target::Classes(labels) => labels.truncate(kept),
            Target::Series(numbers) => numbers.truncate(kept),
            Target::Class(_) | Target::Value(_) => {}
        }
    }
}

/// The samples of a pass and how they are mixed with their partners.
struct Mixing<'a> {
    dataset: &'a dyn Dataset,
    request: &'a Request,
    settings: &'a Settings,
    plan: &'a MixupPlan,
}

impl Mixing<'_> {
    /// Mixes the images `values`; what they are then, a probability of each class.
    fn mix(&self, values: &mut [f32], targets: &[Target]) -> Result<Vec<f32>, Error> {
        let Self { dataset, request, settings, plan } = *self;
        let &[channels, height, width] = dataset.shape() else {
            return Err(Error::Batch { what: "only images can be mixed".to_owned() });
        };
        let shape = [channels, height, width];
        let place =
            StepKey { seed: settings.seed, epoch: request.epoch.unwrap_or(0), step: request.step };
        let n_targets = plan.classes;
        let mut mixed = Vec::with_capacity(targets.len() * n_targets);
        for target in targets {
            mixed.extend(probabilities(target, n_targets)?);
        }
        let rows = values.chunks_exact_mut(shape.iter().product());
        let rows = rows.zip(mixed.chunks_exact_mut(n_targets));
        let mut rows = rows.zip(request.samples.iter().zip(&request.partners)).peekable();
        let copies = |at: usize| request.copies.get(at).copied().unwrap_or_default();
        let mut at = 0;
        while let Some(((image, target), (&sample, &partner))) = rows.next() {
            let [own_copy, copy] = copies(at);
            at += 1;
            let mixture = Mixture::of_pair(plan, place, [sample, partner], (height, width));
            let own = Sample { image, target };
            // Others of these samples may have been drawn.
            let are_these = copies(at) == [copy, own_copy];
            if let Some(((image, target), _)) =
                rows.next_if(|(_, pair)| are_these && pair == &(&partner, &sample))
            {
                at += 1;
                mixture.apply([own, Sample { image, target }], shape);
            } else if (partner, copy) != (sample, own_copy) {
                // It is mixed with this one in another pass, too.
                let (mut image, mut target) = self.partner(partner, copy)?;
                let other = Sample { image: &mut image, target: &mut target };
                mixture.apply([own, other], shape);
            }
        }
        Ok(mixed)
    }

    /// The values of a sample that is in another pass, and its probabilities of classes.
    fn partner(&self, sample: u32, copy: u32) -> Result<(Vec<f32>, Vec<f32>), Error> {
        let Self { dataset, request, settings, plan } = *self;
        let mut values = Vec::new();
        let found = load_or_replace(dataset, sample, copy, &mut values, request.epoch, settings)?;
        let none = || Error::Batch { what: "a partner of an evaluation".to_owned() };
        let (_, target) = found.sample.ok_or_else(none)?;
        Ok((values, probabilities(&target, plan.classes)?))
    }
}

/// The randomness of a sample in an epoch. Its turns alternate; half of all samples begin with one.
fn augmentation_key(seed: u64, epoch: u64, place: u64) -> Key {
    let first = Key::new(seed, Purpose::Alternate, 0, place).bits(0);
    let turn = first.wrapping_add(epoch) & 1 == 1;
    Key::new(seed, Purpose::Augment, epoch, place).in_turn(turn)
}

/// A probability of each class: 1 for that of a label.
fn probabilities(target: &Target, classes: usize) -> Result<Vec<f32>, Error> {
    let unfit = || Error::Batch { what: format!("{target:?} of {classes} classes is mixed") };
    match target {
        Target::Class(label) => {
            let mut one_hot = vec![0.0; classes];
            *one_hot.get_mut(*label as usize).ok_or_else(unfit)? = 1.0;
            Ok(one_hot)
        }
        Target::Series(values) if values.len() == classes => Ok(values.clone()),
        _ => Err(unfit()),
    }
}

/// The loaded sample.
struct LoadedSample {
    /// The appended sample and its target; `None` if it was left out.
    sample: Option<(u32, Target)>,
    /// The problem with the requested sample.
    warning: Option<Unreadable>,
}

/// Loads a copy of a sample: each copy has an augmentation of its own.
fn load_or_replace(
    dataset: &dyn Dataset,
    sample: u32,
    copy: u32,
    values: &mut Vec<f32>,
    epoch: Option<u64>,
    settings: &Settings,
) -> Result<LoadedSample, Error> {
    let index = sample as usize;
    let place = u64::from(copy) << 32 | u64::from(sample);
    let key = epoch.map(|epoch| augmentation_key(settings.seed, epoch, place));
    let source = match load_caught(dataset, index, key, values) {
        Ok(target) => return Ok(LoadedSample { sample: Some((sample, target)), warning: None }),
        Err(source) => source,
    };
    if settings.on_bad_sample == OnBadSample::Error || source.ends_the_run() {
        return Err(Error::Sample { index, source });
    }
    let problem = format!("sample {sample}: {source}");
    let unreadable = |problem| Some(Unreadable { sample, problem });
    if epoch.is_none() {
        // A stand-in would be counted twice: what cannot be read is left out of the evaluation.
        return Ok(LoadedSample { sample: None, warning: unreadable(problem) });
    }
    let (used, target) = substitute(dataset, index, source, key, values)?;
    let warning = unreadable(format!("{problem}; used sample {used} instead"));
    Ok(LoadedSample { sample: Some((used, target)), warning })
}

/// The next readable sample after `bad` in the data set, from the start again after its end.
fn substitute(
    dataset: &dyn Dataset,
    bad: usize,
    mut error: SampleError,
    key: Option<Key>,
    values: &mut Vec<f32>,
) -> Result<(u32, Target), Error> {
    let n = dataset.len();
    let tries = n.min(MAX_CONSECUTIVE_BAD_SAMPLES);
    for distance in 1..tries {
        let index = (bad + distance) % n;
        match load_caught(dataset, index, key, values) {
            Ok(target) => return Ok((index as u32, target)),
            Err(source) if source.ends_the_run() => return Err(Error::Sample { index, source }),
            Err(next) => error = next,
        }
    }
    Err(Error::ManyBadSamples { first: bad, count: tries, source: error })
}

/// Appends one sample, or nothing; a panic of a decoder is an error of the sample.
fn load_caught(
    dataset: &dyn Dataset,
    index: usize,
    key: Option<Key>,
    values: &mut Vec<f32>,
) -> Result<Target, SampleError> {
    let before = values.len();
    let load = catch_unwind(AssertUnwindSafe(|| {
        failpoint::reach("sample");
        dataset.load(index, key, values)
    }));
    let loaded = load.unwrap_or_else(|panic| {
        Err(SampleError::Panicked { name: dataset.name(index), message: panic_message(&*panic) })
    });
    if loaded.is_err() {
        values.truncate(before);
    }
    loaded
}

fn to_batch(
    dataset: &dyn Dataset,
    values: Vec<f32>,
    targets: &[Target],
    mixed: Option<Vec<f32>>,
    samples: Vec<u32>,
    length: Option<usize>,
) -> Result<Batch, Error> {
    let n = samples.len();
    let mut shape = [&[n], dataset.shape()].concat();
    let class = |target: &Target| match target {
        Target::Class(label) => vec![*label],
        Target::Classes(labels) => labels.clone(),
        Target::Value(_) | Target::Series(_) => vec![],
    };
    let value = |target: &Target| match target {
        Target::Value(value) => vec![*value],
        Target::Series(values) => values.clone(),
        Target::Class(_) | Target::Classes(_) => vec![],
    };
    let array = dataset.target_shape();
    let mut answers = [&[n], array].concat();
    if let Some(length) = length {
        (shape[1], answers[1]) = (length, length);
    }
    let numbers = if array.is_empty() { vec![n, 1] } else { answers.clone() };
    let cpu = &Device::Cpu;
    let tensors = Tensor::from_vec(values, shape, cpu).and_then(|inputs| {
        let targets = if let Some(mixed) = mixed {
            let classes = mixed.len() / n.max(1);
            Tensor::from_vec(mixed, (n, classes), cpu)
        } else if dataset.classifies() {
            labels(targets.iter().flat_map(class).collect(), answers)
        } else {
            Tensor::from_vec(targets.iter().flat_map(value).collect::<Vec<f32>>(), numbers, cpu)
        };
        Ok((inputs, targets?))
    });
    let (inputs, targets) = tensors.map_err(|error| Error::Batch { what: error.to_string() })?;
    let segments: Option<Vec<Vec<usize>>> =
        samples.iter().map(|&sample| dataset.segments(sample as usize)).collect();
    let segments = segments.filter(|all| !all.is_empty()).map(Segments::new);
    Ok(Batch { inputs, targets, samples, segments, unreadable: 0 })
}

/// Builds a tensor of labels: u32, or i64 if some of them do not count.
fn labels(labels: Vec<u32>, shape: Vec<usize>) -> candle_core::Result<Tensor> {
    if !labels.contains(&IGNORED) {
        return Tensor::from_vec(labels, shape, &Device::Cpu);
    }
    let label = |label| if label == IGNORED { IGNORED_LABEL } else { i64::from(label) };
    Tensor::from_vec(labels.into_iter().map(label).collect::<Vec<_>>(), shape, &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::sampler::EpochOrder;
    use crate::pipeline::sampler::tests::{batch, data};
    use crate::pipeline::weighted_sampling::SampleWeights;
    use crate::plan::{MixupMode, Sampler};
    use crate::units::{Rank, WorldSize};

    /// Sample i is a picture of 2 x 3 around i, of class i mod 4.
    struct Pictures;

    impl Dataset for Pictures {
        fn len(&self) -> usize {
            23
        }

        fn shape(&self) -> &[usize] {
            &[1, 2, 3]
        }

        fn classifies(&self) -> bool {
            true
        }

        fn name(&self, index: usize) -> String {
            index.to_string()
        }

        fn load(
            &self,
            index: usize,
            key: Option<Key>,
            values: &mut Vec<f32>,
        ) -> Result<Target, SampleError> {
            let mut noise = key.unwrap().stream();
            values.extend((0..6).map(|_| index as f32 + noise.uniform() as f32));
            Ok(Target::Class(index as u32 % 4))
        }
    }

    const MIXUP: MixupPlan = MixupPlan {
        mixup_alpha: 0.8,
        cutmix_alpha: 1.0,
        prob: 0.9,
        switch_prob: 0.5,
        mode: MixupMode::Pair,
        off_epoch: None,
        classes: 4,
    };

    /// Loads an epoch in passes of `size` samples of a global batch of 12: each sample with its
    /// values and its target.
    fn epoch(size: u32, mixup: Option<MixupPlan>) -> Vec<(u32, Vec<f32>, Tensor)> {
        epoch_of(size, mixup, |order| order)
    }

    /// Loads an epoch in another order.
    fn epoch_of(
        size: u32,
        mixup: Option<MixupPlan>,
        change: impl Fn(EpochOrder) -> EpochOrder,
    ) -> Vec<(u32, Vec<f32>, Tensor)> {
        let mut plan = data(Pictures.len(), Sampler::Shards, true, false);
        plan.mixup = mixup;
        let order = EpochOrder::new(&plan, &batch(size, 12 / size, 1, 1), WorldSize::ONE, 5, 3);
        let order = change(order);
        let mut found = Vec::new();
        for step in 0..order.steps() {
            for pass in order.passes(step, Rank(0)) {
                let request = Request {
                    samples: pass.samples,
                    partners: pass.partners,
                    copies: pass.copies,
                    step: step as u64,
                    epoch: Some(3),
                };
                let settings = Settings::new(&plan, 9);
                let batch = load(&Pictures, &request, &settings, &|| false).unwrap().batch;
                for (row, &sample) in batch.samples.iter().enumerate() {
                    let values = batch.inputs.get(row).unwrap().flatten_all().unwrap();
                    let target = batch.targets.get(row).unwrap();
                    found.push((sample, values.to_vec1().unwrap(), target));
                }
            }
        }
        found
    }

    #[test]
    fn mixtures_are_the_same_in_passes_of_any_size() {
        let mixed = |size| -> Vec<(u32, Vec<f32>, Vec<f32>)> {
            let rows = epoch(size, Some(MIXUP)).into_iter();
            rows.map(|(sample, values, target)| (sample, values, target.to_vec1().unwrap()))
                .collect()
        };
        let whole = mixed(12);
        for size in [6, 4, 3, 1] {
            assert_eq!(mixed(size), whole, "passes of {size}");
        }
        let plain = epoch(12, None);
        let mut n_mixed = 0;
        for ((sample, values, target), (same, own, label)) in whole.iter().zip(&plain) {
            assert_eq!((sample, *sample % 4), (same, label.to_scalar::<u32>().unwrap()));
            let sum: f32 = target.iter().sum();
            assert!((sum - 1.0).abs() < 1e-6, "{target:?}");
            n_mixed += usize::from(values != own);
        }
        // Small images are often left by an area of no pixel.
        assert!((6..23).contains(&n_mixed), "{n_mixed}");
    }

    #[test]
    fn what_is_drawn_again_is_augmented_anew_and_mixed_alike_in_passes_of_any_size() {
        // Each of two samples is often its own neighbour.
        let odds = SampleWeights::new([1.0, 1.0].into_iter());
        let drawn = |size, mixup| -> Vec<(u32, Vec<f32>)> {
            let rows =
                epoch_of(size, mixup, |order| order.with_weighted_draws(&odds, 5, 3)).into_iter();
            rows.map(|(sample, values, _)| (sample, values)).collect()
        };
        let plain = drawn(12, None);
        assert!((1..plain.len()).all(|at| !plain[..at].contains(&plain[at])), "{plain:?}");
        let mixed = drawn(12, Some(MIXUP));
        for size in [6, 4, 3, 1] {
            assert_eq!(drawn(size, Some(MIXUP)), mixed, "passes of {size}");
        }
    }
}
