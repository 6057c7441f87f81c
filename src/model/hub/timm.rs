//! Models of timm, whose `config.json` names the architecture.

use std::path::Path;

use serde_json::Value;

use super::{Config, FILE};
use crate::model::Completion;
use crate::model::config_json::{Error, read};
use crate::model::pretrained::Unfit;
use crate::plan::TrainedOn;

/// Nothing more than `model` knows itself, if the `config.json` beside the weights `pretrained`
/// names one of `architectures` or none. Some others have the same tensors, but other paddings or
/// norms (`tf_efficientnet_b0`).
pub(in crate::model) fn complete(
    model: &'static str,
    architectures: &[&str],
    pretrained: Option<&Path>,
) -> Result<Completion, Unfit> {
    let path = pretrained.and_then(Path::parent).map(|folder| folder.join(FILE));
    let Some(path) = path else { return Ok(Completion::default()) };
    let config: Config = read(&path, "a model of timm").unwrap_or_default();
    match config.get("architecture").and_then(serde_json::Value::as_str) {
        Some(other) if !architectures.contains(&other) => {
            let what = format!("`architecture` = {other:?}");
            Err(Unfit::of_description(&Error::Unknown { path, model, what }))
        }
        _ => Ok(Completion::default()),
    }
}

/// What the `config.json` beside the weights `pretrained` says of the images that they were trained
/// on, as timm's do; nothing if there is none, or if it is of something else.
pub(crate) fn trained_on(pretrained: &Path) -> Option<TrainedOn> {
    let file = pretrained.parent()?.join(FILE);
    let config: Config = read(&file, "a model of timm").ok()?;
    let described = config.get("pretrained_cfg").and_then(Value::as_object).unwrap_or(&config);
    let numbers = |key: &str| -> Option<Vec<f64>> {
        described.get(key)?.as_array()?.iter().map(Value::as_f64).collect()
    };
    let interpolation = described.get("interpolation").and_then(Value::as_str).map(str::to_owned);
    Some(TrainedOn { mean: numbers("mean")?, std: numbers("std")?, interpolation, file })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn another_architecture_with_the_same_tensors_is_refused_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let weights = folder.path().join("model.safetensors");
        let told = |config: &str| {
            let mut file = std::fs::File::create(folder.path().join(FILE)).unwrap();
            file.write_all(config.as_bytes()).unwrap();
            complete("efficientnet_b0", &["efficientnet_b0"], Some(&weights))
        };
        let unfit = told(r#"{"architecture": "tf_efficientnet_b0"}"#).unwrap_err();
        assert!(unfit.what.contains("`architecture` = \"tf_efficientnet_b0\""), "{unfit}");
        let images = r#"{"pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [1, 1, 1],
            "interpolation": "bicubic"}}"#;
        told(images).unwrap();
        let found = trained_on(&weights).unwrap();
        assert_eq!((found.mean, found.std), (vec![0.5; 3], vec![1.0; 3]));
        assert_eq!(found.interpolation.as_deref(), Some("bicubic"));
        for same in [r#"{"architecture": "efficientnet_b0"}"#, "{}", "no JSON"] {
            assert_eq!(told(same).unwrap(), Completion::default());
        }
    }
}
