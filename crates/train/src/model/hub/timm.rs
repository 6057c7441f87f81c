//! Models of timm, whose `config.json` names the architecture.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Config, FILE};
use crate::model::pretrained::{
    DescriptionError, InferredOptions, PretrainedError, read_description,
};
use crate::plan::TrainedOn;

/// File of a Hugging Face image processor.
const PROCESSOR: &str = "preprocessor_config.json";

/// Checks that the `config.json` beside the weights `pretrained` names one of `architectures` or
/// none: others may have the same tensors, but other padding or norms (`tf_efficientnet_b0`). It
/// adds no options.
pub(in crate::model) fn complete(
    model: &'static str,
    architectures: &[&str],
    pretrained: Option<&Path>,
) -> Result<InferredOptions, PretrainedError> {
    let path = pretrained.and_then(Path::parent).map(|folder| folder.join(FILE));
    let Some(path) = path else { return Ok(InferredOptions::default()) };
    let config: Config = read_description(&path, "a model of timm").unwrap_or_default();
    match config.get("architecture").and_then(serde_json::Value::as_str) {
        Some(other) if !architectures.contains(&other) => {
            let what = format!("`architecture` = {other:?}");
            Err(PretrainedError::of_description(&DescriptionError::Unknown { path, model, what }))
        }
        _ => Ok(InferredOptions::default()),
    }
}

/// Normalisation and interpolation of the images that the weights `pretrained` were trained on,
/// from `config.json` as timm writes it, or the settings of a Hugging Face image processor.
pub fn trained_on(pretrained: &Path) -> Option<TrainedOn> {
    let folder = pretrained.parent()?;
    of_timm(folder.join(FILE)).or_else(|| of_processor(folder.join(PROCESSOR)))
}

fn of_timm(file: PathBuf) -> Option<TrainedOn> {
    let config: Config = read_description(&file, "a model of timm").ok()?;
    let described = config.get("pretrained_cfg").and_then(Value::as_object).unwrap_or(&config);
    let (mean, std) = (numbers(described, "mean")?, numbers(described, "std")?);
    let interpolation = described.get("interpolation").and_then(Value::as_str).map(str::to_owned);
    Some(TrainedOn { mean, std, interpolation, file })
}

fn of_processor(file: PathBuf) -> Option<TrainedOn> {
    let config: Config = read_description(&file, "an image processor").ok()?;
    let (mut mean, mut std) = (numbers(&config, "image_mean")?, numbers(&config, "image_std")?);
    if config.get("do_normalize") == Some(&Value::Bool(false)) {
        (mean, std) = (vec![0.0], vec![1.0]);
    }
    // Other processors take values from 0 to 255 for their mean and deviation.
    let is_scaled = config.get("do_rescale") != Some(&Value::Bool(false));
    let factor = config.get("rescale_factor").and_then(Value::as_f64);
    let scale = if is_scaled { factor.map_or(1.0, |factor| 255.0 * factor) } else { 255.0 };
    for number in mean.iter_mut().chain(&mut std) {
        *number /= scale;
    }
    let resample = config.get("resample").and_then(Value::as_u64);
    let interpolation =
        match resample.filter(|_| config.get("do_resize") != Some(&Value::Bool(false))) {
            Some(0) => Some("nearest"),
            Some(1) => Some("lanczos"),
            Some(2) => Some("bilinear"),
            Some(3) => Some("bicubic"),
            _ => None,
        };
    Some(TrainedOn { mean, std, interpolation: interpolation.map(str::to_owned), file })
}

fn numbers(config: &Config, key: &str) -> Option<Vec<f64>> {
    config.get(key)?.as_array()?.iter().map(Value::as_f64).collect()
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
            assert_eq!(told(same).unwrap(), InferredOptions::default());
        }
    }

    #[test]
    fn what_an_image_processor_does_is_read_where_no_model_of_timm_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            crate::files::write_atomic(&folder.path().join(name), text.as_bytes()).unwrap();
        };
        let found = || trained_on(&folder.path().join("model.safetensors"));
        write(FILE, r#"{"model_type": "vit"}"#);
        assert!(found().is_none());
        write(
            PROCESSOR,
            r#"{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3}"#,
        );
        let read = found().unwrap();
        assert_eq!((read.mean, read.std), (vec![0.5; 3], vec![0.5; 3]));
        assert_eq!(read.interpolation.as_deref(), Some("bicubic"));
        assert!(read.file.ends_with(PROCESSOR));
        write(PROCESSOR, r#"{"image_mean": [127.5], "image_std": [127.5], "do_rescale": false}"#);
        assert_eq!(found().map(|read| (read.mean, read.std)), Some((vec![0.5], vec![0.5])));
        write(PROCESSOR, r#"{"image_mean": [0.4], "image_std": [0.2], "do_normalize": false}"#);
        assert!(found().is_some_and(|read| read.mean[0].abs() < 1e-12));
    }
}
