//! Adapters in PEFT's form -> those of a model.

use std::path::Path;

use super::file::read_limited;
use super::{
    Error, Header, Misfit, Strict, Wanted, finite, fit, header, held, is_adapter, set, tensors,
    views,
};
use crate::nn::Params;

/// What PEFT puts before the names of a causal language model.
pub const PREFIX: &str = "base_model.model.";

/// Replaces the model's adapters by those of a safetensors file of PEFT, all or none.
pub fn load_adapters(params: &Params, path: &Path) -> Result<(), Error> {
    let files = [(path.to_owned(), read_limited(path)?)];
    let views = views(&files)?.into_iter().map(|(name, view)| (ours(name), view)).collect();
    let found = adapters_of(&Wanted::of(params), &held(&views));
    let origins = found.map_err(|misfit| Error::misfit(path, misfit))?;
    finite(path, origins.iter().filter_map(|origin| views.get_key_value(&origin.key)))?;
    let adapters = tensors(params)?.into_iter().filter(|(name, ..)| is_adapter(name));
    let values = adapters.zip(&origins).filter_map(|((_, _, var), origin)| {
        Some((var, views.get(&origin.key)?.clone(), origin.layout))
    });
    Ok(set(values)?)
}

/// Compares the adapters of a safetensors file of PEFT with those that are `wanted`, by the file's
/// header alone.
pub fn check_adapters(wanted: &Wanted, path: &Path) -> Result<(), Error> {
    let found = header(path)?.into_iter().map(|(name, held)| (ours(name), held)).collect();
    adapters_of(wanted, &found).map(drop).map_err(|misfit| Error::misfit(path, misfit))
}

/// The model's name of an adapter.
fn ours(name: String) -> String {
    name.strip_prefix(PREFIX).map(str::to_owned).unwrap_or(name)
}

/// Where each adapter comes from; none may be absent.
fn adapters_of(wanted: &Wanted, header: &Header) -> Result<Vec<super::Origin>, Misfit> {
    let all = wanted.tensors.iter().filter(|(name, _)| is_adapter(name)).cloned();
    let wanted = Wanted { tensors: all.collect(), ..Wanted::default() };
    let found = fit(&wanted, header, Strict::All)?;
    let absent = |(_, origin): &(&super::KeyShape, &Option<super::Origin>)| origin.is_none();
    let missing: Vec<super::KeyShape> = wanted
        .tensors
        .iter()
        .zip(&found.origins)
        .filter(absent)
        .map(|(tensor, _)| tensor.clone())
        .collect();
    if missing.is_empty() {
        return Ok(found.origins.into_iter().flatten().collect());
    }
    Err(Misfit { missing, ..Misfit::default() })
}
