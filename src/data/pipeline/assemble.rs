//! One request -> one batch: loads its samples, and deals with those that cannot be read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::{Device, Tensor};

use crate::data::caught::panic_message;
use crate::data::error::{Error, SampleError};
use crate::data::pipeline::request::{Loaded, Request, Settings, Unreadable};
use crate::data::{Batch, Dataset, IGNORED, IGNORED_LABEL, Target};
use crate::failpoint;
use crate::plan::OnBadSample;
use crate::rng::{Key, Purpose};

/// Unreadable samples in a row after which `skip` gives up.
const MOST_BAD_IN_A_ROW: usize = 100;

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
    for &sample in &request.samples {
        if cancelled() {
            break;
        }
        let found = load_or_replace(dataset, sample, &mut values, request.epoch, settings)?;
        unreadable.extend(found.warning);
        if let Some((sample, target)) = found.sample {
            samples.push(sample);
            targets.push(target);
        }
    }
    let mut batch = to_batch(dataset, values, &targets, samples)?;
    batch.unreadable = unreadable.len() as u64;
    Ok(Loaded { batch, unreadable })
}

/// What a requested sample became.
struct Found {
    /// The appended sample and its target; `None` if it was left out.
    sample: Option<(u32, Target)>,
    /// What was wrong with the requested one.
    warning: Option<Unreadable>,
}

fn load_or_replace(
    dataset: &dyn Dataset,
    sample: u32,
    values: &mut Vec<f32>,
    epoch: Option<u64>,
    settings: &Settings,
) -> Result<Found, Error> {
    let index = sample as usize;
    let key =
        epoch.map(|epoch| Key::new(settings.seed, Purpose::Augment, epoch, u64::from(sample)));
    let source = match load_caught(dataset, index, key, values) {
        Ok(target) => return Ok(Found { sample: Some((sample, target)), warning: None }),
        Err(source) => source,
    };
    if settings.on_bad_sample == OnBadSample::Error {
        return Err(Error::Sample { index, source });
    }
    let problem = format!("sample {sample}: {source}");
    let unreadable = |problem| Some(Unreadable { sample, problem });
    if epoch.is_none() {
        // A stand-in would be counted twice: what cannot be read is left out of the evaluation.
        return Ok(Found { sample: None, warning: unreadable(problem) });
    }
    let (used, target) = substitute(dataset, (index, source), key, values)?;
    let warning = unreadable(format!("{problem}; used sample {used} instead"));
    Ok(Found { sample: Some((used, target)), warning })
}

/// The next readable sample after `bad` in the data set, from the start again after its end.
fn substitute(
    dataset: &dyn Dataset,
    (bad, mut error): (usize, SampleError),
    key: Option<Key>,
    values: &mut Vec<f32>,
) -> Result<(u32, Target), Error> {
    let n = dataset.len();
    let tries = n.min(MOST_BAD_IN_A_ROW);
    for distance in 1..tries {
        let index = (bad + distance) % n;
        match load_caught(dataset, index, key, values) {
            Ok(target) => return Ok((index as u32, target)),
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
    samples: Vec<u32>,
) -> Result<Batch, Error> {
    let n = samples.len();
    let shape = [&[n], dataset.shape()].concat();
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
    let answers = [&[n], array].concat();
    let numbers = if array.is_empty() { vec![n, 1] } else { answers.clone() };
    let cpu = &Device::Cpu;
    let tensors = Tensor::from_vec(values, shape, cpu).and_then(|inputs| {
        let targets = if dataset.classifies() {
            labels(targets.iter().flat_map(class).collect(), answers)
        } else {
            Tensor::from_vec(targets.iter().flat_map(value).collect::<Vec<f32>>(), numbers, cpu)
        };
        Ok((inputs, targets?))
    });
    let (inputs, targets) = tensors.map_err(|error| Error::Batch { what: error.to_string() })?;
    Ok(Batch { inputs, targets, samples, unreadable: 0 })
}

/// As u32, or as i64 where some do not count.
fn labels(labels: Vec<u32>, shape: Vec<usize>) -> candle_core::Result<Tensor> {
    if !labels.contains(&IGNORED) {
        return Tensor::from_vec(labels, shape, &Device::Cpu);
    }
    let label = |label| if label == IGNORED { IGNORED_LABEL } else { i64::from(label) };
    Tensor::from_vec(labels.into_iter().map(label).collect::<Vec<_>>(), shape, &Device::Cpu)
}
