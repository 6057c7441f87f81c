//! What Python sends of a sample -> the sample of a split.

use std::sync::Arc;

use serde_json::json;

use crate::config::kind::Options;
use crate::error::{SampleError, Traceback};
use crate::plan::Targets;
use crate::rng::{Key, Purpose};
use crate::sources::holdout::{SplitUnits, Splittable};
use crate::sources::python::numbers::Dtype;
use crate::sources::python::worker::{Failed, Fault, SampleHeader, TargetHeader, WorkerPool};
use crate::{Dataset, Target};

/// The form of the samples, by the names under which a survey keeps it.
const DTYPE: &str = "dtype";
const SHAPE: &str = "shape";
const NUMBERS: &str = "numbers";

/// The epoch that no run reaches: keeps the seeds of evaluations from those of training.
const EVALUATION: u64 = u64::MAX;

/// Samples of one part of the data set.
#[derive(Clone, Debug, Default)]
pub(super) struct Indices {
    /// Number of the part in the workers.
    pub(super) part: usize,
    pub(super) places: Vec<u32>,
    /// Class of each sample of the part, where that is known.
    pub(super) labels: Option<Arc<[u32]>>,
}

impl Splittable for Indices {
    fn units(&self) -> SplitUnits {
        let label = |&place: &u32| self.labels.as_ref().map_or(0, |all| all[place as usize]);
        SplitUnits::Samples(self.places.iter().map(label).collect())
    }

    fn only(&self, places: &[usize]) -> Self {
        let labels = self.labels.clone();
        Self { part: self.part, places: self.places.only(places), labels }
    }
}

/// What all samples have in common.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SampleForm {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Numbers of a target; `None` for a class.
    pub(super) numbers: Option<usize>,
}

impl SampleForm {
    /// The form of a sample for a loss with such targets. To a number, an int is one.
    pub(super) fn of(header: &SampleHeader, targets: Targets) -> Result<Self, String> {
        let dtype = Dtype::of(&header.dtype);
        let unknown = || format!("has an input of the type `{}`, which is not read", header.dtype);
        let dtype = dtype.ok_or_else(unknown)?;
        let shape = header.shape.clone();
        if shape.is_empty() || shape.len() > 3 || shape.contains(&0) {
            return Err(format!(
                "has an input of the shape {shape:?}; it is to be (features), (steps, features) or \
                 (channels, height, width)"
            ));
        }
        let numbers = match &header.target {
            TargetHeader::Class(_) if targets == Targets::Classes => None,
            TargetHeader::Class(_) => Some(1),
            TargetHeader::Numbers { n, .. } => Some(*n),
        };
        if numbers == Some(0) {
            return Err("has an empty target".to_owned());
        }
        Ok(Self { dtype, shape, numbers })
    }

    /// The form that the survey of a run found.
    pub(super) fn from_survey(found: &Options) -> Option<Self> {
        let shape = serde_json::from_value(found.get(SHAPE)?.clone()).ok()?;
        let numbers = serde_json::from_value(found.get(NUMBERS)?.clone()).ok()?;
        Some(Self { dtype: Dtype::of(found.get(DTYPE)?.as_str()?)?, shape, numbers })
    }

    /// The form as a survey stores it.
    pub(super) fn to_survey(&self) -> Options {
        let Self { dtype, shape, numbers } = self;
        let all = [(DTYPE, json!(dtype.name())), (SHAPE, json!(shape)), (NUMBERS, json!(numbers))];
        all.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// "[1, 8, 8] float32 with a class"
    pub(super) fn words(&self) -> String {
        let Self { dtype, shape, numbers } = self;
        let target = match numbers {
            None => "a class".to_owned(),
            Some(1) => "a number".to_owned(),
            Some(n) => format!("{n} numbers"),
        };
        format!("{shape:?} {} with {target}", dtype.words())
    }

    /// Note that images seem to have their channels last.
    pub(super) fn channels_last(&self) -> Option<String> {
        let &[first, second, last] = &self.shape[..] else { return None };
        (matches!(last, 1 | 3 | 4) && first > 4 && second > 4).then(|| {
            format!(
                "samples have the shape {:?}: images are to be (channels, height, width), so these \
                 would have {first} channels; `numpy.moveaxis(image, -1, 0)` puts channels first",
                self.shape
            )
        })
    }

    /// Appends the input of a sample, and returns its target. Refuses one of another form.
    pub(super) fn read(
        &self,
        header: &SampleHeader,
        bytes: &[u8],
        targets: Targets,
        values: &mut Vec<f32>,
    ) -> Result<Target, String> {
        let own = Self::of(header, targets)?;
        if own != *self {
            return Err(format!("is {}, but the first sample is {}", own.words(), self.words()));
        }
        let size = self.shape.iter().product::<usize>() * self.dtype.size();
        let Some((input, target)) = bytes.split_at_checked(size) else {
            let what = format!("has {} bytes, which do not fit {}", bytes.len(), self.words());
            return Err(what);
        };
        let infinite = |of: &str, (at, value): (usize, f64)| {
            format!("has {of} that is not finite: number {at} is {value}")
        };
        self.dtype.read(input, values).map_err(|wrong| infinite("an input", wrong))?;
        let (dtype, n) = match &header.target {
            TargetHeader::Class(class) if self.numbers.is_some() => {
                return Ok(Target::Value(*class as f32));
            }
            TargetHeader::Class(class) => {
                let known = u32::try_from(*class).map(Target::Class);
                return known.map_err(|_| format!("has the class {class}"));
            }
            TargetHeader::Numbers { dtype, n } => (Dtype::of(dtype), *n),
        };
        let mut numbers = Vec::with_capacity(n);
        let dtype = dtype.filter(|dtype| target.len() == n * dtype.size());
        let dtype = dtype.ok_or("has a target of a type that is not read")?;
        dtype.read(target, &mut numbers).map_err(|wrong| infinite("a target", wrong))?;
        Ok(match numbers[..] {
            [number] => Target::Value(number),
            _ => Target::Series(numbers),
        })
    }
}

/// One split.
pub(super) struct Samples {
    pub(super) pool: Arc<WorkerPool>,
    pub(super) object: String,
    pub(super) form: Arc<SampleForm>,
    pub(super) indices: Indices,
    /// Number of classes.
    pub(super) classes: usize,
    pub(super) targets: Targets,
    pub(super) seed: u64,
}

impl Samples {
    /// The target as the loss wants it.
    fn wanted(&self, target: Target) -> Result<Target, String> {
        match target {
            Target::Class(class) if class as usize >= self.classes => {
                Err(format!("has the class {class}, but the last one is {}", self.classes - 1))
            }
            Target::Value(value) if self.targets == Targets::MultiLabel => {
                Ok(Target::Series(vec![value]))
            }
            target => Ok(target),
        }
    }
}

impl Dataset for Samples {
    fn len(&self) -> usize {
        self.indices.places.len()
    }

    fn shape(&self) -> &[usize] {
        &self.form.shape
    }

    fn target_shape(&self) -> &[usize] {
        match self.form.numbers.as_slice() {
            [1] if self.targets != Targets::MultiLabel => &[],
            numbers => numbers,
        }
    }

    fn classifies(&self) -> bool {
        self.form.numbers.is_none() && self.classes > 0
    }

    fn label(&self, index: usize) -> Option<u32> {
        let labels = self.indices.labels.as_ref()?;
        Some(labels[self.indices.places[index] as usize])
    }

    fn name(&self, index: usize) -> String {
        format!("`{}[{}]`", self.object, self.indices.places[index])
    }

    fn ends_by_itself(&self) -> bool {
        true
    }

    fn load(
        &self,
        index: usize,
        key: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let part = self.indices.part;
        let place = self.indices.places[index];
        let seed = seed_of(self.seed, key, part, place);
        let read = |header: &SampleHeader, bytes: &[u8]| {
            self.form
                .read(header, bytes, self.targets, values)
                .and_then(|target| self.wanted(target))
        };
        let read = self.pool.sample(part, place, seed, read);
        let read = read.map_err(|fault| SampleError::of_python(&self.name(index), fault))?;
        read.map_err(|what| unusable(&self.name(index), what))
    }
}

/// The seed for a sample: that of its augmentation, or of the sample alone where nothing is random.
pub(super) fn seed_of(seed: u64, key: Option<Key>, part: usize, place: u32) -> u64 {
    let still = || Key::new(seed, Purpose::Generate, EVALUATION - part as u64, place.into());
    key.unwrap_or_else(still).bits(0)
}

pub(super) fn unusable(name: &str, what: String) -> SampleError {
    SampleError::Python { name: name.to_owned(), what, traceback: None }
}

impl SampleError {
    pub(super) fn of_python(name: &str, fault: Fault) -> Self {
        let name = name.to_owned();
        match fault {
            Fault::Failed(Failed { what, raised, traceback, .. }) => {
                let what = if raised { format!("raised {what}") } else { what };
                Self::Python { name, what, traceback: traceback.map(Traceback) }
            }
            Fault::Start(error) => {
                let what = format!("cannot be loaded: Python does not start: {error}");
                Self::PythonProcess { name, what, is_late: false, stack: None }
            }
            Fault::Lost { what, is_late, stack } => {
                Self::PythonProcess { name, what, is_late, stack }
            }
        }
    }
}
