//! The base of a checkpoint of adapters: the file of the model that they are trained on top of. The
//! checkpoint names it and its hash, and does not hold its tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Error, load};
use crate::model::base_hash;
use crate::nn::state_dict::{base_tensors, load_base_tensors};
use crate::nn::{Base, BaseTensor, Params};

/// The file of a base, and what comes from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseFile {
    /// Absolute path when the run began: a safetensors file, or the index of several.
    pub path: PathBuf,
    /// BLAKE3 over names, types, shapes and numbers of the tensors, hexadecimal.
    pub blake3: String,
    /// The file's name of each tensor, by the model's.
    pub tensors: BTreeMap<String, String>,
    /// Further names of these tensors in the model, and their first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub aliases: BTreeMap<String, String>,
}

impl BaseFile {
    /// The base of a model that has one.
    pub fn of(params: &Params) -> Option<Self> {
        let base = params.base()?;
        let name = |tensor: &BaseTensor| (tensor.name.clone(), tensor.key.clone());
        let tensors: BTreeMap<String, String> = base.tensors.iter().map(name).collect();
        let aliases = params.aliases().iter().map(|(alias, of)| (alias.clone(), of.name()));
        let aliases = aliases.filter(|(_, of)| tensors.contains_key(*of));
        Some(Self {
            path: std::path::absolute(&base.path).unwrap_or_else(|_| base.path.clone()),
            blake3: base_hash(&base),
            aliases: aliases.map(|(alias, of)| (alias, of.to_owned())).collect(),
            tensors,
        })
    }

    /// Puts the tensors in their places, unless they are there: from the file `given`, or from where
    /// it was.
    ///
    /// # Errors
    ///
    /// There is no such file, or it is another one.
    pub fn load(&self, params: &Params, given: Option<&Path>) -> Result<(), Error> {
        let same = |base: &Base| base_hash(base) == self.blake3;
        if params.base().is_some_and(|base| same(&base)) {
            return Ok(());
        }
        let path = self.place(given);
        let load = load_base_tensors(params, path, &self.tensors);
        load.map_err(|source| Error::Base { path: path.to_owned(), source: Box::new(source) })?;
        match params.base() {
            Some(base) if !same(&base) => Err(self.other(path, &base)),
            _ => Ok(()),
        }
    }

    /// `own`, a safetensors file, with the tensors of the base as f32, which are read from where
    /// they were.
    pub(crate) fn joined(&self, own: &[u8]) -> Result<Vec<u8>, Error> {
        let path = &self.path;
        let opened = base_tensors(path, &self.tensors);
        let base = opened
            .map_err(|source| Error::Base { path: path.clone(), source: Box::new(source) })?;
        if base_hash(&base) != self.blake3 {
            return Err(self.other(path, &base));
        }
        let misfit = |error: SafeTensorError| load::misfit(path, error.to_string());
        let wide: Vec<Vec<f32>> =
            base.tensors.iter().map(|tensor| tensor.values.to_vec()).collect();
        let mut tensors = SafeTensors::deserialize(own).map_err(misfit)?.tensors();
        for (BaseTensor { name, values, .. }, wide) in base.tensors.iter().zip(&wide) {
            let shape = values.shape().to_vec();
            let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(wide));
            let view = view.map_err(misfit)?;
            let aliases = self.aliases.iter().filter(|(_, of)| *of == name);
            tensors.extend(aliases.map(|(alias, _)| (alias.clone(), view.clone())));
            tensors.push((name.clone(), view));
        }
        let format = [("format".to_owned(), "pt".to_owned())].into();
        safetensors::serialize(tensors, Some(format)).map_err(misfit)
    }

    /// The file to read: the one that is `given`, unless only the other is there.
    fn place<'a>(&'a self, given: Option<&'a Path>) -> &'a Path {
        match given {
            Some(given) if given.is_file() || !(given.is_dir() || self.path.is_file()) => given,
            _ => &self.path,
        }
    }

    fn other(&self, path: &Path, base: &Base) -> Error {
        Error::OtherBase {
            path: path.to_owned(),
            found: base_hash(base),
            base: self.path.clone(),
            expected: self.blake3.clone(),
        }
    }
}
