//! Weights to start from: options read from the files beside them, and why weights do not fit.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::architecture;
use crate::config::kind::Options;
use crate::nn::state_dict::{self, ExpectedTensors, Header, Mismatch, Strict, fit};

/// Weights that do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PretrainedError {
    /// Key of the experiment that is to be changed.
    pub key: &'static str,
    pub what: String,
    pub help: Option<String>,
}

/// The file of weights at `path`, which may be the folder of a ddprun checkpoint.
pub(super) fn weights_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("model.safetensors") } else { path.to_owned() }
}

/// Names, types and shapes of the tensors in the weights at `path`. To those of a checkpoint of
/// adapters belong those of the file that it names.
pub(super) fn weights_header(path: &Path) -> Result<Header, state_dict::Error> {
    /// The part of a manifest that counts.
    #[derive(Deserialize)]
    struct Manifest {
        base: Option<Base>,
    }
    #[derive(Deserialize)]
    struct Base {
        path: PathBuf,
        tensors: BTreeMap<String, String>,
    }
    let mut header = state_dict::header(&weights_file(path))?;
    let manifest = crate::files::read(&path.join("MANIFEST.json")).ok();
    let manifest = manifest.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok());
    if let Some(Base { path, tensors }) = manifest.and_then(|manifest| manifest.base) {
        let mut below = state_dict::header(&path)?;
        let found = tensors.into_iter().filter_map(|(name, key)| Some((name, below.remove(&key)?)));
        header.extend(found);
    }
    Ok(header)
}

impl PretrainedError {
    const KEY: &'static str = "model.pretrained";

    pub(super) fn of_model(error: &architecture::Error) -> Self {
        Self { key: "model.name", what: error.to_string(), help: None }
    }

    pub(super) fn of_description(error: &DescriptionError) -> Self {
        let help = "choose weights of a model that is computed in the same way";
        Self { key: Self::KEY, what: error.to_string(), help: Some(help.to_owned()) }
    }

    pub(super) fn of_adapters(error: &DescriptionError) -> Self {
        let help = "give what the adapters have, or omit the key";
        let key = "model.lora.adapters";
        Self { key, what: error.to_string(), help: Some(help.to_owned()) }
    }

    pub(super) fn of_adapter_file(error: &state_dict::Error) -> Self {
        let help = match error {
            state_dict::Error::Mismatch { .. } => {
                Some("name adapters that were trained on this model".to_owned())
            }
            error => error.help(),
        };
        Self { key: "model.lora.adapters", what: error.to_string(), help }
    }

    pub(super) fn of_file(error: &state_dict::Error) -> Self {
        Self { key: Self::KEY, what: error.to_string(), help: error.help() }
    }

    pub(super) fn of_misfit(path: &Path, misfit: Mismatch, help: String) -> Self {
        let what = state_dict::Error::misfit(path, misfit).to_string();
        Self { key: Self::KEY, what, help: Some(help) }
    }

    pub(super) fn without_head(model: &str) -> Self {
        let what = format!("`{model}` has no layer that is its head, so every tensor must fit");
        let help =
            "use `strict = true`; a model of your own names its head in `Architecture::head`";
        Self { key: "model.strict", what, help: Some(help.to_owned()) }
    }
}

/// The model among `others` that `file` probably belongs to: few of its tensors' names differ from
/// the model's, and far fewer than in `misfit`.
pub(super) fn likely_model<'a>(
    others: impl Iterator<Item = (&'a str, ExpectedTensors)>,
    file: &Header,
    misfit: &Mismatch,
) -> Option<&'a str> {
    let here = n_unmatched(misfit);
    let counted = others.map(|(name, wanted)| {
        let found = fit(&wanted, file, Strict::All).err();
        (found.as_ref().map_or(0, n_unmatched), name)
    });
    let (differ, name) = counted.min_by_key(|(differ, _)| *differ)?;
    (differ * 10 <= file.len() && differ * 2 < here).then_some(name)
}

/// Number of names that either the model or the file has, but not both.
fn n_unmatched(misfit: &Mismatch) -> usize {
    misfit.missing.len() + misfit.unexpected.len()
}

/// Remedy for weights that do not fit. The names may be those of an `other` model.
pub(super) fn misfit_help(
    except_head: bool,
    head: &[&str],
    misfit: &Mismatch,
    other: Option<&str>,
    own: impl FnOnce() -> Option<String>,
) -> String {
    let keys = || {
        let lists = misfit.missing.iter().chain(&misfit.unexpected).map(|(key, _)| key);
        lists.chain(misfit.mismatched.iter().map(|(key, ..)| key))
    };
    if let Some(other) = other {
        return format!("the names are those of `{other}`: use `model.name = \"{other}\"`");
    }
    let is_head = |key: &String| head.iter().any(|prefix| key.starts_with(prefix));
    if !except_head && misfit.typed.is_empty() && keys().all(is_head) {
        let help = "load all but the head, which differs, with `model.strict = \"except_head\"`";
        return help.to_owned();
    }
    if let Some(help) = own() {
        return help;
    }
    if !misfit.mismatched.is_empty() && n_unmatched(misfit) == 0 {
        return "give the model the sizes of these weights in `[model]`".to_owned();
    }
    "choose weights of this model, or the model these weights belong to".to_owned()
}

/// Why a JSON description beside weights or adapters cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// The file could not be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// Not JSON, or without the numbers that are needed.
    #[error("`{}` does not describe {what}: {source}", path.display())]
    Format {
        path: PathBuf,
        /// Expected content.
        what: &'static str,
        source: serde_json::Error,
    },
    /// A variant that is computed differently.
    #[error("`{}` has {what}, which `{model}` does not compute", path.display())]
    Unknown {
        path: PathBuf,
        /// The chosen model.
        model: &'static str,
        /// The key and its value.
        what: String,
    },
    /// The experiment has another value.
    #[error("`model.lora.{key}` is {given}, but `{}` has {found}", path.display())]
    Differs {
        path: PathBuf,
        key: &'static str,
        /// Value in the experiment.
        given: String,
        /// Value in the file.
        found: String,
    },
}

/// Reads the JSON file at `path`, which describes `what`.
pub(super) fn read_description<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
) -> Result<T, DescriptionError> {
    let bytes = crate::files::read(path)
        .map_err(|source| DescriptionError::Read { path: path.to_owned(), source })?;
    let format = |source| DescriptionError::Format { path: path.to_owned(), what, source };
    serde_json::from_slice(&bytes).map_err(format)
}

/// Options of training, which do not change the model.
const TRAINING_OPTIONS: [&str; 3] = ["lora", "freeze_backbone", "backbone_mode"];

/// Options of a trained model that a model which starts from its weights takes over.
pub fn inherited_options(mut options: Options) -> Options {
    options.retain(|key, _| !TRAINING_OPTIONS.contains(&key.as_str()));
    options
}

/// Options read from files; those of the experiment take precedence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferredOptions {
    pub options: Options,
    /// Number of outputs.
    pub outputs: Option<u32>,
}

impl InferredOptions {
    pub(super) fn of_outputs(outputs: u32) -> Self {
        Self { outputs: Some(outputs), options: Options::new() }
    }

    pub(super) fn set(&mut self, key: &str, value: impl Serialize) {
        if let Ok(value) = serde_json::to_value(value) {
            self.options.insert(key.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::Models;
    use super::super::tests::{plan, with_mine};
    use super::*;
    use crate::nn::state_dict::save_state_dict;

    /// Checks weights of the model `of` with `outputs` against a `model` of 5 outputs.
    fn told(
        model: &str,
        (of, outputs): (&str, usize),
        except_head: bool,
    ) -> Result<(), PretrainedError> {
        let registry = Models::default();
        let (_, params) = registry.instantiate(&plan(of, &[3, 8, 8], outputs), 1).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&save_state_dict(&params).unwrap()).unwrap();
        let mut plan = plan(model, &[3, 8, 8], 5);
        (plan.pretrained, plan.except_head) = (Some(file.path().to_owned()), except_head);
        registry.check_pretrained(&plan)
    }

    #[test]
    fn weights_are_compared_before_anything_starts_and_the_remedy_is_told() {
        assert_eq!(told("resnet8", ("resnet8", 5), false), Ok(()));
        let help = |model, of| told(model, of, false).unwrap_err().help.unwrap();
        assert!(help("resnet8", ("resnet8", 7)).contains("`model.strict = \"except_head\"`"));
        assert_eq!(told("resnet8", ("resnet8", 7), true), Ok(()));
        assert!(help("resnet8", ("resnet20", 5)).contains("`model.name = \"resnet20\"`"));
        assert!(help("mlp", ("resnet8", 5)).contains("`model.name = \"resnet8\"`"));
        let named = told("mlp", ("resnet20", 5), false).unwrap_err();
        assert!(named.what.contains("more") && named.what.lines().count() == 12, "{named}");
    }

    #[test]
    fn every_head_can_differ_and_a_model_without_one_says_so() {
        for name in ["mlp", "simple_cnn", "resnet20"] {
            assert_eq!(told(name, (name, 7), true), Ok(()), "{name}");
            let help = told(name, (name, 7), false).unwrap_err().help.unwrap();
            assert!(help.contains("`model.strict = \"except_head\"`"), "{name}: {help}");
        }
        let registry = with_mine();
        let mut mine = plan("mine", &[4], 5);
        (mine.pretrained, mine.except_head) = (Some("absent".into()), true);
        let unfit = registry.check_pretrained(&mine).unwrap_err();
        assert_eq!(unfit.key, "model.strict");
        assert!(unfit.what.starts_with("`mine` has no layer that is its head"), "{unfit}");
    }

    #[test]
    fn a_file_that_is_absent_or_a_pickle_is_told_at_its_key() {
        let mut plan = plan("mlp", &[4], 5);
        plan.pretrained = Some("absent.safetensors".into());
        let unfit = Models::default().check_pretrained(&plan).unwrap_err();
        assert!(unfit.what.starts_with("`absent.safetensors` cannot be read: No such"), "{unfit}");
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"PK\x03\x04\0\0\0\0").unwrap();
        plan.pretrained = Some(file.path().to_owned());
        let unfit = Models::default().check_pretrained(&plan).unwrap_err();
        assert!(unfit.help.unwrap().contains("torch.load"));
    }
}
