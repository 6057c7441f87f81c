//! Names and shapes of a model, and those of a file -> which tensor comes from where, or all that
//! differs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;

use super::{Grid, KeyShape, LoadReport, Strict, is_adapter};
use crate::nn::Params;

/// End of the names of counters.
pub(super) const COUNTER: &str = "num_batches_tracked";
/// Ends of keys that a file may hold although nothing needs them: counters, the angles of old Llama
/// files, and the causal masks of old GPT-2 and GPT-NeoX files.
const DERIVED: [&str; 6] = [
    COUNTER,
    "rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
];
/// Weights of GPT-2 that `transformers` holds as (inputs, outputs). The first, whose sides differ,
/// tells.
const CONV1D: [&str; 4] =
    [".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"];
/// True if `transformers` holds the weights of this name as (inputs, outputs).
pub fn is_conv1d(name: &str) -> bool {
    CONV1D.iter().any(|end| name.ends_with(end))
}

/// A row for each position, of which a model for shorter texts has the first ones only.
const POSITIONS: &str = ".wpe.weight";
/// Prefixes of wrappers of PyTorch for the names of a model: `DistributedDataParallel` and
/// `torch.compile`.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// Tensors that a model takes from a file.
#[derive(Clone, Debug, Default)]
pub struct ExpectedTensors {
    /// Parameters, then buffers, in registration order.
    pub tensors: Vec<KeyShape>,
    /// Number of parameters, which are trained.
    pub n_parameters: usize,
    /// Another name of a parameter, and the parameter's.
    pub aliases: Vec<(String, String)>,
    /// Whole numbers that are taken if they are there.
    pub counters: Vec<String>,
    /// Tensors of positions of images, which a file may hold for images of another size.
    pub grids: Vec<(String, Grid)>,
    /// Tensors of which a file may hold the first rows only.
    pub growing: Vec<String>,
    /// Names of modules and tensors in weights of another library, and the model's names of them.
    pub other_names: BTreeMap<String, String>,
}

impl ExpectedTensors {
    /// Tensors of a built or a described model.
    pub fn of(params: &Params) -> Self {
        let key = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
        let parameters = params.parameters().iter().map(|p| key(p.name(), p.shape()));
        let buffers = params.buffers().iter().map(|b| key(b.name(), b.shape()));
        let alias =
            |(name, param): &(String, crate::nn::Param)| (name.clone(), param.name().to_owned());
        Self {
            tensors: parameters.chain(buffers).collect(),
            n_parameters: params.parameters().len(),
            aliases: params.aliases().iter().map(alias).collect(),
            counters: params.counters().iter().map(|c| c.name().to_owned()).collect(),
            grids: params.grids().to_vec(),
            growing: params.growing().to_vec(),
            other_names: params
                .other_names()
                .iter()
                .map(|name| (name.other.clone(), name.own.clone()))
                .collect(),
        }
    }

    /// The model's name of what another library calls `key`, if it is one of its tensors.
    fn renamed(&self, key: &str) -> Option<String> {
        if let Some(name) = self.other_names.get(key) {
            return Some(name.clone());
        }
        let (module, tensor) = key.rsplit_once('.')?;
        self.other_names.get(module).map(|module| format!("{module}.{tensor}"))
    }

    /// The first component, with its dot, if all tensors have the same.
    fn shared_component(&self) -> Option<String> {
        let components: BTreeSet<Option<&str>> = self
            .tensors
            .iter()
            .map(|(name, _)| name.split_once('.').map(|(first, _)| first))
            .collect();
        match components.into_iter().collect::<Vec<_>>()[..] {
            [Some(only)] => Some(format!("{only}.")),
            _ => None,
        }
    }
}

/// Type and shape of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Type of its numbers.
    pub dtype: Dtype,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
}

/// The tensors of a file by their keys.
pub type Header = BTreeMap<String, TensorInfo>;

/// Order of the numbers of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As in the model.
    Same,
    /// Rows and columns exchanged.
    Transposed,
    /// A tensor with more rows, of which the first ones are taken.
    FirstRows,
    /// A tensor with fewer rows: the others begin as their mean.
    MissingRows,
    /// For images of another size.
    Positions {
        /// The file's.
        from: Grid,
        /// The model's.
        to: Grid,
    },
}

/// Origin of a tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file's key.
    pub key: String,
    /// Order of its numbers there.
    pub layout: Layout,
}

/// A file that fits.
#[derive(Debug, Default)]
pub struct Fit {
    /// For each tensor that is wanted; `None` = it keeps its values.
    pub origins: Vec<Option<Origin>>,
    /// For each counter that is wanted.
    pub counters: Vec<Option<String>>,
    /// Keys of two tensors of the file that must hold the same numbers: the first is another name
    /// of the second.
    pub twins: Vec<(String, String)>,
    /// Tensors that are taken, and those that are not.
    pub report: LoadReport,
}

/// All that differs.
#[derive(Debug, Default)]
pub struct Mismatch {
    /// The model's tensors that the file lacks.
    pub missing: Vec<KeyShape>,
    /// The file's tensors that the model lacks.
    pub unexpected: Vec<KeyShape>,
    /// Tensors whose shapes differ: key, the model's, the file's.
    pub mismatched: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Tensors that are not floating-point numbers.
    pub typed: Vec<(String, Dtype)>,
}

/// Compares `header` with the tensors that are `expected`. The wrappers' `module.` and `_orig_mod.` are stripped
/// from keys, and the name that a wrapper such as Lightning's module gives the model (`model.`); if
/// all of the model's keys share a first component (`resnet18.`) that none of the file's has, it is
/// put before them. Names of another library become the model's.
pub fn fit(
    expected: &ExpectedTensors,
    header: &Header,
    strict: Strict<'_>,
) -> Result<Fit, Mismatch> {
    let mut comparison = Comparison::new(renamed(expected, header), strict);
    comparison.take_aliases(expected);
    let is_conv1d = comparison.is_conv1d(expected);
    for (name, shape) in &expected.tensors {
        let grid = expected.grids.iter().find(|(grid, _)| grid == name).map(|(_, grid)| *grid);
        let grows = expected.growing.contains(name);
        let origin = comparison.take(name, shape, grid, is_conv1d, grows);
        comparison.fit.origins.push(origin);
    }
    for name in &expected.counters {
        let key = comparison.take_counter(name);
        comparison.fit.counters.push(key);
    }
    comparison.finish()
}

/// The key of a tensor without what wrappers put into it.
pub fn unwrapped(key: &str) -> String {
    let mut rest = key;
    while let Some(inner) = WRAPPERS.iter().find_map(|wrapper| rest.strip_prefix(wrapper)) {
        rest = inner;
    }
    rest.replace("._orig_mod.", ".")
}

/// The file's tensors under the model's keys, each with its own key.
fn renamed<'a>(
    expected: &ExpectedTensors,
    header: &'a Header,
) -> BTreeMap<String, (&'a str, &'a TensorInfo)> {
    let plain = |(key, held): (&'a String, &'a TensorInfo)| {
        let inner = unwrapped(key);
        // A file may hold a tensor bare and in a wrapper; the wrapped one then keeps its key.
        let name = if header.contains_key(&inner) { key.clone() } else { inner };
        (name, (key.as_str(), held))
    };
    let mut plain: Vec<(String, (&str, &TensorInfo))> = header.iter().map(plain).collect();
    if let Some(wrapper) = outer_name(expected, &plain) {
        let bare: BTreeSet<String> = plain.iter().map(|(key, _)| key.clone()).collect();
        for (key, _) in &mut plain {
            if let Some(inner) = key.strip_prefix(&wrapper).filter(|inner| !bare.contains(*inner)) {
                *key = inner.to_owned();
            }
        }
    }
    let prefix = expected
        .shared_component()
        .filter(|prefix| !plain.iter().any(|(key, _)| key.starts_with(prefix)))
        .unwrap_or_default();
    let is_alias = |key: &str| expected.aliases.iter().any(|(alias, _)| alias == key);
    let ours = |key: String| if is_alias(&key) { key } else { format!("{prefix}{key}") };
    let named: BTreeMap<_, _> = plain.into_iter().map(|(key, held)| (ours(key), held)).collect();
    if expected.other_names.is_empty() {
        return named;
    }
    let own = |key: &str| expected.renamed(key).filter(|name| !named.contains_key(name));
    named.iter().map(|(key, held)| (own(key).unwrap_or_else(|| key.clone()), *held)).collect()
}

/// The name with its dot under which a file holds the model as a part of something else, such as
/// `model.` in the state dict of a `LightningModule`: without it, more of the keys are the model's.
fn outer_name(
    expected: &ExpectedTensors,
    file: &[(String, (&str, &TensorInfo))],
) -> Option<String> {
    let first = |key: &str| key.split_once('.').map(|(first, _)| format!("{first}."));
    let names: BTreeSet<&str> = expected.tensors.iter().map(|(name, _)| name.as_str()).collect();
    let shared = expected.shared_component().unwrap_or_default();
    let is_ours = |key: &str| {
        let name = expected.renamed(key).unwrap_or_else(|| key.to_owned());
        names.contains(name.as_str()) || names.contains(format!("{shared}{name}").as_str())
    };
    let outer: BTreeSet<String> = file.iter().filter_map(|(key, _)| first(key)).collect();
    // A tensor that the file also holds without the prefix would be there twice.
    let bare: BTreeSet<&str> = file.iter().map(|(key, _)| key.as_str()).collect();
    let gain = |outer: &String| {
        let inside = file.iter().filter_map(|(key, _)| Some((key, key.strip_prefix(outer)?)));
        let inside = inside.filter(|(_, inner)| !bare.contains(inner));
        inside.fold(0, |gain, (whole, inner)| {
            gain + i64::from(is_ours(inner)) - i64::from(is_ours(whole))
        })
    };
    let best = outer.into_iter().map(|outer| (gain(&outer), outer)).max()?;
    // A few equal names, as `weight` and `bias` of a part, are chance.
    (2 * best.0 > names.len() as i64).then_some(best.1)
}

/// A comparison under way: the rest of the file, and the differences so far.
struct Comparison<'a> {
    file: BTreeMap<String, (&'a str, &'a TensorInfo)>,
    strict: Strict<'a>,
    fit: Fit,
    misfit: Mismatch,
}

impl<'a> Comparison<'a> {
    fn new(file: BTreeMap<String, (&'a str, &'a TensorInfo)>, strict: Strict<'a>) -> Self {
        Self { file, strict, fit: Fit::default(), misfit: Mismatch::default() }
    }

    /// Another name of a parameter stands for it where the file lacks that; where it has both, they
    /// must be equal.
    fn take_aliases(&mut self, expected: &ExpectedTensors) {
        for (alias, name) in &expected.aliases {
            let Some(found) = self.file.remove(alias) else { continue };
            match self.file.get(name) {
                None => drop(self.file.insert(name.clone(), found)),
                Some(same) if same.1 == found.1 => {
                    self.fit.twins.push((found.0.to_owned(), same.0.to_owned()));
                }
                Some(_) => drop(self.file.insert(alias.clone(), found)),
            }
        }
    }

    /// True if the file holds linear layers as `transformers` holds those of GPT-2.
    fn is_conv1d(&self, expected: &ExpectedTensors) -> bool {
        let mut telling = expected.tensors.iter().filter(|(name, _)| name.ends_with(CONV1D[0]));
        telling.next().is_some_and(|(name, shape)| {
            let theirs = self.file.get(name).map(|(_, held)| held.shape.as_slice());
            matches!((&shape[..], theirs), (&[a, b], Some(&[c, d])) if a != b && [a, b] == [d, c])
        })
    }

    /// Origin of the tensor `name`; `None` if the file has none.
    fn take(
        &mut self,
        name: &str,
        shape: &[usize],
        grid: Option<Grid>,
        is_conv1d: bool,
        grows: bool,
    ) -> Option<Origin> {
        let free = self.may_differ(name);
        match self.file.remove(name) {
            Some((key, held)) => {
                let theirs = lying(name, shape, key, held);
                let found = match (shape, &theirs[..]) {
                    (&[rows, width], &[fewer, same]) if grows && width == same => {
                        (1..rows).contains(&fewer).then_some(Layout::MissingRows)
                    }
                    _ => None,
                };
                match found.or_else(|| layout(name, shape, &theirs, grid, is_conv1d)) {
                    Some(layout) => {
                        self.fit.report.loaded += 1;
                        if !matches!(held.dtype, Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::BF16)
                        {
                            self.misfit.typed.push((name.to_owned(), held.dtype));
                        }
                        return Some(Origin { key: key.to_owned(), layout });
                    }
                    None if free => self.fit.report.ignored.push(name.to_owned()),
                    None => {
                        let theirs = held.shape.clone();
                        self.misfit.mismatched.push((name.to_owned(), shape.to_vec(), theirs));
                    }
                }
            }
            None if free || is_adapter(name) => {}
            None => self.misfit.missing.push((name.to_owned(), shape.to_vec())),
        }
        if free || is_adapter(name) {
            self.fit.report.kept.push(name.to_owned());
        }
        None
    }

    fn take_counter(&mut self, name: &str) -> Option<String> {
        let (key, held) = self.file.remove(name)?;
        if held.dtype == Dtype::I64 && held.shape.iter().product::<usize>() == 1 {
            return Some(key.to_owned());
        }
        self.fit.report.ignored.push(name.to_owned());
        None
    }

    fn may_differ(&self, key: &str) -> bool {
        match self.strict {
            Strict::All => false,
            Strict::ExceptHead(head) => head.iter().any(|prefix| key.starts_with(prefix)),
        }
    }

    /// Ends the comparison: the rest of the file is not the model's.
    fn finish(mut self) -> Result<Fit, Mismatch> {
        for (key, (_, held)) in &self.file {
            if self.may_differ(key) || DERIVED.iter().any(|end| key.ends_with(end)) {
                self.fit.report.ignored.push(key.clone());
            } else {
                self.misfit.unexpected.push((key.clone(), held.shape.clone()));
            }
        }
        let Mismatch { missing, unexpected, mismatched, typed } = &self.misfit;
        let fits = [missing.len(), unexpected.len(), mismatched.len(), typed.len()] == [0; 4];
        if fits { Ok(self.fit) } else { Err(self.misfit) }
    }
}

/// The shape of a tensor of the file. Another library, by whose `key` it is called, may have more
/// or fewer sides of length 1: a convolution of one pixel for a linear layer.
fn lying(name: &str, ours: &[usize], key: &str, info: &TensorInfo) -> Vec<usize> {
    let sides = |shape: &[usize]| shape.iter().filter(|&&n| n != 1).copied().collect::<Vec<_>>();
    let is_others = !name.ends_with(&unwrapped(key));
    let theirs = &info.shape;
    if is_others && sides(ours) == sides(theirs) { ours.to_vec() } else { theirs.clone() }
}

/// Conversion of numbers of shape `theirs` to those of `ours`; `None` if there is none.
fn layout(
    name: &str,
    ours: &[usize],
    theirs: &[usize],
    grid: Option<Grid>,
    is_conv1d: bool,
) -> Option<Layout> {
    let turned = is_conv1d && self::is_conv1d(name);
    match (ours, theirs) {
        (&[a, b], &[c, d]) if turned => ([a, b] == [d, c]).then_some(Layout::Transposed),
        (ours, theirs) if ours == theirs => Some(Layout::Same),
        (&[rows, width], &[more, same]) if name.ends_with(POSITIONS) && width == same => {
            (more > rows).then_some(Layout::FirstRows)
        }
        (&[1, _, width], &[1, vectors, same]) if width == same => {
            let from = |to: Grid| Grid::square(to.prefix, vectors).map(|from| (from, to));
            grid.and_then(from).map(|(from, to)| Layout::Positions { from, to })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(tensors: &[(&str, &[usize])]) -> ExpectedTensors {
        let key = |(name, shape): &(&str, &[usize])| ((*name).to_owned(), shape.to_vec());
        ExpectedTensors { tensors: tensors.iter().map(key).collect(), ..ExpectedTensors::default() }
    }

    fn header(tensors: &[(&str, &[usize])]) -> Header {
        let held = |shape: &[usize]| TensorInfo { dtype: Dtype::F32, shape: shape.to_vec() };
        tensors.iter().map(|(key, shape)| ((*key).to_owned(), held(shape))).collect()
    }

    #[test]
    fn wrappers_are_stripped_wherever_they_stand() {
        for key in ["fc.weight", "module.fc.weight", "_orig_mod.fc.weight"] {
            assert_eq!(unwrapped(key), "fc.weight");
        }
        assert_eq!(unwrapped("module._orig_mod.fc.weight"), "fc.weight");
        assert_eq!(unwrapped("_orig_mod.module.fc.weight"), "fc.weight");
        assert_eq!(unwrapped("encoder._orig_mod.fc.weight"), "encoder.fc.weight");
        let model = wanted(&[("resnet18.fc.weight", &[2, 3])]);
        let file = header(&[("_orig_mod.fc.weight", &[2, 3])]);
        let found = fit(&model, &file, Strict::All).unwrap();
        let origin = Origin { key: "_orig_mod.fc.weight".to_owned(), layout: Layout::Same };
        assert_eq!(found.origins, [Some(origin)]);
        let twice =
            header(&[("resnet18.fc.weight", &[2, 3]), ("module.resnet18.fc.weight", &[2, 3])]);
        let misfit = fit(&model, &twice, Strict::All).unwrap_err();
        assert_eq!(misfit.unexpected, [("module.resnet18.fc.weight".to_owned(), vec![2, 3])]);
    }

    #[test]
    fn names_of_another_library_become_the_models() {
        let names = [("blocks.0.conv", "features.1.0"), ("blocks.0.gamma", "scale")];
        let names = names.map(|(other, own)| (other.to_owned(), own.to_owned()));
        let counter = "features.1.0.num_batches_tracked".to_owned();
        let model = ExpectedTensors {
            other_names: names.into(),
            counters: vec![counter],
            ..wanted(&[("features.1.0.weight", &[4, 2]), ("scale", &[4, 1, 1])])
        };
        let keys = |file: &[(&str, &[usize])]| {
            let found = fit(&model, &header(file), Strict::All)?;
            let key = |origin: Option<Origin>| origin.map(|origin| (origin.key, origin.layout));
            Ok::<_, Mismatch>(found.origins.into_iter().map(key).collect::<Vec<_>>())
        };
        let of = |key: &str| Some((key.to_owned(), Layout::Same));
        let theirs: [(&str, &[usize]); 2] =
            [("module.blocks.0.conv.weight", &[4, 2, 1, 1]), ("module.blocks.0.gamma", &[4])];
        let expected = theirs.map(|(key, _)| of(key));
        assert_eq!(keys(&theirs).unwrap(), expected);
        let own: [(&str, &[usize]); 2] = [("features.1.0.weight", &[4, 2]), ("scale", &[4, 1, 1])];
        assert_eq!(keys(&own).unwrap(), own.map(|(key, _)| of(key)));
        // Both names of one tensor, and a shape of the model's own that differs.
        let twice = keys(&[own[0], own[1], ("blocks.0.gamma", &[4])]).unwrap_err();
        assert_eq!(twice.unexpected, [("blocks.0.gamma".to_owned(), vec![4])]);
        let flat = keys(&[own[0], ("scale", &[4])]).unwrap_err();
        assert_eq!(flat.mismatched.len(), 1);
        let counted = (
            "blocks.0.conv.num_batches_tracked".to_owned(),
            TensorInfo { dtype: Dtype::I64, shape: vec![] },
        );
        let mut file = header(&theirs);
        file.insert(counted.0.clone(), counted.1);
        let found = fit(&model, &file, Strict::All).unwrap();
        assert_eq!(found.counters, [Some(counted.0)]);
    }

    #[test]
    fn positions_of_a_square_image_fit_one_of_another_size() {
        let grid = Grid { prefix: 1, sides: [2, 3] };
        let model = ExpectedTensors {
            grids: vec![("pos_embed".to_owned(), grid)],
            ..wanted(&[("pos_embed", &[1, 7, 4]), ("other", &[1, 7, 4])])
        };
        let layout = |positions: &[usize], other: &[usize]| {
            let file = header(&[("pos_embed", positions), ("other", other)]);
            let found = fit(&model, &file, Strict::All).map_err(|misfit| misfit.mismatched.len());
            found.map(|found| found.origins[0].clone().unwrap().layout)
        };
        let from = Grid { prefix: 1, sides: [3, 3] };
        let ours: &[usize] = &[1, 7, 4];
        assert_eq!(layout(&[1, 10, 4], ours), Ok(Layout::Positions { from, to: grid }));
        assert_eq!(layout(ours, ours), Ok(Layout::Same));
        assert_eq!(layout(&[1, 11, 4], ours), Err(1), "no square");
        assert_eq!(layout(&[1, 10, 5], ours), Err(1), "other features");
        assert_eq!(layout(ours, &[1, 10, 4]), Err(1), "no positions");
    }

    #[test]
    fn gpt2s_linear_layers_are_turned_if_the_one_that_is_not_square_says_so() {
        use Layout::{FirstRows, Same, Transposed};
        let model = wanted(&[
            ("transformer.wpe.weight", &[4, 2]),
            ("transformer.h.0.attn.c_attn.weight", &[6, 2]),
            ("transformer.h.0.attn.c_proj.weight", &[2, 2]),
            ("transformer.h.0.mlp.c_fc.weight", &[8, 2]),
        ]);
        let layouts = |c_attn: &[usize], c_fc: &[usize], positions: usize| {
            let file = header(&[
                ("wpe.weight", &[positions, 2]),
                ("h.0.attn.c_attn.weight", c_attn),
                ("h.0.attn.c_proj.weight", &[2, 2]),
                ("h.0.mlp.c_fc.weight", c_fc),
                ("h.0.attn.bias", &[1, 1, 9, 9]),
            ]);
            let found =
                fit(&model, &file, Strict::All).map_err(|misfit| misfit.mismatched.len())?;
            Ok(found.origins.into_iter().map(|origin| origin.unwrap().layout).collect::<Vec<_>>())
        };
        assert_eq!(
            layouts(&[2, 6], &[2, 8], 9),
            Ok(vec![FirstRows, Transposed, Transposed, Transposed])
        );
        assert_eq!(layouts(&[6, 2], &[8, 2], 4), Ok(vec![Same; 4]));
        assert_eq!(layouts(&[6, 2], &[2, 8], 4), Err(1), "both ways at once");
        assert_eq!(layouts(&[6, 2], &[8, 2], 3), Err(1), "fewer positions");
    }
}
