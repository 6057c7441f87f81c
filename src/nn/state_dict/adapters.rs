//! Adapters in PEFT's form -> those of a model.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::{Error, Loading, Strict, is_adapter, read_limited, set, tensors};
use crate::nn::Params;

/// What PEFT puts before the names of a causal language model.
pub(crate) const PREFIX: &str = "base_model.model.";

/// Replaces the model's adapters by those of a safetensors file of PEFT, all or none.
///
/// # Errors
///
/// The file cannot be read or is damaged, or keys or shapes differ (each is listed).
pub fn load_adapters(params: &Params, path: &Path) -> Result<(), Error> {
    let bytes = read_limited(path)?;
    let format = |source| Error::Format { path: path.to_owned(), source };
    let file = SafeTensors::deserialize(&bytes).map_err(format)?;
    let ours = |name: String| name.strip_prefix(PREFIX).map_or(name.clone(), str::to_owned);
    let mut file: BTreeMap<String, TensorView<'_>> =
        file.tensors().into_iter().map(|(name, view)| (ours(name), view)).collect();
    let mut loading = Loading::new(path, Strict::All);
    let mut values = Vec::new();
    for (name, shape, var) in tensors(params)?.into_iter().filter(|(name, ..)| is_adapter(name)) {
        match loading.take(&mut file, &name, &shape)? {
            Some(view) => values.push((var, view)),
            None if loading.report.kept.contains(&name) => loading.missing.push((name, shape)),
            None => {}
        }
    }
    loading.refuse_rest(&file);
    loading.finish()?;
    Ok(set(values)?)
}
