//! Values of frozen parameters: drawn when they are first needed, or those of a file, which stay in
//! the file's pages.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use candle_core::{Device, Result, Tensor, Var, bail};

use crate::nn::init::Init;
use crate::ops::{StoredTensor, Weight};
use crate::rng::Key;

/// Values of a parameter or buffer.
#[derive(Clone)]
pub(super) enum Values {
    /// None: the model is only described, so that counting parameters allocates nothing.
    Described,
    /// f32, changed by training.
    Var(Var),
    /// Frozen: in f32, or in the pages of their file.
    Frozen(Arc<FrozenValues>),
}

impl Values {
    /// The variable that holds them, of what is called `name`.
    pub(super) fn var(&self, name: &str) -> Result<&Var> {
        match self {
            Self::Described => bail!("`{name}` has no values: the model was only described"),
            Self::Var(var) => Ok(var),
            Self::Frozen(frozen) => frozen.var(name),
        }
    }

    /// The values as f32, detached: a copy of those that are in a file.
    pub(super) fn tensor(&self, name: &str) -> Result<Tensor> {
        match self.stored() {
            Some(stored) => stored.widened(),
            None => Ok(self.var(name)?.as_detached_tensor()),
        }
    }

    /// The values as an operand without a gradient.
    pub(super) fn weight(&self, name: &str) -> Result<Weight> {
        match self.stored() {
            Some(stored) => Ok(Weight::stored(stored)),
            None => Ok(Weight::from(&self.var(name)?.as_detached_tensor())),
        }
    }

    /// The values in their file, if they are there.
    pub(super) fn stored(&self) -> Option<StoredTensor> {
        match self {
            Self::Frozen(frozen) => frozen.stored(),
            Self::Described | Self::Var(_) => None,
        }
    }
}

/// Memory for frozen values that come from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// f32 in memory.
    Memory,
    /// The file's own pages, below adapters.
    MayStayInFile,
}

/// Values of a frozen parameter.
pub(super) struct FrozenValues {
    shape: Vec<usize>,
    init: Init,
    key: Key,
    device: Device,
    var: OnceLock<Var>,
    stored: RwLock<Option<StoredTensor>>,
}

impl FrozenValues {
    /// Values that will be drawn from `key`.
    pub(super) fn new(shape: &[usize], init: Init, key: Key, device: &Device) -> Self {
        let shape = shape.to_vec();
        let device = device.clone();
        Self { shape, init, key, device, var: OnceLock::new(), stored: RwLock::default() }
    }

    pub(super) fn is_on_cpu(&self) -> bool {
        self.device.is_cpu()
    }

    /// Takes the values from a file from now on.
    pub(super) fn keep(&self, stored: StoredTensor) {
        *self.stored.write().unwrap_or_else(PoisonError::into_inner) = Some(stored);
    }

    /// Takes the values from memory again.
    pub(super) fn release(&self) {
        *self.stored.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn stored(&self) -> Option<StoredTensor> {
        self.stored.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn var(&self, name: &str) -> Result<&Var> {
        if self.stored().is_some() {
            bail!("`{name}` has no variable: its values stay in their file")
        }
        if let Some(var) = self.var.get() {
            return Ok(var);
        }
        let values = self.init.values(self.key, self.shape.iter().product());
        let var = Var::from_vec(values, self.shape.as_slice(), &self.device)?;
        Ok(self.var.get_or_init(|| var))
    }
}

/// The file, or the files of an index, from which a model has frozen values.
#[derive(Clone)]
pub struct Base {
    /// The file that was named.
    pub path: PathBuf,
    /// The tensors that come from it.
    pub tensors: Vec<BaseTensor>,
    /// Hash of the tensors, once somebody has made one.
    pub hash: OnceLock<String>,
}

impl Base {
    /// True if the model's tensor `name` comes from it.
    pub fn holds(&self, name: &str) -> bool {
        self.tensors.iter().any(|tensor| tensor.name == name)
    }
}

/// A frozen tensor of a model that comes from a file.
#[derive(Clone)]
pub struct BaseTensor {
    /// The model's name of it.
    pub name: String,
    /// The file's name of it.
    pub key: String,
    /// The values there.
    pub values: StoredTensor,
}
