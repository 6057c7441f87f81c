//! The data set `python`: its options, what it counts, and its samples.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::closest;
use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options};
use crate::config::values;
use crate::error::{Error, SampleError, Traceback, shown};
use crate::inputs::{Inputs, PredictionRequest};
use crate::plan::{Part, Targets};
use crate::rng::{Key, Purpose};
use crate::sources::holdout::Parts;
use crate::sources::python::samples::{Indices, SampleForm, Samples, seed_of, unusable};
use crate::sources::python::worker::{
    Failed, Fault, Opened, Program, SampleHeader, Stage, WorkerPool,
};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::{Dataset, Splits};

/// your own code: a class or function in a Python file that gives a data set with `len()` and
/// `[index]`, as for torch's `DataLoader`. A sample is a pair of an input (nested lists, an array, a
/// tensor) and a target (a class, a number, several numbers). Each loader thread has a Python
/// process of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PythonData {
    /// the Python file; its folder is on the path of imports.
    #[schemars(extend("format" = "path"), example = "dataset.py")]
    pub file: PathBuf,
    /// name of the class or function in it.
    #[schemars(example = &"Digits")]
    pub object: String,
    /// the arguments that it is called with.
    #[serde(default, deserialize_with = "arguments")]
    #[schemars(extend("additionalProperties" = {}), example = example_options())]
    pub options: BTreeMap<String, Value>,
    /// class or function of the validation samples; default: that of `object`, if there are
    /// `val_options`. Or hold out samples with `data.val_fraction` or `data.folds`.
    #[serde(default)]
    #[schemars(example = &"Digits")]
    pub val_object: Option<String>,
    /// arguments for the validation samples: those of `options`, but for these.
    #[serde(default, deserialize_with = "some_arguments")]
    #[schemars(extend("additionalProperties" = {}), example = example_options())]
    pub val_options: Option<BTreeMap<String, Value>>,
    /// class or function of the test samples, in the same way; they are used once, at the end of
    /// training.
    #[serde(default)]
    #[schemars(example = &"Digits")]
    pub test_object: Option<String>,
    /// arguments for the test samples: those of `options`, but for these.
    #[serde(default, deserialize_with = "some_arguments")]
    #[schemars(extend("additionalProperties" = {}), example = example_options())]
    pub test_options: Option<BTreeMap<String, Value>>,
    /// the Python to run it; default: the `python3` of `PATH`, as an activated environment has it.
    #[serde(default)]
    #[schemars(extend("x-resume" = "safe"), example = &"venv/bin/python")]
    pub python: Option<String>,
    /// longest time that a sample may take; a process may take ten times as long to start.
    #[serde(default = "one_minute")]
    #[schemars(extend("x-resume" = "safe"))]
    pub timeout: values::Duration,
}

/// Reads arguments as JSON can pass them on: NaN and infinities would be lost on the way.
fn arguments<'de, D: Deserializer<'de>>(given: D) -> Result<BTreeMap<String, Value>, D::Error> {
    fn is_lost(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.iter().any(is_lost),
            Value::Object(table) => table.values().any(is_lost),
            _ => false,
        }
    }
    let given = BTreeMap::deserialize(given)?;
    if given.values().any(is_lost) {
        return Err(D::Error::custom("must hold no number that is not finite"));
    }
    Ok(given)
}

fn some_arguments<'de, D: Deserializer<'de>>(
    given: D,
) -> Result<Option<BTreeMap<String, Value>>, D::Error> {
    arguments(given).map(Some)
}

fn one_minute() -> values::Duration {
    values::Duration(Duration::from_mins(1))
}

fn example_options() -> Value {
    json!({ "root": "data/digits" })
}

/// The Python that is run by default.
const PYTHON: &str = "python3";

/// What the survey found, by the names under which it is kept.
const MODULES: &str = "modules";
const FINGERPRINT: &str = "fingerprint";

impl Kind for PythonData {
    const NAME: &'static str = "python";
    const CAPABILITIES: &'static [Capability] = &[
        Capability::Samples(Modality::Arrays),
        Capability::Split(BuiltinSplits {
            val: &["val_object", "val_options"],
            needs_val: true,
            test: &["test_object", "test_options"],
            deals: true,
        }),
    ];

    fn check(&self) -> Vec<OptionConflict> {
        let what = "must be more than 0".to_owned();
        let no_time = OptionConflict { key: "timeout", with: &[], what };
        Some(no_time).filter(|_| self.timeout.0.is_zero()).into_iter().collect()
    }
}

impl DataSource for PythonData {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        let opened = self.start(reading.survey.seed)?;
        let form = match SampleForm::from_survey(reading.found) {
            Some(form) => form,
            None => opened.first_sample(self, Part::Train, reading.survey.targets)?,
        };
        opened.splits(self, reading.survey, form)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let opened = self.start(request.seed)?;
        let form = opened.first_sample(self, Part::Train, request.targets)?;
        for &part in &opened.parts[1..] {
            let other = opened.first_sample(self, part, request.targets)?;
            if other != form {
                let key = self.key(part, Stage::Object);
                let what = format!(
                    "gives {} samples of {}, but training samples of {}",
                    part.name(),
                    other.words(),
                    form.words()
                );
                return Err(Error::Python { key, what, help: None });
            }
        }
        let Opened { version, program, modules, .. } = &opened.described;
        let fingerprint: Vec<&str> =
            opened.described.parts.iter().filter_map(|it| it.fingerprint.as_deref()).collect();
        let mut found = form.to_survey();
        found.insert(MODULES.to_owned(), json!(modules));
        if !fingerprint.is_empty() {
            found.insert(FINGERPRINT.to_owned(), json!(fingerprint.concat()));
        }
        let line = format!("{}, Python {version} ({})", self.words(), shown(program));
        let note = form.channels_last();
        let numbers = form.numbers;
        let splits = opened.splits(self, request, form)?;
        let multi_label = request.targets == Targets::MultiLabel && numbers.is_some();
        let n_targets = numbers.filter(|&n| n > 1 && !multi_label).unwrap_or(0);
        Ok(Survey {
            multi_label,
            n_targets,
            target: Vec::new(),
            notes: note.into_iter().collect(),
            line,
            found,
            ..Survey::of(&splits)
        })
    }

    fn target(&self) -> Result<Option<Targets>, Error> {
        let opened = self.start(0)?;
        let form = opened.first_sample(self, Part::Train, Targets::Classes)?;
        let classes = opened.described.parts[0].classes.as_ref().map_or(0, Vec::len);
        Ok(Some(match form.numbers {
            None => Targets::Classes,
            Some(n) if n == classes => Targets::MultiLabel,
            Some(_) => Targets::Numbers,
        }))
    }

    fn files(&self, found: &Options) -> Result<Vec<Files>, Error> {
        let modules = found.get(MODULES).and_then(|it| serde_json::from_value(it.clone()).ok());
        let paths: Vec<PathBuf> = modules.unwrap_or_else(|| vec![self.file.clone()]);
        let root = self.file.canonicalize().unwrap_or_else(|_| self.file.clone());
        let root = root.parent().unwrap_or(&root).to_owned();
        Ok(vec![Files { by_contents: true, ..Files::many("code", &root, paths) }])
    }

    fn fingerprint(&self, found: &Options) -> Option<String> {
        found.get(FINGERPRINT)?.as_str().map(str::to_owned)
    }

    /// What prepares a sample is the user's code.
    fn preprocessing(&self, _: &Options) -> Result<Options, Error> {
        Ok(Options::new())
    }

    fn inputs(&self, _: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        let why = "its samples are made by Python code, not read from files; `ddprun eval` measures \
                   them, and `ddprun checkpoint export` writes the model for a program of \
                   your own";
        Err(Error::NotPredicted { why })
    }
}

impl PythonData {
    /// "`dataset.py`: Digits(root = "digits")"
    fn words(&self) -> String {
        let argument = |(name, value): (&String, &Value)| format!("{name} = {value}");
        let arguments: Vec<String> = self.options.iter().map(argument).collect();
        format!("{}: {}({})", shown(&self.file), self.object, arguments.join(", "))
    }

    /// The object of a part, and its arguments; `None` if there is no such part.
    fn constructor(&self, part: Part) -> Option<(&str, BTreeMap<String, Value>)> {
        let (object, options) = match part {
            Part::Train => return Some((&self.object, self.options.clone())),
            Part::Val => (self.val_object.as_ref(), self.val_options.as_ref()),
            Part::Test => (self.test_object.as_ref(), self.test_options.as_ref()),
        };
        if object.is_none() && options.is_none() {
            return None;
        }
        let mut all = self.options.clone();
        all.extend(options.cloned().unwrap_or_default());
        Some((object.unwrap_or(&self.object), all))
    }

    /// The key that is to blame if a part cannot be opened.
    fn key(&self, part: Part, stage: Stage) -> &'static str {
        let is_given = match part {
            Part::Train => [true, true],
            Part::Val => [self.val_object.is_some(), self.val_options.is_some()],
            Part::Test => [self.test_object.is_some(), self.test_options.is_some()],
        };
        match (stage, part, is_given) {
            (Stage::File, ..) => "data.file",
            (Stage::Options, Part::Val, [_, true]) => "data.val_options",
            (Stage::Options, Part::Test, [_, true]) => "data.test_options",
            (Stage::Options, ..) if !self.options.is_empty() => "data.options",
            (_, Part::Val, [true, _]) => "data.val_object",
            (_, Part::Test, [true, _]) => "data.test_object",
            _ => "data.object",
        }
    }

    /// Starts a first worker, which opens all parts.
    fn start(&self, seed: u64) -> Result<OpenedData, Error> {
        let all = [Part::Train, Part::Val, Part::Test];
        let parts: Vec<Part> =
            all.into_iter().filter(|&it| self.constructor(it).is_some()).collect();
        let constructors = parts.iter().filter_map(|&part| self.constructor(part));
        let opened: Vec<Value> = constructors
            .map(|(object, options)| json!({ "object": object, "options": options }))
            .collect();
        let seed = Key::new(seed, Purpose::Generate, 0, 0).bits(0);
        let file = self.file.to_string_lossy();
        let open = json!({ "open": { "file": file, "parts": opened, "seed": seed } });
        let python = self.python.clone().unwrap_or_else(|| PYTHON.to_owned());
        let (file, timeout) = (self.file.clone(), self.timeout.0);
        if let Err(error) = std::fs::metadata(&file) {
            return Err(Error::reading("the code", &file, "a Python file")(error));
        }
        let started = WorkerPool::start(Program { python, file, open, timeout });
        let (pool, described) = started.map_err(|fault| self.unopened(fault, &parts))?;
        Ok(OpenedData { pool: Arc::new(pool), described, parts })
    }

    /// The error of a data set that could not be opened.
    fn unopened(&self, fault: Fault, parts: &[Part]) -> Error {
        let program = if self.python.is_some() { "data.python" } else { "data.name" };
        match fault {
            Fault::Failed(Failed { stage, part, what, raised, traceback, names }) => {
                let part = parts.get(part).copied().unwrap_or(Part::Train);
                let key = self.key(part, stage);
                let object = self.constructor(part).map_or(&*self.object, |(object, _)| object);
                let near = closest(object, names.iter().map(String::as_str));
                let named = |name: &str| format!("did you mean `{name}`?");
                let defined = || format!("it defines `{}`", names.join("`, `"));
                let help = near.map(named).or((!names.is_empty()).then(defined));
                let does = if raised { "its code raised " } else { "" };
                let what = match traceback {
                    Some(traceback) => format!("{does}{what}\n{}", Traceback(traceback).indented()),
                    None => what,
                };
                Error::Python { key, what, help }
            }
            Fault::Start(error) => {
                let name = self.python.as_deref().unwrap_or(PYTHON);
                let what = format!("cannot start `{name}`: {error}");
                let help = "install Python 3.8 or later, or name it with `data.python`".to_owned();
                Error::Python { key: program, what, help: Some(help) }
            }
            Fault::Lost { what, is_late, stack } => {
                let stack = stack.map_or(String::new(), |it| format!("\n{}", it.indented()));
                let what = format!("`{}` {what} before it was ready{stack}", self.object);
                let key = if self.python.is_some() && !is_late { program } else { "data.file" };
                let help = "it may take ten times `data.timeout` to start";
                Error::Python { key, what, help: is_late.then(|| help.to_owned()) }
            }
        }
    }
}

/// A data set of which a first worker runs.
struct OpenedData {
    pool: Arc<WorkerPool>,
    described: Opened,
    /// What each of its parts is for: the first is to train on.
    parts: Vec<Part>,
}

impl OpenedData {
    /// Loads the first sample of a part.
    fn first_sample(
        &self,
        data: &PythonData,
        part: Part,
        targets: Targets,
    ) -> Result<SampleForm, Error> {
        let number = self.parts.iter().position(|&it| it == part).unwrap_or(0);
        let key = self.key_of(data, number);
        if self.described.parts[number].len == 0 {
            let what = format!("gives no {} samples: its length is 0", part.name());
            return Err(Error::Python { key, what, help: None });
        }
        let name =
            data.constructor(part).map_or(String::new(), |(object, _)| format!("`{object}[0]`"));
        let read = |header: &SampleHeader, bytes: &[u8]| {
            let form = SampleForm::of(header, targets)?;
            form.read(header, bytes, targets, &mut Vec::new()).map(|_| form)
        };
        let found = self.pool.sample(number, 0, seed_of(0, None, number, 0), read);
        let found = found.map_err(|fault| SampleError::of_python(&name, fault));
        found.and_then(|read| read.map_err(|what| unusable(&name, what))).map_err(|error| {
            let traceback = std::error::Error::source(&error).map(ToString::to_string);
            let traceback = traceback.map(|text| format!("\n{}", Traceback(text).indented()));
            let what = format!("{error}{}", traceback.unwrap_or_default());
            Error::Python { key, what, help: None }
        })
    }

    fn key_of(&self, data: &PythonData, number: usize) -> &'static str {
        data.key(self.parts[number], Stage::Object)
    }

    /// All splits, with what is held back.
    fn splits(
        self,
        data: &PythonData,
        request: &SurveyRequest<'_>,
        form: SampleForm,
    ) -> Result<Splits, Error> {
        let refused =
            |number, what| Err(Error::Python { key: self.key_of(data, number), what, help: None });
        let classes = self.classes(data, request, &form)?;
        let mut parts = Parts::<Indices>::default();
        for (number, part) in self.described.parts.iter().enumerate() {
            let Ok(len) = u32::try_from(part.len) else {
                return refused(number, format!("has {} samples, which are too many", part.len));
            };
            let known =
                part.label_values.iter().all(|&it| (it as usize) < classes.len() && it >= 0);
            if !known && !classes.is_empty() {
                let n = classes.len();
                let what = format!("has labels in `targets` that are not 0 to {}", n - 1);
                return refused(number, what);
            }
            let are_labels = !part.label_values.is_empty() && !classes.is_empty();
            let labels = part.label_values.iter().map(|&label| label as u32);
            let labels = are_labels.then(|| labels.collect());
            let indices = Indices { part: number, places: (0..len).collect(), labels };
            parts.put(self.parts[number], indices);
        }
        let parts = match parts.held_back(&request.split) {
            Ok(parts) => parts,
            Err(what) => return refused(0, what),
        };
        let form = Arc::new(form);
        let open = |indices: Indices| -> Arc<dyn Dataset> {
            let part = self.parts[indices.part];
            Arc::new(Samples {
                object: data
                    .constructor(part)
                    .map_or(String::new(), |(object, _)| object.to_owned()),
                pool: Arc::clone(&self.pool),
                form: Arc::clone(&form),
                classes: classes.len(),
                targets: request.targets,
                seed: request.seed,
                indices,
            })
        };
        let (train, val, test) = (open(parts.train), open(parts.val), parts.test.map(open));
        Ok(Splits { train, val, test, classes })
    }

    /// Names of the classes: those that the data set has, or numbers up to the largest label.
    fn classes(
        &self,
        data: &PythonData,
        request: &SurveyRequest<'_>,
        form: &SampleForm,
    ) -> Result<Vec<String>, Error> {
        let first = &self.described.parts[0];
        for (number, part) in self.described.parts.iter().enumerate() {
            if part.classes != first.classes {
                let key = self.key_of(data, number);
                let what = format!(
                    "has the classes {:?}, but to train on are {:?}",
                    part.classes.as_deref().unwrap_or_default(),
                    first.classes.as_deref().unwrap_or_default()
                );
                return Err(Error::Python { key, what, help: None });
            }
        }
        let has_numbers = form.numbers.is_some();
        match (&first.classes, request.targets) {
            // The plan refuses them.
            (_, Targets::Classes) if has_numbers => return Ok(Vec::new()),
            (Some(classes), Targets::MultiLabel) if form.numbers != Some(classes.len()) => {
                let n = classes.len();
                let what = format!("has {n} classes, but its samples are {}", form.words());
                return Err(Error::Python { key: self.key_of(data, 0), what, help: None });
            }
            (Some(classes), _) => return Ok(classes.clone()),
            (None, Targets::Numbers | Targets::Series | Targets::Preferences) => {
                return Ok(Vec::new());
            }
            (None, Targets::Classes | Targets::MultiLabel) => {}
        }
        let labels = self.described.parts.iter().flat_map(|part| &part.label_values);
        match labels.max() {
            Some(&most) if (0..i64::from(u16::MAX)).contains(&most) => {
                Ok((0..=most).map(|label| label.to_string()).collect())
            }
            _ => Err(Error::Python {
                key: self.key_of(data, 0),
                what: format!(
                    "gives classes, but `{}` does not tell how many there are",
                    data.object
                ),
                help: Some(
                    "give it an attribute `classes`, a list of names or a number; or, if the \
                     target is a number to predict, return a float"
                        .to_owned(),
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
