//! The weights of a model with adapters -> the adapters alone, as PEFT reads them, or the weights
//! with what they add.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{SafeTensorError, TensorView};
use serde_json::json;

use crate::checkpoint::{Error, MODEL};
use crate::nn::LoraConfig;
use crate::nn::state_dict::ADAPTER_PREFIX;

const A: &str = ".lora_A.weight";
const B: &str = ".lora_B.weight";

/// The adapters among the tensors of `model`, a safetensors file, under PEFT's names.
pub fn peft(model: &[u8]) -> Result<Vec<u8>, Error> {
    let file = SafeTensors::deserialize(model).map_err(misfit)?;
    let adapters = file.tensors().into_iter().filter(|(name, _)| is_adapter(name));
    written(adapters.map(|(name, tensor)| (format!("{ADAPTER_PREFIX}{name}"), tensor)))
}

/// `adapter_config.json`.
pub fn peft_config(lora: &LoraConfig, base: Option<&Path>) -> String {
    // PEFT writes whole numbers as such.
    let is_whole = lora.alpha.fract() == 0.0 && lora.alpha < f64::from(u32::MAX);
    let alpha = if is_whole { json!(lora.alpha as u32) } else { json!(lora.alpha) };
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.map(|path| path.display().to_string()),
        "r": lora.r,
        "lora_alpha": alpha,
        "lora_dropout": lora.dropout,
        "target_modules": lora.targets,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
    });
    format!("{config:#}\n")
}

/// The tensors of `model`, a safetensors file, without adapters: each weight W that has one is W +
/// (alpha / r) B A.
pub fn merged(model: &[u8], lora: &LoraConfig) -> Result<Vec<u8>, Error> {
    let file = SafeTensors::deserialize(model).map_err(misfit)?;
    let all = file.tensors();
    let sum = |name: &str| -> Result<Option<Vec<u8>>, Error> {
        let Some(layer) = name.strip_suffix(".weight") else { return Ok(None) };
        let a = file.tensor(&format!("{layer}{A}"));
        let b = file.tensor(&format!("{layer}{B}"));
        let (Ok(a), Ok(b)) = (a, b) else { return Ok(None) };
        let weight = file.tensor(name).map_err(misfit)?;
        add(&weight, &a, &b, lora.alpha / lora.r as f64).map(Some).map_err(misfit)
    };
    let mut sums = Vec::new();
    for (name, view) in all.iter().filter(|(name, _)| !is_adapter(name)) {
        sums.push((name.clone(), view, sum(name)?));
    }
    let merged = sums.iter().map(|(name, view, sum)| match sum {
        None => Ok((name.clone(), (*view).clone())),
        Some(bytes) => {
            let view = TensorView::new(view.dtype(), view.shape().to_vec(), bytes);
            Ok((name.clone(), view.map_err(misfit)?))
        }
    });
    written(merged.collect::<Result<Vec<_>, Error>>()?)
}

/// weight (out, in) + scale b (out, r) a (r, in), all f32, as bytes.
fn add(
    weight: &TensorView<'_>,
    a: &TensorView<'_>,
    b: &TensorView<'_>,
    scale: f64,
) -> candle_core::Result<Vec<u8>> {
    let tensor = |view: &TensorView<'_>| {
        let values = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Tensor::from_vec(values.collect::<Vec<f32>>(), view.shape(), &Device::Cpu)
    };
    let added = (tensor(b)?.matmul(&tensor(a)?)? * scale)?;
    let sum = (tensor(weight)? + added)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(sum.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn is_adapter(name: &str) -> bool {
    name.ends_with(A) || name.ends_with(B)
}

fn written<'a>(
    tensors: impl IntoIterator<Item = (String, TensorView<'a>)>,
) -> Result<Vec<u8>, Error> {
    let format = [("format".to_owned(), "pt".to_owned())].into();
    let result: Result<_, SafeTensorError> = safetensors::serialize(tensors, Some(format));
    result.map_err(misfit)
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn misfit(error: impl ToString) -> Error {
    super::load::misfit(&PathBuf::from(MODEL), error.to_string())
}

#[cfg(test)]
mod tests;
