//! The weights of a model with adapters -> the adapters alone, as PEFT reads them, or the weights
//! with what they add.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{SafeTensorError, TensorView};
use serde_json::{Map, Value, json};

use crate::checkpoint::{Error, MODEL};
use crate::nn::state_dict::{ADAPTER_ENDS, ADAPTER_PREFIX, is_adapter};
use crate::nn::{self, LoraConfig, Targets};

/// The adapters among the tensors of `model`, a safetensors file, and the modules that are trained as
/// they are, under PEFT's names.
pub fn peft(model: &[u8], lora: &LoraConfig) -> Result<Vec<u8>, Error> {
    let file = SafeTensors::deserialize(model).map_err(misfit)?;
    let is_trained = |name: &str| is_adapter(name) || lora.saves(name);
    let adapters = file.tensors().into_iter().filter(|(name, _)| is_trained(name));
    written(adapters.map(|(name, tensor)| (format!("{ADAPTER_PREFIX}{name}"), tensor)))
}

/// `adapter_config.json`.
pub fn peft_config(lora: &LoraConfig, base: Option<&Path>) -> String {
    let targets = match &lora.targets {
        Targets::Names(names) => json!(names),
        Targets::Pattern(pattern) => json!(pattern),
        Targets::AllLinear => json!("all-linear"),
    };
    let ranks: Map<String, Value> = lora.ranks.iter().map(|(k, r)| (k.clone(), json!(r))).collect();
    let alphas = lora.alphas.iter().map(|(layers, alpha)| (layers.clone(), number(*alpha)));
    let saved = &lora.modules_to_save;
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.map(|path| path.display().to_string()),
        "r": lora.r,
        "lora_alpha": number(lora.alpha),
        "lora_dropout": lora.dropout,
        "target_modules": targets,
        "use_rslora": lora.rslora,
        "use_dora": lora.dora,
        "rank_pattern": ranks,
        "alpha_pattern": alphas.collect::<Map<String, Value>>(),
        "modules_to_save": if saved.is_empty() { Value::Null } else { json!(saved) },
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
    });
    format!("{config:#}\n")
}

/// PEFT writes whole numbers as such.
fn number(alpha: f64) -> Value {
    let is_whole = alpha.fract() == 0.0 && alpha < f64::from(u32::MAX);
    if is_whole { json!(alpha as u32) } else { json!(alpha) }
}

/// The tensors of `model`, a safetensors file, without adapters: each weight W that has one is W +
/// scale B A, or what `DoRA` makes of it.
pub fn merged(model: &[u8], lora: &LoraConfig) -> Result<Vec<u8>, Error> {
    let file = SafeTensors::deserialize(model).map_err(misfit)?;
    let all = file.tensors();
    let sum = |name: &str| -> Result<Option<Vec<u8>>, Error> {
        let Some(layer) = name.strip_suffix(".weight") else { return Ok(None) };
        let part = |end: &str| file.tensor(&format!("{layer}{end}")).ok();
        let [a, b, magnitude] = ADAPTER_ENDS.map(part);
        let (Some(a), Some(b), Some((_, scale))) = (a, b, lora.adapter(layer)) else {
            return Ok(None);
        };
        let weight = file.tensor(name).map_err(misfit)?;
        sum_of([&weight, &a, &b], scale, magnitude.as_ref()).map(Some).map_err(misfit)
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

/// [`nn::merged`] of weight (out, in), a (r, in) and b (out, r), all f32, as bytes.
fn sum_of(
    parts: [&TensorView<'_>; 3],
    scale: f64,
    magnitude: Option<&TensorView<'_>>,
) -> candle_core::Result<Vec<u8>> {
    let tensor = |view: &TensorView<'_>| {
        let values = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Tensor::from_vec(values.collect::<Vec<f32>>(), view.shape(), &Device::Cpu)
    };
    let [weight, a, b] = parts.map(tensor);
    let magnitude = magnitude.map(tensor).transpose()?;
    let merged = nn::merged(&weight?, &a?, &b?, scale, magnitude.as_ref())?;
    let values = merged.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
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
mod tests {
    //! Adapters that are written and come back.

    use super::*;
    use crate::nn::state_dict::{load_adapters, save_state_dict};
    use crate::nn::{Adapted, Builder, Init, Params};

    /// Two layers (4, 6) with adapters of rank `r`, drawn with `seed`.
    fn params(r: usize, seed: u64, targets: &[&str]) -> Params {
        let targets = Targets::Names(targets.iter().map(|&target| target.to_owned()).collect());
        let config = LoraConfig { r, alpha: 4.0, targets, ..LoraConfig::default() };
        let builder = Builder::new(seed);
        for name in ["q_proj", "v_proj"] {
            let layer = builder.frozen().pp("layers.0").pp(name);
            drop(Adapted::new(&layer, [4, 6], Init::Normal(0.5), Some(&config)).unwrap());
        }
        let params = builder.finish();
        // Those that begin as zeros are moved away from there.
        for param in params.parameters() {
            let noise = Init::Normal(0.3);
            let other = Builder::new(seed + 1).param(param.name(), param.shape(), noise).unwrap();
            param.var().unwrap().set(other.var().unwrap()).unwrap();
        }
        params
    }

    fn written(params: &Params, folder: &Path) -> (PathBuf, Vec<u8>) {
        let bytes = peft(&save_state_dict(params).unwrap(), &LoraConfig::default()).unwrap();
        let path = folder.join("adapter_model.safetensors");
        crate::files::write_atomic(&path, &bytes).unwrap();
        (path, bytes)
    }

    #[test]
    fn exported_adapters_come_back_to_the_bit_and_nothing_else_moves() {
        let folder = tempfile::tempdir().unwrap();
        let both = ["q_proj", "v_proj"];
        let (first, second) = (params(2, 1, &both), params(2, 7, &both));
        let (path, bytes) = written(&first, folder.path());
        let base = |params: &Params| {
            let all = params.buffers().iter();
            all.map(|b| b.var().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap())
                .collect::<Vec<_>>()
        };
        let before = base(&second);
        assert_ne!(written(&second, folder.path()).1, bytes);
        crate::files::write_atomic(&path, &bytes).unwrap();
        load_adapters(&second, &path).unwrap();
        assert_eq!(written(&second, folder.path()).1, bytes);
        assert_eq!((before.len(), base(&second)), (2, before));
    }

    #[test]
    fn adapters_of_another_rank_or_of_other_layers_are_refused_with_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = written(&params(2, 1, &["q_proj", "v_proj"]), folder.path());
        let refusal = |params: &Params| {
            let before = save_state_dict(params).unwrap();
            let message = load_adapters(params, &path).unwrap_err().to_string();
            assert!(save_state_dict(params).unwrap() == before, "{message}");
            message
        };
        let message = refusal(&params(3, 2, &["q_proj", "v_proj"]));
        assert!(
            message.contains("lora_A.weight` is [2, 4] in the file and [3, 4] in the model"),
            "{message}"
        );
        let message = refusal(&params(2, 2, &["q_proj"]));
        assert!(message.contains("unexpected `layers.0.v_proj.lora_A.weight` [2, 4]"), "{message}");
        let fewer = written(&params(2, 1, &["v_proj"]), folder.path()).1;
        crate::files::write_atomic(&path, &fewer).unwrap();
        let message = refusal(&params(2, 2, &["q_proj", "v_proj"]));
        assert!(message.contains("missing `layers.0.q_proj.lora_A.weight` [2, 4]"), "{message}");
        crate::files::write_atomic(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(refusal(&params(2, 2, &["q_proj"])).contains("not a whole safetensors file"));
    }
}
