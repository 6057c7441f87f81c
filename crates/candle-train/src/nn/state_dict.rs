//! Safetensors file <-> [`Params`], under PyTorch's state-dict keys.
//!
//! The file is not trusted: its header is limited before anything is allocated, and no shape in it
//! is believed. Nothing is changed unless every tensor fits; whether it does is decided by names
//! and shapes alone ([`fit()`]), so that it can be known before anything is started.

mod adapters;
mod file;
mod fit;
mod positions;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use candle_core::{Tensor, Var};
use half::{bf16, f16};
use safetensors::tensor::{SafeTensorError, TensorView};
use safetensors::{Dtype, SafeTensors};

use super::Params;

pub use adapters::PREFIX as ADAPTER_PREFIX;
pub use adapters::{check_adapters, load_adapters};
pub use file::header;
pub use fit::{Fit, Header, Held, Layout, Misfit, Origin, Wanted, fit, is_conv1d, unwrapped};
pub use positions::Grid;

/// What to do about a file that git-lfs has not downloaded.
const LFS_HELP: &str = "run `git lfs pull` in its folder, or download the file itself";

/// What a file may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict<'a> {
    /// Nothing: keys and shapes agree.
    All,
    /// Tensors under these prefixes (`fc.`) may be missing, extra or of another shape; they then
    /// keep their values.
    ExceptHead(&'a [&'a str]),
}

/// What was loaded.
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
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a safetensors file, or a damaged one.
    #[error("`{}` is not a whole safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
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
        /// What it is.
        what: &'static str,
        /// What to do about it; `{from}` stands for its name, `{to}` for that of a safetensors file.
        help: &'static str,
    },
    /// An index that names no files.
    #[error("`{}` is not an index of safetensors files: {source}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// What git-lfs leaves in the place of a large file.
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
        /// Its claim.
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
        /// What it holds.
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
    pub fn misfit(path: &Path, misfit: Misfit) -> Self {
        let Misfit { missing, unexpected, mismatched, typed } = misfit;
        let path = path.to_owned();
        let differs = missing.len() + unexpected.len() + mismatched.len() > 0;
        match typed.into_iter().next() {
            Some((key, dtype)) if !differs => Self::Dtype { path, key, dtype },
            _ => Self::Mismatch { path, missing, unexpected, mismatched },
        }
    }

    /// What the user can do about it.
    pub fn help(&self) -> Option<String> {
        // The state dict may be one of several entries of a checkpoint (`model_state_dict` in
        // PyTorch's tutorials, `state_dict` of Lightning, `model` ...): that with most tensors.
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
pub fn load_state_dict(
    params: &Params,
    path: &Path,
    strict: Strict<'_>,
) -> Result<LoadReport, Error> {
    load_state_dict_bytes(params, path, &file::read_all(path)?, strict)
}

/// [`load_state_dict`] from files that were read already; `path` is for messages.
pub fn load_state_dict_bytes(
    params: &Params,
    path: &Path,
    files: &[(PathBuf, Vec<u8>)],
    strict: Strict<'_>,
) -> Result<LoadReport, Error> {
    let views = views(files)?;
    let wanted = Wanted::of(params);
    let fit = fit(&wanted, &held(&views), strict).map_err(|misfit| Error::misfit(path, misfit))?;
    same_twins(path, &views, &fit)?;
    let taken = fit.origins.iter().flatten();
    finite(path, taken.filter_map(|origin| views.get_key_value(&origin.key)))?;
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

type Views<'a> = BTreeMap<String, TensorView<'a>>;

/// The tensors of all files.
fn views(files: &[(PathBuf, Vec<u8>)]) -> Result<Views<'_>, Error> {
    let mut all = Views::new();
    for (path, bytes) in files {
        let format = |source| Error::Format { path: path.clone(), source };
        all.extend(SafeTensors::deserialize(bytes).map_err(format)?.tensors());
    }
    Ok(all)
}

/// What their headers say.
fn held(views: &Views<'_>) -> Header {
    let held = |view: &TensorView<'_>| Held { dtype: view.dtype(), shape: view.shape().to_vec() };
    views.iter().map(|(key, view)| (key.clone(), held(view))).collect()
}

/// Refuses another name of a tensor under which the file has other numbers.
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
    Err(Error::misfit(path, Misfit { unexpected, ..Misfit::default() }))
}

/// Refuses tensors that hold numbers that are none.
fn finite<'a>(
    path: &Path,
    mut tensors: impl Iterator<Item = (&'a String, &'a TensorView<'a>)>,
) -> Result<(), Error> {
    let broken = tensors.find_map(|(key, view)| Some((key, not_finite(view)?)));
    let named = |(key, what): (&String, _)| {
        Err(Error::NotFinite { path: path.to_owned(), key: key.clone(), what })
    };
    broken.map_or(Ok(()), named)
}

/// Whether a tensor holds NaN or infinity, in words. Reads the bits in place, since a file may be as
/// large as memory.
fn not_finite(view: &TensorView<'_>) -> Option<&'static str> {
    fn found<const N: usize>(
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
        Dtype::F64 => found(data, u64::from_le_bytes, 0x7FF << 52, (1 << 52) - 1),
        Dtype::F32 => found(data, of_32, 0xFF << 23, (1 << 23) - 1),
        Dtype::BF16 => found(data, of_16, 0xFF << 7, (1 << 7) - 1),
        Dtype::F16 => found(data, of_16, 0x1F << 10, (1 << 10) - 1),
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
            (Layout::Positions { from, to }, _) => {
                values = positions::resampled(&values, from, to);
            }
            _ => values.truncate(var.elem_count()),
        }
        var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
    }
    Ok(())
}

/// All parameters, buffers and counters as a safetensors file that PyTorch loads with
/// `strict=True`.
///
/// Counters are int64 scalars. Equal values give equal bytes.
pub fn save_state_dict(params: &Params) -> Result<Vec<u8>, Error> {
    let mut owned: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    let aliases = params.aliases().iter();
    let aliases = aliases.map(|(name, p)| Ok((name.clone(), p.shape().to_vec(), p.var()?.clone())));
    let aliases: Vec<_> = aliases.collect::<candle_core::Result<_>>()?;
    for (name, shape, var) in tensors(params)?.into_iter().chain(aliases) {
        let values = var.flatten_all()?.to_vec1::<f32>()?;
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

/// Whether the tensor belongs to what is trained beside a model that was trained before.
fn is_adapter(name: &str) -> bool {
    name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight")
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use candle_core::Result as CandleResult;
    use tempfile::NamedTempFile;
    use test_support::assert_refused;

    use super::fit::COUNTER;
    use super::*;
    use crate::nn::{Builder, Init, Linear};

    /// A model of `fc.weight` (2, 3), `fc.bias` (2), a buffer `mean` (1) and a counter.
    fn params(value: f64) -> Params {
        let builder = Builder::new(1);
        let build = || -> CandleResult<()> {
            builder.pp("fc").param("weight", &[2, 3], Init::Constant(value))?;
            builder.pp("fc").param("bias", &[2], Init::Constant(value))?;
            builder.buffer("mean", &[1], value as f32)?;
            Ok(())
        };
        build().unwrap();
        builder.counter(COUNTER).set(value as i64);
        builder.finish()
    }

    fn file(bytes: &[u8]) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn state_dict(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> NamedTempFile {
        let views = tensors.iter().map(|(key, dtype, shape, bytes)| {
            (*key, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
        });
        file(&safetensors::serialize(views, None).unwrap())
    }

    fn values(params: &Params) -> Vec<f32> {
        let values = |var: &Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        tensors(params).unwrap().iter().flat_map(|(_, _, var)| values(var)).collect()
    }

    #[test]
    fn what_was_saved_loads_bit_for_bit_and_equal_values_give_equal_bytes() {
        let saved = save_state_dict(&params(0.1)).unwrap();
        assert_eq!(saved, save_state_dict(&params(0.1)).unwrap());
        let other = params(7.0);
        let report = load_state_dict(&other, file(&saved).path(), Strict::All).unwrap();
        assert_eq!(report, LoadReport { loaded: 3, ..LoadReport::default() });
        assert_eq!((values(&other), other.counters()[0].get()), (vec![0.1; 9], 0));
    }

    /// The file of `params(0.5)` under other names.
    fn renamed(name: impl Fn(&str) -> String) -> NamedTempFile {
        let saved = save_state_dict(&params(0.5)).unwrap();
        let views = SafeTensors::deserialize(&saved).unwrap().tensors();
        let views = views.into_iter().map(|(key, view)| (name(&key), view));
        file(&safetensors::serialize(views, None).unwrap())
    }

    #[test]
    fn the_name_that_a_wrapper_gives_the_model_is_no_part_of_its_names() {
        for wrapper in ["model.", "net.", "module.model."] {
            let wrapped = renamed(|key| format!("{wrapper}{key}"));
            let model = params(0.0);
            load_state_dict(&model, wrapped.path(), Strict::All).unwrap();
            assert_eq!(values(&model), [0.5; 9], "{wrapper}");
        }
        let partly =
            renamed(|key| if key == "mean" { "model.men".into() } else { format!("model.{key}") });
        let error = load_state_dict(&params(0.0), partly.path(), Strict::All).unwrap_err();
        assert!(error.to_string().contains("unexpected `men`"), "{error}");
    }

    #[test]
    fn numbers_that_are_none_are_refused_by_the_name_of_their_tensor() {
        let told = |dtype, bytes: &[u8]| {
            let (weight, bias) = (vec![0; 24], [0u8; 8].to_vec());
            let mean = [("mean", dtype, &[1][..], bytes.to_vec())];
            let others = [
                ("fc.weight", Dtype::F32, &[2, 3][..], weight),
                ("fc.bias", Dtype::F32, &[2][..], bias),
            ];
            let all: Vec<_> = others.into_iter().chain(mean).collect();
            let model = params(7.0);
            let result = load_state_dict(&model, state_dict(&all).path(), Strict::All);
            let is_as_before = values(&model) == [7.0; 9];
            result.map(drop).map_err(|error| (error.to_string(), is_as_before))
        };
        let nan = [
            (Dtype::F32, f32::NAN.to_le_bytes().to_vec()),
            (Dtype::F64, f64::NAN.to_le_bytes().to_vec()),
            (Dtype::F16, f16::NAN.to_le_bytes().to_vec()),
            (Dtype::BF16, bf16::NAN.to_le_bytes().to_vec()),
        ];
        for (dtype, bytes) in nan {
            let (said, is_as_before) = told(dtype, &bytes).unwrap_err();
            assert!(said.starts_with("`mean` in `") && said.ends_with("` holds NaN"), "{said}");
            assert!(is_as_before);
        }
        let (said, _) = told(Dtype::F32, &f32::NEG_INFINITY.to_le_bytes()).unwrap_err();
        assert!(said.ends_with("holds an infinite number"), "{said}");
        for value in [f32::MAX, f32::MIN_POSITIVE, -0.0] {
            assert_eq!(told(Dtype::F32, &value.to_le_bytes()), Ok(()));
        }
    }

    #[test]
    fn what_git_lfs_left_is_named() {
        let pointer = file(b"version https://git-lfs.github.com/spec/v1\noid sha256:1f\nsize 9\n");
        let error = header(pointer.path()).unwrap_err();
        assert!(error.to_string().ends_with("is a git-lfs pointer, not the weights themselves"));
        assert!(error.help().unwrap().starts_with("run `git lfs pull`"));
    }

    #[test]
    fn positions_of_images_of_another_size_are_resampled() {
        let grid = |sides| Grid { prefix: 1, sides };
        let of = |sides: [usize; 2]| {
            let builder = Builder::new(1);
            builder.is_grid_of_positions("pos_embed", grid(sides));
            let shape = [1, 1 + sides[0] * sides[1], 2];
            builder.param("pos_embed", &shape, Init::Normal(1.0)).unwrap();
            builder.finish()
        };
        let (square, wide) = (of([3, 3]), of([2, 4]));
        let saved = file(&save_state_dict(&square).unwrap());
        load_state_dict(&wide, saved.path(), Strict::All).unwrap();
        let expected = positions::resampled(&values(&square), grid([3, 3]), grid([2, 4]));
        assert_eq!(values(&wide), expected);
    }

    #[test]
    fn half_and_double_become_f32_the_wrapper_is_stripped_and_counters_are_optional() {
        let half: Vec<u8> = (0..6).flat_map(|_| f16::from_f32(0.5).to_le_bytes()).collect();
        let brain: Vec<u8> = (0..2).flat_map(|_| bf16::from_f32(-2.0).to_le_bytes()).collect();
        let file = state_dict(&[
            ("module.fc.weight", Dtype::F16, &[2, 3], half),
            ("module.fc.bias", Dtype::BF16, &[2], brain),
            ("module.mean", Dtype::F64, &[1], 0.25f64.to_le_bytes().to_vec()),
        ]);
        let params = params(7.0);
        load_state_dict(&params, file.path(), Strict::All).unwrap();
        assert_eq!(values(&params), [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, -2.0, -2.0, 0.25]);
        assert_eq!(params.counters()[0].get(), 7);
    }

    #[test]
    fn every_difference_is_listed_and_nothing_is_changed() {
        let zeros = |n: usize| vec![0; 4 * n];
        let file = state_dict(&[
            ("fc.weight", Dtype::F32, &[3, 2], zeros(6)),
            ("fc.bias", Dtype::F32, &[2], zeros(2)),
            ("head.scale", Dtype::F32, &[5], zeros(5)),
        ]);
        let params = params(7.0);
        let error = load_state_dict(&params, file.path(), Strict::All).unwrap_err().to_string();
        let expected = "does not fit the model:\n  missing `mean` [1]\n  unexpected `head.scale` [5]\n  \
                        `fc.weight` is [3, 2] in the file and [2, 3] in the model";
        assert!(error.ends_with(expected), "{error}");
        assert_eq!(values(&params), [7.0; 9]);
        let head = Strict::ExceptHead(&["fc.", "head."]);
        assert_refused(load_state_dict(&params, file.path(), head), "missing `mean` [1]");
    }

    #[test]
    fn a_header_alone_tells_what_does_not_fit_and_ten_of_many_are_named() {
        let key = |i: usize| format!("layers.{i:02}.weight");
        let bytes = [0; 4];
        let views =
            (0..40).map(|i| (key(i), TensorView::new(Dtype::F32, vec![1], &bytes).unwrap()));
        let file = file(&safetensors::serialize(views, None).unwrap());
        let header = header(file.path()).unwrap();
        assert_eq!(header.len(), 40);
        let misfit = fit(&Wanted::of(&params(0.0)), &header, Strict::All).unwrap_err();
        assert_eq!((misfit.missing.len(), misfit.unexpected.len()), (3, 40));
        let error = Error::misfit(file.path(), misfit).to_string();
        assert_eq!(error.lines().count(), 1 + 10 + 1, "{error}");
        assert!(error.ends_with("and 33 more"), "{error}");
    }

    #[test]
    fn a_pickle_is_told_with_the_lines_that_convert_it() {
        let error = header(file(b"PK\x03\x04\0\0\x08\x08 archive/data.pkl").path()).unwrap_err();
        assert!(error.to_string().contains("is a pickle, as `torch.save` writes it"), "{error}");
        let help = error.help().unwrap();
        assert!(help.contains("save_file({k:") && help.contains("torch.load(\""), "{help}");
    }

    #[test]
    fn weights_of_other_programs_are_told_by_what_they_are() {
        let zip = |name: &str| {
            let length = u16::try_from(name.len()).unwrap().to_le_bytes();
            [&b"PK\x03\x04"[..], &[0; 22], &length, &[0; 2], name.as_bytes(), &[0; 64]].concat()
        };
        let told = |bytes: &[u8]| {
            let error = header(file(bytes).path()).unwrap_err();
            error.to_string() + ": " + &error.help().unwrap_or_default()
        };
        let numpy = told(&zip("a.npy"));
        assert!(numpy.contains("is an archive of NumPy (`.npz`), not a safetensors"), "{numpy}");
        assert!(numpy.contains("save_file(dict(numpy.load(\""), "{numpy}");
        for (bytes, what) in [
            (zip("model/data.pkl"), "is a pickle, as `torch.save` writes it"),
            (zip("metadata.json"), "is a model of Keras"),
            (b"\x89HDF\r\n\x1a\n....".to_vec(), "is an HDF5 file"),
            (b"\x93NUMPY\x01\0....".to_vec(), "is one array of NumPy (`.npy`)"),
            (b"GGUF\x03\0\0\0....".to_vec(), "is a GGUF file"),
            (b"\x80\x04\x95\0\0\0\0\0....".to_vec(), "is a pickle of Python"),
            (b"\x08\x08\x12\x07pytorch".to_vec(), "is an ONNX model"),
        ] {
            assert!(told(&bytes).contains(what), "{}", told(&bytes));
        }
    }

    #[test]
    fn numbers_of_gpt2_are_turned_and_its_first_positions_taken() {
        let builder = Builder::new(1);
        let table = |name: &str, shape: &[usize]| {
            drop(builder.pp("transformer").pp(name).param("weight", shape, Init::Constant(9.0)));
        };
        table("wpe", &[1, 2]);
        table("h.0.attn.c_attn", &[3, 2]);
        table("h.0.attn.c_proj", &[2, 2]);
        let params = builder.finish();
        let numbers = |n: u8| (0..n).flat_map(|i| f32::from(i).to_le_bytes()).collect::<Vec<u8>>();
        let positions = ("wpe.weight", Dtype::F32, &[2usize, 2][..], numbers(4));
        let huggingface = state_dict(&[
            positions.clone(),
            ("h.0.attn.c_attn.weight", Dtype::F32, &[2, 3], numbers(6)),
            ("h.0.attn.c_proj.weight", Dtype::F32, &[2, 2], numbers(4)),
        ]);
        load_state_dict(&params, huggingface.path(), Strict::All).unwrap();
        let turned = [0.0, 1.0, 0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 0.0, 2.0, 1.0, 3.0];
        assert_eq!(values(&params), turned);
        let nanogpt = state_dict(&[
            positions,
            ("h.0.attn.c_attn.weight", Dtype::F32, &[3, 2], numbers(6)),
            ("h.0.attn.c_proj.weight", Dtype::F32, &[2, 2], numbers(4)),
        ]);
        load_state_dict(&params, nanogpt.path(), Strict::All).unwrap();
        let plain = [0.0, 1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 3.0];
        assert_eq!(values(&params), plain);
    }

    #[test]
    fn a_head_of_another_size_keeps_its_values() {
        let file = state_dict(&[
            ("fc.weight", Dtype::F32, &[5, 3], vec![0; 60]),
            ("mean", Dtype::F32, &[1], vec![0; 4]),
        ]);
        let params = params(7.0);
        let report = load_state_dict(&params, file.path(), Strict::ExceptHead(&["fc."])).unwrap();
        assert_eq!((report.loaded, report.ignored), (1, vec!["fc.weight".to_owned()]));
        assert_eq!(report.kept, ["fc.weight", "fc.bias"]);
        assert_eq!(values(&params)[7..], [7.0, 0.0]);
    }

    #[test]
    fn an_index_names_the_files_of_one_state_dict() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            File::create(&path).unwrap().write_all(bytes).unwrap();
            path
        };
        let part = |key: &str, shape: &[usize], value: f32| {
            let data = value.to_le_bytes().repeat(shape.iter().product());
            let view = TensorView::new(Dtype::F32, shape.to_vec(), &data).unwrap();
            safetensors::serialize([(key, view)], None).unwrap()
        };
        write("a.safetensors", &part("fc.weight", &[2, 3], 1.5));
        write("b.safetensors", &part("fc.bias", &[2], 2.5));
        write("c.safetensors", &part("mean", &[1], 3.5));
        let map = r#"{"metadata": {}, "weight_map": {"fc.weight": "a.safetensors",
            "fc.bias": "b.safetensors", "mean": "c.safetensors"}}"#;
        let index = write("model.safetensors.index.json", map.as_bytes());
        let params = params(7.0);
        assert_eq!(load_state_dict(&params, &index, Strict::All).unwrap().loaded, 3);
        assert_eq!(values(&params), [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 2.5, 2.5, 3.5]);
        std::fs::remove_file(folder.path().join("b.safetensors")).unwrap();
        let error = load_state_dict(&params, &index, Strict::All).unwrap_err().to_string();
        assert!(error.contains("b.safetensors` cannot be read"), "{error}");
        let other = write("other.index.json", b"[]");
        let error = load_state_dict(&params, &other, Strict::All).unwrap_err();
        assert!(matches!(error, Error::Index { .. }), "{error}");
    }

    #[test]
    fn files_that_are_damaged_or_lie_are_refused() {
        let load = |bytes: &[u8]| {
            load_state_dict(&params(1.0), file(bytes).path(), Strict::All).unwrap_err()
        };
        let saved = save_state_dict(&params(1.0)).unwrap();
        assert!(matches!(load(b""), Error::Format { .. }));
        assert!(matches!(load(b"PK\x03\x04 and so on"), Error::Pickle { .. }));
        assert!(matches!(load(&saved[..saved.len() - 1]), Error::Format { .. }));
        assert!(matches!(load(b"\x02\0\0\0\0\0\0\0{]"), Error::Format { .. }));
        assert!(matches!(load(&u64::MAX.to_le_bytes()), Error::Header { header: u64::MAX, .. }));
        let integers = state_dict(&[
            ("fc.weight", Dtype::I64, &[2, 3], vec![0; 48]),
            ("fc.bias", Dtype::F32, &[2], vec![0; 8]),
            ("mean", Dtype::F32, &[1], vec![0; 4]),
        ]);
        let error = load_state_dict(&params(1.0), integers.path(), Strict::All).unwrap_err();
        assert!(matches!(error, Error::Dtype { .. }), "{error}");
    }

    #[test]
    fn a_described_model_has_nothing_to_save() {
        let builder = Builder::describe();
        Linear::new(&builder, 2, 2).unwrap();
        assert_refused(
            save_state_dict(&builder.finish()),
            "has no values: the model was only described",
        );
    }
}
