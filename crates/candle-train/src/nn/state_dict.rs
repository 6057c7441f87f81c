//! Safetensors file <-> [`Params`], under PyTorch's state-dict keys.
//!
//! The file is not trusted: its header is limited before anything is allocated, and no shape in it
//! is believed. Nothing is changed unless every tensor fits; whether it does is decided by names
//! and shapes alone ([`fit()`]), so that it can be known before anything is started.

mod file;
mod fit;
mod mapped;
mod positions;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use candle_core::{Tensor, Var};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::tensor::{SafeTensorError, TensorView};
use safetensors::{Dtype, SafeTensors};

use super::{Base, BaseTensor, Buffer, Params};
use crate::ops::{SharedBytes, StoredTensor, StoredType};

pub use file::header;
use file::read_limited;
pub use fit::{
    ExpectedTensors, Fit, Header, Layout, Mismatch, Origin, TensorInfo, fit, is_conv1d, unwrapped,
};
pub use positions::Grid;

/// Remedy for a file that git-lfs has not downloaded.
const LFS_HELP: &str = "run `git lfs pull` in its folder, or download the file itself";

/// Differences between a file and a model that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict<'a> {
    /// Nothing: keys and shapes agree.
    All,
    /// Tensors under these prefixes (`fc.`) may be missing, extra or of another shape; they then
    /// keep their values.
    ExceptHead(&'a [&'a str]),
}

/// Tensors that were loaded, and those that were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Tensors taken from the file.
    pub loaded: usize,
    /// The model's tensors that keep their values, in registration order.
    pub kept: Vec<String>,
    /// The file's keys that were not used.
    pub ignored: Vec<String>,
}

/// A key with its shape.
pub type KeyShape = (String, Vec<usize>);

/// Why a state dict was not loaded or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Not a safetensors file, or a damaged one.
    #[error("`{}` is not a whole safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Defect of the file.
        source: SafeTensorError,
    },
    /// A file of `torch.save`.
    #[error("`{}` is a pickle, as `torch.save` writes it, not a safetensors file", path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
    },
    /// A file of another kind that is known.
    #[error("`{}` is {what}, not a safetensors file", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Kind of file.
        what: &'static str,
        /// Remedy; `{from}` stands for the name of the file, `{to}` for that of a safetensors file.
        help: &'static str,
    },
    /// An index that names no files.
    #[error("`{}` is not an index of safetensors files: {source}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// Defect of the index.
        source: serde_json::Error,
    },
    /// A pointer of git-lfs in the place of a large file.
    #[error("`{}` is a git-lfs pointer, not the weights themselves", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// A number is none, or infinite.
    #[error("`{key}` in `{}` holds {what}", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// "NaN" or "an infinite number".
        what: &'static str,
    },
    /// The header claims to be too long.
    #[error("`{}` is not a safetensors file: its header would have {header} bytes", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Length of the header, as the file claims it.
        header: u64,
    },
    /// Keys or shapes differ.
    #[error("`{}` does not fit the model:{}", path.display(), list(missing, unexpected, mismatched))]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The model's tensors that the file lacks.
        missing: Vec<KeyShape>,
        /// The file's tensors that the model lacks.
        unexpected: Vec<KeyShape>,
        /// Tensors whose shapes differ: key, the model's, the file's.
        mismatched: Vec<(String, Vec<usize>, Vec<usize>)>,
    },
    /// Not a number type that has a meaning as a weight.
    #[error("`{key}` in `{}` holds {dtype:?}, not floating-point numbers", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Type of its numbers.
        dtype: Dtype,
    },
    /// The values could not be moved.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The bytes could not be made.
    #[error("a state dict cannot be written: {0}")]
    Write(#[source] SafeTensorError),
}

impl Error {
    /// The file at `path` differs from the model.
    pub fn misfit(path: &Path, misfit: Mismatch) -> Self {
        let Mismatch { missing, unexpected, mismatched, typed } = misfit;
        let path = path.to_owned();
        let differs = missing.len() + unexpected.len() + mismatched.len() > 0;
        match typed.into_iter().next() {
            Some((key, dtype)) if !differs => Self::Dtype { path, key, dtype },
            _ => Self::Mismatch { path, missing, unexpected, mismatched },
        }
    }

    /// Remedy for the user.
    pub fn help(&self) -> Option<String> {
        // The state dict may be one of several entries of a checkpoint (`model_state_dict` in
        // PyTorch's tutorials, `state_dict` of Lightning, `model` ...): the one with most tensors.
        const CONVERT: &str = "convert it once:\n  python -c 'import torch; from safetensors.torch \
                               import save_file; s = torch.load(\"{from}\", map_location=\"cpu\", \
                               weights_only=True); s = max([s] + [v for v in s.values() if \
                               isinstance(v, dict)], key=lambda d: sum(map(torch.is_tensor, \
                               d.values()))); save_file({k: v.contiguous().clone() for k, v in \
                               s.items() if torch.is_tensor(v)}, \"{to}\")'";
        let (path, help) = match self {
            Self::Pickle { path } => (path, CONVERT),
            Self::OtherFormat { path, help, .. } => (path, *help),
            Self::LfsPointer { .. } => return Some(LFS_HELP.to_owned()),
            Self::NotFinite { .. } => {
                let help = "take an earlier checkpoint, or download them again: these weights are \
                            broken, as those of a run that diverged";
                return Some(help.to_owned());
            }
            _ => return None,
        };
        let to = path.with_extension("safetensors").display().to_string();
        Some(help.replace("{from}", &path.display().to_string()).replace("{to}", &to))
    }
}

/// Replaces the model's values by those of a safetensors file, all or none; or of the files that an
/// index (`model.safetensors.index.json`) names.
///
/// Keys are compared as [`fit()`] does. f16, bf16 and f64 become f32. `num_batches_tracked` is
/// taken if present, and never missed; neither are the adapters of a model that had none.
///
/// Below adapters the file is the model's [`Base`]: matrices in the CPU's memory stay in its
/// pages, in its type.
pub fn load_state_dict(
    params: &Params,
    path: &Path,
    strict: Strict<'_>,
) -> Result<LoadReport, Error> {
    let is_frozen = params.parameters().is_empty();
    if params.has_adapters() || is_frozen {
        return load_base(params, path, strict);
    }
    load_state_dict_bytes(params, path, &file::read_all(path)?, strict)
}

fn load_base(params: &Params, path: &Path, strict: Strict<'_>) -> Result<LoadReport, Error> {
    let files = mapped::map_all(path)?;
    let views = views(&contents(&files))?;
    let fit = fitting(params, path, &views, strict)?;
    replace_base(params, &fit)?;
    let n_parameters = params.parameters().len();
    let mut tensors = Vec::new();
    for (index, origin) in fit.origins.iter().enumerate() {
        let found = origin.as_ref().and_then(|origin| Some((origin, views.get(&origin.key)?)));
        let Some((origin, view)) = found else { continue };
        let Some(buffer) = index.checked_sub(n_parameters).map(|index| &params.buffers()[index])
        else {
            let var = params.parameters()[index].var()?.clone();
            set([(var, view.clone(), origin.layout)])?;
            continue;
        };
        let stored = match origin.layout {
            Layout::Same if buffer.is_frozen() => stored_in(&files, view, buffer.shape())?,
            _ => None,
        };
        match stored {
            Some(values) => tensors.push(take(buffer, &origin.key, values)?),
            None => set([(buffer.var()?.clone(), view.clone(), origin.layout)])?,
        }
    }
    params.set_base(Some(Base { path: path.to_owned(), tensors, hash: OnceLock::new() }));
    Ok(fit.report)
}

/// Gives a frozen tensor the values of the file's tensor `key`, which stay there if they can.
fn take(buffer: &Buffer, key: &str, values: StoredTensor) -> candle_core::Result<BaseTensor> {
    if !buffer.keep(&values) {
        let var = buffer.var()?;
        var.set(&values.widened()?.to_device(var.device())?)?;
    }
    Ok(BaseTensor { name: buffer.name().to_owned(), key: key.to_owned(), values })
}

/// The tensors of a safetensors file, or of those that an index names, which `keys` names by the
/// model's names. Their numbers stay in the file.
pub fn base_tensors(path: &Path, keys: &BTreeMap<String, String>) -> Result<Base, Error> {
    let files = mapped::map_all(path)?;
    let views = views(&contents(&files))?;
    let mut tensors = Vec::new();
    let mut missing = Vec::new();
    for (name, key) in keys {
        let stored =
            views.get(key).map(|view| stored_in(&files, view, view.shape())).transpose()?;
        match stored.flatten() {
            Some(values) => {
                tensors.push(BaseTensor { name: name.clone(), key: key.clone(), values });
            }
            None => missing.push((key.clone(), Vec::new())),
        }
    }
    if !missing.is_empty() {
        return Err(Error::misfit(path, Mismatch { missing, ..Mismatch::default() }));
    }
    Ok(Base { path: path.to_owned(), tensors, hash: OnceLock::new() })
}

/// Makes [`base_tensors`] the base of a model: its frozen tensors of these names get their values.
pub fn load_base_tensors(
    params: &Params,
    path: &Path,
    keys: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let base = base_tensors(path, keys)?;
    let buffers = params.buffers().iter().filter(|buffer| buffer.is_frozen());
    let buffers: BTreeMap<&str, &Buffer> = buffers.map(|buffer| (buffer.name(), buffer)).collect();
    let place = |tensor: &BaseTensor| {
        let buffer = buffers.get(tensor.name.as_str()).copied();
        buffer.filter(|buffer| buffer.shape() == tensor.values.shape())
    };
    let others = base.tensors.iter().filter(|tensor| place(tensor).is_none());
    let unexpected: Vec<KeyShape> =
        others.map(|other| (other.key.clone(), other.values.shape().to_vec())).collect();
    if !unexpected.is_empty() {
        return Err(Error::misfit(path, Mismatch { unexpected, ..Mismatch::default() }));
    }
    params.leave_base(&keys.keys().map(String::as_str).collect())?;
    for tensor in &base.tensors {
        if let Some(buffer) = place(tensor) {
            take(buffer, &tensor.key, tensor.values.clone())?;
        }
    }
    params.set_base(Some(base));
    Ok(())
}

/// Paths and bytes of mapped files.
fn contents(files: &[(PathBuf, SharedBytes)]) -> Vec<(&Path, &[u8])> {
    files.iter().map(|(path, bytes)| (path.as_path(), (**bytes).as_ref())).collect()
}

/// Makes room for the values of a file: those of another one are no longer used.
fn replace_base(params: &Params, fit: &Fit) -> candle_core::Result<()> {
    let n_parameters = params.parameters().len();
    let loaded = params.buffers().iter().zip(&fit.origins[n_parameters..]);
    let loaded = loaded.filter(|(_, origin)| origin.is_some());
    params.leave_base(&loaded.map(|(buffer, _)| buffer.name()).collect())
}

/// A tensor of one of these files in its place there; `None` for numbers of another type.
fn stored_in(
    files: &[(PathBuf, SharedBytes)],
    view: &TensorView<'_>,
    shape: &[usize],
) -> candle_core::Result<Option<StoredTensor>> {
    let Some(dtype) = stored_type(view.dtype()) else { return Ok(None) };
    let data = view.data().as_ptr_range();
    let whole = |bytes: &SharedBytes| (**bytes).as_ref().as_ptr_range();
    let holds = |(_, bytes): &&(PathBuf, SharedBytes)| {
        whole(bytes).start <= data.start && data.end <= whole(bytes).end
    };
    let Some((_, bytes)) = files.iter().find(holds) else { return Ok(None) };
    let start = data.start.addr() - whole(bytes).start.addr();
    let range = start..start + view.data().len();
    StoredTensor::new(bytes.clone(), range, dtype, shape).map(Some)
}

/// The type of stored numbers, if they can stay in their file.
pub fn stored_type(dtype: Dtype) -> Option<StoredType> {
    match dtype {
        Dtype::F32 => Some(StoredType::F32),
        Dtype::BF16 => Some(StoredType::Bf16),
        Dtype::F16 => Some(StoredType::F16),
        _ => None,
    }
}

/// [`load_state_dict`] from files that were read already; `path` is for messages.
pub fn load_state_dict_bytes(
    params: &Params,
    path: &Path,
    files: &[(PathBuf, Vec<u8>)],
    strict: Strict<'_>,
) -> Result<LoadReport, Error> {
    let files: Vec<(&Path, &[u8])> =
        files.iter().map(|(path, bytes)| (path.as_path(), bytes.as_slice())).collect();
    let views = views(&files)?;
    let fit = fitting(params, path, &views, strict)?;
    replace_base(params, &fit)?;
    let tensors = tensors(params)?;
    let values = tensors.into_iter().zip(&fit.origins).filter_map(|((_, _, var), origin)| {
        let origin = origin.as_ref()?;
        Some((var, views.get(&origin.key)?.clone(), origin.layout))
    });
    set(values)?;
    for (counter, key) in params.counters().iter().zip(&fit.counters) {
        let view = key.as_ref().and_then(|key| views.get(key));
        if let Some(Ok(bytes)) = view.map(|view| <[u8; 8]>::try_from(view.data())) {
            counter.set(i64::from_le_bytes(bytes));
        }
    }
    Ok(fit.report)
}

/// Origins of the model's tensors in a file that fits, and holds numbers only.
fn fitting(
    params: &Params,
    path: &Path,
    views: &Views<'_>,
    strict: Strict<'_>,
) -> Result<Fit, Error> {
    let wanted = ExpectedTensors::of(params);
    let fit = fit(&wanted, &held(views), strict).map_err(|misfit| Error::misfit(path, misfit))?;
    same_twins(path, views, &fit)?;
    let origins = fit.origins.iter().flatten();
    finite(path, origins.filter_map(|origin| views.get_key_value(&origin.key)).collect())?;
    Ok(fit)
}

type Views<'a> = BTreeMap<String, TensorView<'a>>;

/// The tensors of all files.
fn views<'a>(files: &[(&Path, &'a [u8])]) -> Result<Views<'a>, Error> {
    let mut all = Views::new();
    for &(path, bytes) in files {
        let format = |source| Error::Format { path: path.to_owned(), source };
        all.extend(SafeTensors::deserialize(bytes).map_err(format)?.tensors());
    }
    Ok(all)
}

/// Headers of these tensors.
fn held(views: &Views<'_>) -> Header {
    let held =
        |view: &TensorView<'_>| TensorInfo { dtype: view.dtype(), shape: view.shape().to_vec() };
    views.iter().map(|(key, view)| (key.clone(), held(view))).collect()
}

/// Refuses a second name of a tensor under which the file has other numbers.
fn same_twins(path: &Path, views: &Views<'_>, fit: &Fit) -> Result<(), Error> {
    let differs = |(a, b): &&(String, String)| views.get(a) != views.get(b);
    let unexpected: Vec<KeyShape> = fit
        .twins
        .iter()
        .filter(differs)
        .filter_map(|(key, _)| Some((key.clone(), views.get(key)?.shape().to_vec())))
        .collect();
    if unexpected.is_empty() {
        return Ok(());
    }
    Err(Error::misfit(path, Mismatch { unexpected, ..Mismatch::default() }))
}

/// Refuses tensors that hold numbers that are none. All cores of this rank look.
fn finite(path: &Path, tensors: Vec<(&String, &TensorView<'_>)>) -> Result<(), Error> {
    let tensors = tensors.into_par_iter();
    let broken = tensors.find_map_first(|(key, view)| Some((key, not_finite(view)?)));
    let named = |(key, what): (&String, _)| {
        Err(Error::NotFinite { path: path.to_owned(), key: key.clone(), what })
    };
    broken.map_or(Ok(()), named)
}

/// Names a value of a tensor that is not finite: NaN or infinity. Reads the bits in place, since a file
/// may be as large as memory.
fn not_finite(view: &TensorView<'_>) -> Option<&'static str> {
    fn first_broken<const N: usize>(
        data: &[u8],
        number: impl Fn([u8; N]) -> u64,
        exponent: u64,
        fraction: u64,
    ) -> Option<&'static str> {
        let numbers = data.as_chunks::<N>().0.iter().map(|bytes| number(*bytes));
        let mut broken = numbers.filter(|bits| bits & exponent == exponent).peekable();
        broken.peek()?;
        Some(if broken.any(|bits| bits & fraction != 0) { "NaN" } else { "an infinite number" })
    }
    let data = view.data();
    let of_16 = |bytes| u64::from(u16::from_le_bytes(bytes));
    let of_32 = |bytes| u64::from(u32::from_le_bytes(bytes));
    match view.dtype() {
        Dtype::F64 => first_broken(data, u64::from_le_bytes, 0x7FF << 52, (1 << 52) - 1),
        Dtype::F32 => first_broken(data, of_32, 0xFF << 23, (1 << 23) - 1),
        Dtype::BF16 => first_broken(data, of_16, 0xFF << 7, (1 << 7) - 1),
        Dtype::F16 => first_broken(data, of_16, 0x1F << 10, (1 << 10) - 1),
        _ => None,
    }
}

/// One tensor at a time, so that memory holds the files and the model, and not the model twice.
fn set<'a>(
    values: impl IntoIterator<Item = (Var, TensorView<'a>, Layout)>,
) -> candle_core::Result<()> {
    for (var, view, layout) in values {
        let mut values = floats(&view).unwrap_or_default();
        match (layout, view.shape()) {
            (Layout::Transposed, &[rows, columns]) => {
                let value = |i: usize| values[i % rows * columns + i / rows];
                values = (0..rows * columns).map(value).collect();
            }
            (Layout::MissingRows, &[_, columns]) => {
                let mean = mean_row(&values, columns);
                let missing = var.elem_count() - values.len();
                values.extend(mean.iter().cycle().take(missing));
            }
            (Layout::Positions { from, to }, _) => {
                values = positions::resampled(&values, from, to);
            }
            _ => values.truncate(var.elem_count()),
        }
        var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
    }
    Ok(())
}

/// The mean of the rows of a matrix.
fn mean_row(values: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0; columns];
    for row in values.chunks_exact(columns) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += f64::from(*value);
        }
    }
    let rows = (values.len() / columns) as f64;
    sums.into_iter().map(|sum| (sum / rows) as f32).collect()
}

/// All parameters, buffers and counters as a safetensors file that PyTorch loads with
/// `strict=True`.
///
/// Counters are int64 scalars. Equal values give equal bytes.
pub fn save_state_dict(params: &Params) -> Result<Vec<u8>, Error> {
    let mut owned: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    let parameters = params.parameters().iter().map(|p| (p.name(), p.shape(), p.detached()));
    let buffers = params.buffers().iter().map(|b| (b.name(), b.shape(), b.detached()));
    let aliases = params.aliases().iter().map(|(name, p)| (&**name, p.shape(), p.detached()));
    for (name, shape, values) in parameters.chain(buffers).chain(aliases) {
        let name = name.to_owned();
        let shape = shape.to_vec();
        let values = values?.flatten_all()?.to_vec1::<f32>()?;
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        owned.push((name, Dtype::F32, shape, bytes));
    }
    for counter in params.counters() {
        let bytes = counter.get().to_le_bytes().to_vec();
        owned.push((counter.name().to_owned(), Dtype::I64, vec![], bytes));
    }
    let views = owned
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes)?))
        })
        .collect::<Result<Vec<_>, SafeTensorError>>()
        .map_err(Error::Write)?;
    let metadata = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    safetensors::serialize(views, Some(metadata)).map_err(Error::Write)
}

/// Parameters, then buffers.
fn tensors(params: &Params) -> Result<Vec<(String, Vec<usize>, Var)>, Error> {
    let parameters = params.parameters().iter().map(|p| (p.name(), p.shape(), p.var()));
    let buffers = params.buffers().iter().map(|b| (b.name(), b.shape(), b.var()));
    parameters
        .chain(buffers)
        .map(|(name, shape, var)| Ok((name.to_owned(), shape.to_vec(), var?.clone())))
        .collect()
}

/// Ends of the names of adapters' tensors.
pub const ADAPTER_ENDS: [&str; 3] = [".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"];

/// True for a tensor of an adapter, which is trained on top of a model that was trained before.
pub fn is_adapter(name: &str) -> bool {
    ADAPTER_ENDS.iter().any(|end| name.ends_with(end))
}

/// The values as f32; `None` if they are no floating-point numbers.
fn floats(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = view.data();
    match view.dtype() {
        Dtype::F32 => Some(decode(data, f32::from_le_bytes)),
        Dtype::F64 => Some(decode(data, |bytes| f64::from_le_bytes(bytes) as f32)),
        Dtype::F16 => Some(decode(data, |bytes| f16::from_le_bytes(bytes).to_f32())),
        Dtype::BF16 => Some(decode(data, |bytes| bf16::from_le_bytes(bytes).to_f32())),
        _ => None,
    }
}

fn decode<const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    data.as_chunks().0.iter().map(|bytes| value(*bytes)).collect()
}

/// Longest list of tensors in a message.
const MAX_NAMED_TENSORS: usize = 10;

/// One line per tensor that does not fit, for the first of them.
fn list(
    missing: &[KeyShape],
    unexpected: &[KeyShape],
    mismatched: &[(String, Vec<usize>, Vec<usize>)],
) -> String {
    let missing = missing.iter().map(|(key, shape)| format!("missing `{key}` {shape:?}"));
    let unexpected = unexpected.iter().map(|(key, shape)| format!("unexpected `{key}` {shape:?}"));
    let mismatched = mismatched.iter().map(|(key, ours, theirs)| {
        format!("`{key}` is {theirs:?} in the file and {ours:?} in the model")
    });
    let mut all = missing.chain(unexpected).chain(mismatched);
    let mut lines = String::new();
    for line in all.by_ref().take(MAX_NAMED_TENSORS) {
        let _ = write!(lines, "\n  {line}");
    }
    match all.count() {
        0 => {}
        more => drop(write!(lines, "\n  and {more} more")),
    }
    lines
}

/// Prefix of PEFT for the names of a causal language model.
pub const ADAPTER_PREFIX: &str = "base_model.model.";

/// Replaces the model's adapters by those of a safetensors file of PEFT, all or none.
pub fn load_adapters(params: &Params, path: &Path) -> Result<(), Error> {
    let bytes = read_limited(path)?;
    let views =
        views(&[(path, &bytes)])?.into_iter().map(|(name, view)| (ours(name), view)).collect();
    let origins = adapters_of(&ExpectedTensors::of(params), &held(&views));
    let origins = origins.map_err(|misfit| Error::misfit(path, misfit))?;
    finite(path, origins.iter().filter_map(|origin| views.get_key_value(&origin.key)).collect())?;
    for (param, origin) in params.parameters().iter().zip(&origins) {
        if let Some(view) = views.get(&origin.key) {
            set([(param.var()?.clone(), view.clone(), origin.layout)])?;
        }
    }
    Ok(())
}

/// Compares the adapters of a safetensors file of PEFT with those that are `expected`, by the file's
/// header alone.
pub fn check_adapters(expected: &ExpectedTensors, path: &Path) -> Result<(), Error> {
    let tensors = header(path)?.into_iter().map(|(name, held)| (ours(name), held)).collect();
    adapters_of(expected, &tensors).map(drop).map_err(|misfit| Error::misfit(path, misfit))
}

/// The model's name of an adapter.
fn ours(name: String) -> String {
    name.strip_prefix(ADAPTER_PREFIX).map(str::to_owned).unwrap_or(name)
}

/// Origin of each trained tensor, which are adapters and modules that are trained as they are; none
/// may be absent.
fn adapters_of(expected: &ExpectedTensors, header: &Header) -> Result<Vec<Origin>, Mismatch> {
    let trained = expected.tensors[..expected.n_parameters].to_vec();
    let wanted = ExpectedTensors { tensors: trained, ..ExpectedTensors::default() };
    let fit = fit(&wanted, header, Strict::All)?;
    let absent = |(_, origin): &(&KeyShape, &Option<Origin>)| origin.is_none();
    let missing: Vec<KeyShape> = wanted
        .tensors
        .iter()
        .zip(&fit.origins)
        .filter(absent)
        .map(|(tensor, _)| tensor.clone())
        .collect();
    if missing.is_empty() {
        return Ok(fit.origins.into_iter().flatten().collect());
    }
    Err(Mismatch { missing, ..Mismatch::default() })
}

#[cfg(test)]
mod tests;
