//! Safetensors file <-> [`Params`], under PyTorch's state-dict keys.
//!
//! The file is not trusted: its header is limited before anything is allocated, and no shape in it is
//! believed. Nothing is changed unless every tensor fits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::{Tensor, Var};
use half::{bf16, f16};
use safetensors::tensor::{SafeTensorError, TensorView};
use safetensors::{Dtype, SafeTensors};

use super::Params;

mod adapters;

pub(crate) use adapters::PREFIX as ADAPTER_PREFIX;
pub use adapters::load_adapters;

/// Longest header read: a ResNet-50 has 40 kB.
const MAX_HEADER: u64 = 16 << 20;
const COUNTER: &str = "num_batches_tracked";
/// What a file may hold although nothing needs it: counters, and the angles of old Llama files.
const DERIVED: [&str; 2] = [COUNTER, "rotary_emb.inv_freq"];
/// End of the name of a file that names others.
const INDEX: &str = ".index.json";

/// What a file may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict<'a> {
    /// Nothing: keys and shapes agree.
    All,
    /// Tensors under these prefixes (`fc.`) may be missing, extra or of another shape; they then keep
    /// their values.
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
    /// An index that names no files.
    #[error("`{}` is not an index of safetensors files: {source}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The header claims to be too long.
    #[error("`{}` claims a header of {header} bytes; at most {MAX_HEADER} are read", path.display())]
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

/// Replaces the model's values by those of a safetensors file, all or none; or of the files that an index
/// (`model.safetensors.index.json`) names.
///
/// `module.` is stripped from keys; if all of the model's keys share a first component (`resnet18.`)
/// that none of the file's has, it is put before them. f16, bf16 and f64 become f32. `num_batches_tracked` is
/// taken if present, and never missed; neither are the adapters of a model that had none.
///
/// # Errors
///
/// A file cannot be read or is damaged, or keys or shapes differ (each is listed).
pub fn load_state_dict(
    params: &Params,
    path: &Path,
    strict: Strict<'_>,
) -> Result<LoadReport, Error> {
    let files = files_of(path)?;
    let read = |path: &PathBuf| Ok((path.clone(), read_limited(path)?));
    let files: Vec<_> = files.iter().map(read).collect::<Result<_, Error>>()?;
    load_state_dict_bytes(params, path, &files, strict)
}

/// [`load_state_dict`] from files that were read already; `path` is for messages.
pub(crate) fn load_state_dict_bytes(
    params: &Params,
    path: &Path,
    files: &[(PathBuf, Vec<u8>)],
    strict: Strict<'_>,
) -> Result<LoadReport, Error> {
    let parts = files.iter().map(|(path, bytes)| {
        let format = |source| Error::Format { path: path.clone(), source };
        SafeTensors::deserialize(bytes).map_err(format)
    });
    let parts: Vec<SafeTensors<'_>> = parts.collect::<Result<_, Error>>()?;
    let mut file = renamed(params, &parts);
    take_aliases(params, &mut file);
    let mut loading = Loading::new(path, strict);
    let mut values = Vec::new();
    for (name, shape, var) in tensors(params)? {
        if let Some(view) = loading.take(&mut file, &name, &shape)? {
            values.push((var, view));
        }
    }
    let counts = loading.take_counts(params, &mut file);
    loading.refuse_rest(&file);
    let report = loading.finish()?;
    set(values)?;
    for (counter, count) in counts {
        counter.set(count);
    }
    Ok(report)
}

/// One tensor at a time, so that memory holds the files and the model, and not the model twice.
fn set(values: Vec<(Var, TensorView<'_>)>) -> candle_core::Result<()> {
    for (var, view) in values {
        let values = floats(&view).unwrap_or_default();
        var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
    }
    Ok(())
}

/// All parameters, buffers and counters as a safetensors file that PyTorch loads with `strict=True`.
///
/// Counters are int64 scalars. Equal values give equal bytes.
///
/// # Errors
///
/// The model was only described.
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

/// The file itself, or those that the index names, which lie beside it.
fn files_of(path: &Path) -> Result<Vec<PathBuf>, Error> {
    /// The part of an index that counts.
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    if !path.to_str().is_some_and(|name| name.ends_with(INDEX)) {
        return Ok(vec![path.to_owned()]);
    }
    let bytes =
        std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|source| Error::Index { path: path.to_owned(), source })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    Ok(names.iter().map(|name| path.with_file_name(name)).collect())
}

/// The file's bytes, once its header is known to be of a sane length.
fn read_limited(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut header = [0; 8];
    file.read_exact(&mut header).map_err(failed)?;
    let header = u64::from_le_bytes(header);
    if header > MAX_HEADER {
        return Err(Error::Header { path: path.to_owned(), header });
    }
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The files' tensors under the model's keys.
fn renamed<'a>(params: &Params, files: &[SafeTensors<'a>]) -> BTreeMap<String, TensorView<'a>> {
    let stripped: BTreeMap<String, TensorView<'a>> = files
        .iter()
        .flat_map(SafeTensors::tensors)
        .map(|(key, view)| (key.strip_prefix("module.").map_or(key.clone(), str::to_owned), view))
        .collect();
    match shared_component(params) {
        Some(prefix) if !stripped.keys().any(|key| key.starts_with(&prefix)) => {
            stripped.into_iter().map(|(key, view)| (format!("{prefix}{key}"), view)).collect()
        }
        _ => stripped,
    }
}

/// Another name of a parameter stands for it where the file lacks that; one that says the same goes.
fn take_aliases(params: &Params, file: &mut BTreeMap<String, TensorView<'_>>) {
    for (alias, param) in params.aliases() {
        let Some(view) = file.remove(alias) else { continue };
        match file.get(param.name()) {
            None => drop(file.insert(param.name().to_owned(), view)),
            Some(same) if *same == view => {}
            Some(_) => drop(file.insert(alias.clone(), view)),
        }
    }
}

/// The first component, with its dot, if all keys of the model have the same.
fn shared_component(params: &Params) -> Option<String> {
    let parameters = params.parameters().iter().map(super::Param::name);
    let names = parameters.chain(params.buffers().iter().map(super::Buffer::name));
    let components: BTreeSet<Option<&str>> =
        names.map(|name| name.split_once('.').map(|(first, _)| first)).collect();
    match components.into_iter().collect::<Vec<_>>()[..] {
        [Some(only)] => Some(format!("{only}.")),
        _ => None,
    }
}

/// Compares the file with the model, and remembers what differs.
struct Loading<'a> {
    path: &'a Path,
    strict: Strict<'a>,
    report: LoadReport,
    missing: Vec<KeyShape>,
    unexpected: Vec<KeyShape>,
    mismatched: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl<'a> Loading<'a> {
    fn new(path: &'a Path, strict: Strict<'a>) -> Self {
        Self {
            path,
            strict,
            report: LoadReport::default(),
            missing: Vec::new(),
            unexpected: Vec::new(),
            mismatched: Vec::new(),
        }
    }

    /// The file's values for this tensor, which [`floats`] can read; `None` if it has none that fit.
    fn take<'t>(
        &mut self,
        file: &mut BTreeMap<String, TensorView<'t>>,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<TensorView<'t>>, Error> {
        let free = self.may_differ(name);
        match file.remove(name) {
            Some(view) if view.shape() == shape => {
                self.report.loaded += 1;
                return self.checked(name, view).map(Some);
            }
            Some(_) if free => self.report.ignored.push(name.to_owned()),
            Some(view) => {
                let theirs = view.shape().to_vec();
                self.mismatched.push((name.to_owned(), shape.to_vec(), theirs));
            }
            None if free => {}
            None if is_adapter(name) => {
                self.report.kept.push(name.to_owned());
                return Ok(None);
            }
            None => self.missing.push((name.to_owned(), shape.to_vec())),
        }
        if free {
            self.report.kept.push(name.to_owned());
        }
        Ok(None)
    }

    fn take_counts<'p>(
        &mut self,
        params: &'p Params,
        file: &mut BTreeMap<String, TensorView<'_>>,
    ) -> Vec<(&'p super::Counter, i64)> {
        let mut counts = Vec::new();
        for counter in params.counters() {
            let Some(view) = file.remove(counter.name()) else { continue };
            match (view.dtype(), <[u8; 8]>::try_from(view.data())) {
                (Dtype::I64, Ok(bytes)) => counts.push((counter, i64::from_le_bytes(bytes))),
                _ => self.report.ignored.push(counter.name().to_owned()),
            }
        }
        counts
    }

    fn refuse_rest(&mut self, file: &BTreeMap<String, TensorView<'_>>) {
        for (key, view) in file {
            if self.may_differ(key) || DERIVED.iter().any(|end| key.ends_with(end)) {
                self.report.ignored.push(key.clone());
            } else {
                self.unexpected.push((key.clone(), view.shape().to_vec()));
            }
        }
    }

    fn finish(self) -> Result<LoadReport, Error> {
        let Self { path, report, missing, unexpected, mismatched, .. } = self;
        if missing.is_empty() && unexpected.is_empty() && mismatched.is_empty() {
            return Ok(report);
        }
        Err(Error::Mismatch { path: path.to_owned(), missing, unexpected, mismatched })
    }

    fn may_differ(&self, key: &str) -> bool {
        match self.strict {
            Strict::All => false,
            Strict::ExceptHead(head) => head.iter().any(|prefix| key.starts_with(prefix)),
        }
    }

    fn checked<'t>(&self, key: &str, view: TensorView<'t>) -> Result<TensorView<'t>, Error> {
        match view.dtype() {
            Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::BF16 => Ok(view),
            dtype => Err(Error::Dtype { path: self.path.to_owned(), key: key.to_owned(), dtype }),
        }
    }
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

/// One line per tensor that does not fit.
fn list(
    missing: &[KeyShape],
    unexpected: &[KeyShape],
    mismatched: &[(String, Vec<usize>, Vec<usize>)],
) -> String {
    let mut lines = String::new();
    for (key, shape) in missing {
        let _ = write!(lines, "\n  missing `{key}` {shape:?}");
    }
    for (key, shape) in unexpected {
        let _ = write!(lines, "\n  unexpected `{key}` {shape:?}");
    }
    for (key, ours, theirs) in mismatched {
        let _ = write!(lines, "\n  `{key}` is {theirs:?} in the file and {ours:?} in the model");
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use candle_core::Result as CandleResult;
    use tempfile::NamedTempFile;

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
        assert!(load_state_dict(&params, file.path(), head).is_err(), "`mean` is no head");
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
        assert!(matches!(load(b""), Error::Read { .. }));
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
        assert!(save_state_dict(&builder.finish()).is_err());
    }
}
