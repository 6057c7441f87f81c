//! The family of models: `Architecture` and its registry, `Models`.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use candle_core::{Device, Result as CandleResult, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hub::timm;
use super::names::{self, ExportedWeights, Library, Naming};
use super::pretrained::{
    InferredOptions, PretrainedError, likely_model, misfit_help, weights_file, weights_header,
};
use super::{Model, peft};
use crate::config::kind::{Choice, Kind, OptionConflict, Options};
use crate::nn::state_dict::{
    self, ExpectedTensors, Layout, LoadReport, Mismatch, Strict, check_adapters, fit, header,
    load_adapters, load_state_dict, load_state_dict_bytes, stored_type,
};
use crate::nn::{Buffer, Builder, Params};
use crate::onnx::{Dim, Graph, Value};
use crate::plan::{BaseFacts, Flow, Modality, ModelFacts, ModelPlan};
use crate::registry::{Accepts, Family, Registry, Unbuildable};

/// A model that an experiment can choose: its fields are its options, which say how it is built.
pub trait Architecture: Debug + Send + Sync {
    /// Registers the parameters through the builder, and returns the forward function, for samples
    /// of the plan's shapes.
    ///
    /// It runs twice: once with [`Builder::describe`], when no values exist, and once to build; so
    /// it must not read values.
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> CandleResult<Box<dyn Model>>;

    /// Modalities of samples that it takes; empty = any for which it can be built.
    fn takes(&self) -> &'static [Modality] {
        &[]
    }

    /// The layers that depend on the number of outputs: `strict = "except_head"` exempts them from
    /// pretrained weights.
    fn head(&self) -> Head {
        Head::None
    }

    /// True if it consists of blocks that can be recomputed from their inputs
    /// (`train.activation_checkpointing`).
    fn has_blocks(&self) -> bool {
        true
    }

    /// True if what it computes at a place of a sample depends on none behind it, for samples of
    /// any length up to the plan's: padding at their end can be left out.
    fn ignores_padding(&self) -> bool {
        false
    }

    /// True if it looks at [`ForwardContext::segments`](crate::nn::ForwardContext::segments): texts
    /// in one sample see nothing of each other (`data.packing`).
    fn keeps_texts_apart(&self) -> bool {
        false
    }

    /// True if passes draw or decide something on the CPU, so that they cannot be recorded as a
    /// CUDA graph.
    fn draws_on_cpu(&self) -> bool {
        false
    }

    /// True if its batch norms use their running statistics, and do not update them, in training.
    fn keeps_statistics(&self) -> bool {
        false
    }

    /// Name of the weights of the convolution that are initialised to whiten patches of training
    /// images.
    fn whitens(&self) -> Option<&'static str> {
        None
    }

    /// An option that conflicts with the others, once those of files are filled in: its key below
    /// `[model]`, and why.
    fn misfit(&self) -> Option<(String, String)> {
        None
    }

    /// Folder of adapters to start from.
    fn adapters(&self) -> Option<&Path> {
        None
    }

    /// Options read from files beside the `pretrained` weights or the adapters, for windows of
    /// `seq_len` tokens.
    fn complete(
        &self,
        pretrained: Option<&Path>,
        seq_len: Option<u32>,
    ) -> Result<InferredOptions, PretrainedError> {
        let _ = seq_len;
        match self.torchvision() {
            Some(TorchvisionModel { name, timm }) => {
                let theirs: Vec<&str> = timm.into_iter().collect();
                timm::complete(name, &theirs, pretrained)
            }
            None => Ok(InferredOptions::default()),
        }
    }

    /// The network of torchvision that it is, with its parameter names.
    fn torchvision(&self) -> Option<TorchvisionModel> {
        None
    }

    /// The library whose parameter names it has, and which computes the same.
    fn library(&self) -> Option<Library> {
        self.torchvision().map(|_| Library::Torchvision)
    }

    /// Names and layout of its weights for `library`.
    ///
    /// # Errors
    ///
    /// The library has no such model, or computes it differently: a message without the library's
    /// name in front.
    fn named_as(&self, plan: &ModelPlan, library: Library) -> Result<Naming, String> {
        let _ = plan;
        match (self.torchvision(), library) {
            (Some(_), Library::Torchvision)
            | (Some(TorchvisionModel { timm: Some(_), .. }), Library::Timm) => {
                Ok(Naming::default())
            }
            (Some(_), Library::Timm) => Err("has batch norms with another eps".to_owned()),
            _ => Err(Naming::unknown()),
        }
    }

    /// A remedy for pretrained weights that do not fit, if the model knows one.
    fn remedy(&self, misfit: &Mismatch) -> Option<String> {
        let _ = misfit;
        None
    }
}

/// A network of torchvision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorchvisionModel {
    /// Name in torchvision, and ours.
    pub name: &'static str,
    /// timm's name of the network that computes the same.
    pub timm: Option<&'static str>,
}

/// Layers that depend on the number of outputs.
#[derive(Clone, Debug)]
pub enum Head {
    /// No layer.
    None,
    /// Layers under these prefixes of keys (`fc.`).
    Keys(&'static [&'static str]),
    /// Layers of these keys (`fc`).
    Layers(Vec<String>),
    /// The layer of the parameter registered last.
    Last,
}

impl Head {
    /// Prefixes of its keys in the model of `wanted`; empty if it has no such layer.
    pub(super) fn keys(&self, expected: &ExpectedTensors) -> Vec<String> {
        let names = || expected.tensors.iter().map(|(name, _)| name.as_str());
        let is_there = |key: &&str| names().any(|name| name.starts_with(*key));
        match self {
            Self::Keys(keys) if keys.iter().any(is_there) => {
                keys.iter().map(|&key| key.to_owned()).collect()
            }
            Self::None | Self::Keys(_) => Vec::new(),
            Self::Layers(layers) => layers.iter().map(|layer| format!("{layer}.")).collect(),
            Self::Last => {
                let last = names().next_back().and_then(|name| name.rsplit_once('.'));
                last.map(|(layer, _)| format!("{layer}.")).into_iter().collect()
            }
        }
    }
}

/// Description of `model.backbone_mode`, for all models that have it.
pub const BACKBONE_MODE: &str = "mode of a frozen backbone while the head trains. \
    \"train\": `BatchNorm` uses batch statistics, and its running statistics keep moving, as in \
    PyTorch if only `requires_grad` is False. \"eval\": as after `backbone.eval()`: it uses its \
    running statistics, which do not change, and no dropout. Default: \"train\", but \"eval\" for \
    `fastconformer`.";

/// In which mode a frozen backbone runs, as after `backbone.train()` or `backbone.eval()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackboneMode {
    /// Norms use and track the statistics of the batch; dropout drops.
    #[default]
    Train,
    /// Norms use their running statistics and leave them as they are; nothing is dropped.
    Eval,
}

/// Refuses a mode for a backbone that is not frozen.
pub fn check_backbone_mode(is_frozen: bool, mode: Option<BackboneMode>) -> Vec<OptionConflict> {
    let wrong = || OptionConflict {
        key: "backbone_mode",
        with: &["freeze_backbone"],
        what: "only applies with `freeze_backbone = true`".to_owned(),
    };
    if mode.is_some() && !is_frozen { vec![wrong()] } else { Vec::new() }
}

/// `[model]`
#[derive(Debug)]
pub enum ModelFamily {}

impl Family for ModelFamily {
    const TABLE: &'static str = "model";
    const NOUN: &'static str = "model";
    type Object = dyn Architecture;
}

impl<K: Kind + Architecture> Accepts<K> for ModelFamily {
    fn boxed(kind: K) -> Box<dyn Architecture> {
        Box::new(kind)
    }
}

/// Registry of models.
#[derive(Clone, Debug)]
pub struct Models(pub(super) Registry<ModelFamily>);

impl Deref for Models {
    type Target = Registry<ModelFamily>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Models {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

const BATCH: Dim = Dim::Named("batch");
const SEQUENCE: Dim = Dim::Named("sequence");

/// Why a model was not built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Unknown name, or options that the model does not have.
    #[error(transparent)]
    Kind(#[from] Unbuildable),
    /// [`Architecture::build`] refused.
    #[error("model `{name}` cannot be built: {}", without_backtrace(source))]
    Build { name: String, source: candle_core::Error },
    /// [`Model::onnx`] refused.
    #[error("model `{name}` has no form in ONNX: {what}")]
    Onnx {
        name: String,
        /// The layer or part without a form, and the reason.
        what: String,
    },
}

/// The error alone: Candle writes a backtrace below it where `RUST_BACKTRACE` is set.
fn without_backtrace(error: &candle_core::Error) -> &candle_core::Error {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => without_backtrace(inner),
        _ => error,
    }
}

impl Models {
    /// [`Registry::sealed`].
    #[must_use]
    pub fn sealed(self) -> Self {
        Self(self.0.sealed())
    }

    /// The model that `plan` chooses.
    pub fn architecture(&self, plan: &ModelPlan) -> Result<Box<dyn Architecture>, Unbuildable> {
        self.build(&plan.kind)
    }

    /// Facts for planning, such as names and shapes of parameters and buffers, without allocating
    /// any.
    pub fn describe(&self, plan: &ModelPlan) -> Result<ModelFacts, String> {
        let architecture = self.architecture(plan).map_err(|error| error.to_string())?;
        let params = params_of(architecture.as_ref(), plan).map_err(|error| error.to_string())?;
        if let Some(module) = params.absent_module() {
            return Err(format!(
                "`model.lora.modules_to_save` names `{module}`, which has no weights of its own: it \
                 shares those of another layer"
            ));
        }
        if params.parameters().is_empty() && params.buffers().iter().any(Buffer::is_frozen) {
            return Err("nothing of it would be trained: no layer has an adapter".to_owned());
        }
        let key = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
        Ok(ModelFacts {
            parameters: params.parameters().iter().map(|p| key(p.name(), p.shape())).collect(),
            buffers: params.buffers().iter().map(|b| key(b.name(), b.shape())).collect(),
            base: params.has_adapters().then(|| base_facts(plan, architecture.as_ref(), &params)),
            reference: reference(plan, architecture.as_ref(), &params)?,
            least_rows: if architecture.keeps_statistics() { None } else { params.least_rows() },
            has_blocks: architecture.has_blocks(),
            draws_on_cpu: architecture.draws_on_cpu() || params.computes_on_cpu(),
            drops: params.drops(),
            embeddings: params.embeddings().to_vec(),
            head: architecture.head().keys(&ExpectedTensors::of(&params)),
            ignores_padding: architecture.ignores_padding(),
            keeps_texts_apart: architecture.keeps_texts_apart(),
        })
    }

    /// [`Architecture::misfit`] of the model that `plan` chooses.
    pub fn misfit(&self, plan: &ModelPlan) -> Option<(String, String)> {
        self.architecture(plan).ok()?.misfit()
    }

    /// Reason why the chosen model cannot learn from such samples; `None` if it can, or if the
    /// model is unknown.
    pub fn refuses(&self, choice: &Choice, given: Modality) -> Option<String> {
        let takes = self.build(choice).ok()?.takes();
        if takes.is_empty() || takes.contains(&given) {
            return None;
        }
        let wanted: Vec<&str> = takes.iter().map(|kind| kind.words()).collect();
        let name = &choice.name;
        let words = given.words();
        Some(format!("`{name}` takes {}, but the data is {words}", wanted.join(" or ")))
    }

    /// [`Architecture::takes`] of the model `name`; empty if there is no such model.
    pub fn takes(&self, name: &str) -> &'static [Modality] {
        let model = self.build(&self.with_options(name, &Options::new()));
        model.map_or(&[], |model| model.takes())
    }

    /// Names of the models that take such samples explicitly.
    pub fn models_for(&self, given: Modality) -> Vec<&'static str> {
        let fits = |name: &&'static str| self.takes(name).contains(&given);
        self.names().filter(fits).collect()
    }

    /// Builds the model with initial values drawn from `seed`; equal seeds give equal values.
    pub fn instantiate(
        &self,
        plan: &ModelPlan,
        seed: u64,
    ) -> Result<(Box<dyn Model>, Params), Error> {
        self.instantiate_on(plan, seed, &Device::Cpu)
    }

    /// [`Models::instantiate`] in the memory of `device`.
    pub fn instantiate_on(
        &self,
        plan: &ModelPlan,
        seed: u64,
        device: &Device,
    ) -> Result<(Box<dyn Model>, Params), Error> {
        let builder = Builder::on(seed, device);
        let model = run(self.architecture(plan)?.as_ref(), plan, &builder)?;
        Ok((model, builder.finish()))
    }

    /// A copy of the model that [`Models::instantiate_on`] gives, which no gradient reaches.
    pub fn frozen_copy(
        &self,
        plan: &ModelPlan,
        seed: u64,
        device: &Device,
    ) -> Result<(Box<dyn Model>, Params), Error> {
        let builder = Builder::on(seed, device);
        let model = run(self.architecture(plan)?.as_ref(), plan, &builder.frozen())?;
        Ok((model, builder.finish()))
    }

    /// Compares the plan's pretrained weights and adapters with the model; only headers of files
    /// are read.
    pub fn check_pretrained(&self, plan: &ModelPlan) -> Result<(), PretrainedError> {
        let architecture =
            self.architecture(plan).map_err(|error| PretrainedError::of_model(&error.into()))?;
        let adapters = architecture.adapters();
        if plan.pretrained.is_none() && adapters.is_none() {
            return Ok(());
        }
        let params = params_of(architecture.as_ref(), plan)
            .map_err(|error| PretrainedError::of_model(&error))?;
        let wanted = ExpectedTensors::of(&params);
        if let Some(folder) = adapters {
            let found = check_adapters(&wanted, &folder.join(peft::ADAPTERS));
            found.map_err(|error| PretrainedError::of_adapter_file(&error))?;
        }
        let Some(path) = &plan.pretrained else { return Ok(()) };
        let head = architecture.head().keys(&wanted);
        if plan.except_head && head.is_empty() {
            return Err(PretrainedError::without_head(plan.name()));
        }
        let keys: Vec<&str> = head.iter().map(String::as_str).collect();
        let strict = if plan.except_head { Strict::ExceptHead(&keys) } else { Strict::All };
        let file = weights_header(path).map_err(|error| PretrainedError::of_file(&error))?;
        let Err(misfit) = fit(&wanted, &file, strict) else { return Ok(()) };
        let other = likely_model(self.other_models(plan), &file, &misfit);
        let own = || architecture.remedy(&misfit);
        let help = misfit_help(plan.except_head, &keys, &misfit, other, own);
        Err(PretrainedError::of_misfit(path, misfit, help))
    }

    /// Tensors that each other model would need of pretrained weights, with this model's options as
    /// far as it has them.
    fn other_models(
        &self,
        plan: &ModelPlan,
    ) -> impl Iterator<Item = (&'static str, ExpectedTensors)> {
        self.names().filter(|&name| name != plan.name()).filter_map(|name| {
            let kind = self.with_options(name, &plan.kind.options);
            let plan = ModelPlan { kind, ..plan.clone() };
            let architecture = self.architecture(&plan).ok()?;
            Some((name, ExpectedTensors::of(&params_of(architecture.as_ref(), &plan).ok()?)))
        })
    }

    /// The library whose names the plan's pretrained weights have, if these are not the model's
    /// own; also `None` if there is no such file.
    pub fn library_of_weights(&self, plan: &ModelPlan) -> Option<Library> {
        let file = header(&weights_file(plan.pretrained.as_ref()?)).ok()?;
        let architecture = self.architecture(plan).ok()?;
        names::library_of(&file, &params_of(architecture.as_ref(), plan).ok()?)
    }

    /// Converts `weights`, a safetensors file of ddprun's, to the names and layout of `library`; by
    /// default of the library that computes as the model does.
    pub fn export_for(
        &self,
        plan: &ModelPlan,
        library: Option<Library>,
        weights: &[u8],
    ) -> Result<ExportedWeights, String> {
        let architecture = self.architecture(plan).map_err(|error| error.to_string())?;
        let params = params_of(architecture.as_ref(), plan).map_err(|error| error.to_string())?;
        let Some(library) = library.or_else(|| architecture.library()) else {
            return Ok(ExportedWeights::own(weights));
        };
        let naming = architecture
            .named_as(plan, library)
            .map_err(|what| format!("{} {what}", library.words()))?;
        names::convert(weights, &params, library, naming)
    }

    /// Loads the plan's pretrained weights; `None` if it names none.
    pub fn load_pretrained(
        &self,
        plan: &ModelPlan,
        params: &Params,
    ) -> Result<Option<LoadReport>, state_dict::Error> {
        let Some(path) = &plan.pretrained else { return Ok(None) };
        self.load_with(plan, params, |strict| load_state_dict(params, path, strict)).map(Some)
    }

    /// As [`Models::load_pretrained`], from the bytes of a safetensors file, named `path` in
    /// messages.
    pub fn load_weights(
        &self,
        plan: &ModelPlan,
        params: &Params,
        path: &Path,
        bytes: Vec<u8>,
    ) -> Result<LoadReport, state_dict::Error> {
        let files = [(path.to_owned(), bytes)];
        self.load_with(plan, params, |strict| load_state_dict_bytes(params, path, &files, strict))
    }

    /// Calls `load` with the strictness of the plan.
    fn load_with<T>(
        &self,
        plan: &ModelPlan,
        params: &Params,
        load: impl FnOnce(Strict<'_>) -> T,
    ) -> T {
        let head = self.architecture(plan).map_or(Head::None, |model| model.head());
        let head = head.keys(&ExpectedTensors::of(params));
        let keys: Vec<&str> = head.iter().map(String::as_str).collect();
        load(if plan.except_head { Strict::ExceptHead(&keys) } else { Strict::All })
    }

    /// Loads the adapters that the plan starts from, if any.
    pub fn load_adapters(
        &self,
        plan: &ModelPlan,
        params: &Params,
    ) -> Result<(), state_dict::Error> {
        let Ok(architecture) = self.architecture(plan) else { return Ok(()) };
        match architecture.adapters() {
            Some(folder) => load_adapters(params, &folder.join(peft::ADAPTERS)),
            None => Ok(()),
        }
    }

    /// `model`, built from `plan`, in evaluation mode as an ONNX file, for batches of any size;
    /// texts may be shorter than in training. Inputs are `input` as the data pipeline gives it, or
    /// `input_ids` for texts, and further ones that the model declares.
    pub fn onnx(&self, plan: &ModelPlan, model: &dyn Model) -> Result<Vec<u8>, Error> {
        let mut graph = Graph::new(plan.input.first().copied().unwrap_or(1));
        let input = self.onnx_input(plan, &mut graph)?;
        let output = model.onnx(&mut graph, &input);
        let blamed = graph.unsupported().map(|part| format!("its {part}: ")).unwrap_or_default();
        let written: CandleResult<Vec<u8>> =
            output.and_then(|output| graph.finish(plan.name(), &output, &["batch", "sequence"]));
        let name = plan.name().to_owned();
        written.map_err(|error| Error::Onnx { name, what: format!("{blamed}{error}") })
    }

    fn onnx_input(&self, plan: &ModelPlan, graph: &mut Graph) -> Result<Value, Error> {
        if self.architecture(plan)?.takes() == [Modality::Text] {
            return Ok(graph.indices("input_ids", &[BATCH, SEQUENCE]));
        }
        let sizes = plan.input.iter().map(|&size| Dim::Size(size));
        let dims: Vec<Dim> = [BATCH].into_iter().chain(sizes).collect();
        let is_text =
            plan.layers.first().is_some_and(|first| matches!(first.input, Flow::Tokens(_)));
        Ok(if is_text { graph.indices("input_ids", &dims) } else { graph.input("input", &dims) })
    }
}

/// A copy of the model as it is at the start, frozen; `None` where that is the model `params`
/// without its adapters, or where nothing is compared.
fn reference(
    plan: &ModelPlan,
    architecture: &dyn Architecture,
    params: &Params,
) -> Result<Option<BaseFacts>, String> {
    let is_base = params.begins_as_base() && architecture.adapters().is_none();
    if !plan.takes_pairs || is_base {
        return Ok(None);
    }
    let builder = Builder::describe();
    run(architecture, plan, &builder.frozen()).map_err(|error| error.to_string())?;
    let copy = builder.finish();
    let facts = base_facts(plan, architecture, &copy);
    // Adapters, and modules that are trained whole, are no part of the base.
    let n_weights = facts.n_weights + copy.elem_count();
    Ok(Some(BaseFacts { n_weights, ..facts }))
}

/// The weights below the adapters of `params`, and what the file of the plan holds of them.
fn base_facts(plan: &ModelPlan, architecture: &dyn Architecture, params: &Params) -> BaseFacts {
    let frozen = params.buffers().iter().filter(|buffer| buffer.is_frozen());
    let count = |buffer: &Buffer| buffer.shape().iter().product::<usize>();
    let mut facts = BaseFacts { n_weights: frozen.map(count).sum(), ..BaseFacts::default() };
    let file = plan.pretrained.as_ref().filter(|path| !path.is_dir());
    let Some(Ok(header)) = file.map(|path| header(path)) else { return facts };
    let wanted = ExpectedTensors::of(params);
    let head = architecture.head().keys(&wanted);
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let strict = if plan.except_head { Strict::ExceptHead(&head) } else { Strict::All };
    let Ok(fit) = fit(&wanted, &header, strict) else { return facts };
    let origins = &fit.origins[params.parameters().len()..];
    for (buffer, origin) in params.buffers().iter().zip(origins) {
        let kept = origin.as_ref().filter(|of| buffer.is_frozen() && of.layout == Layout::Same);
        let dtype = kept.and_then(|of| stored_type(header.get(&of.key)?.dtype));
        let Some(dtype) = dtype else { continue };
        facts.n_in_file += count(buffer);
        if buffer.may_stay_in_file() {
            facts.n_mapped += count(buffer);
            facts.mapped.0 += (count(buffer) * dtype.bytes()) as u64;
        }
    }
    facts
}

fn params_of(architecture: &dyn Architecture, plan: &ModelPlan) -> Result<Params, Error> {
    let builder = Builder::describe();
    run(architecture, plan, &builder)?;
    Ok(builder.finish())
}

fn run(
    architecture: &dyn Architecture,
    plan: &ModelPlan,
    builder: &Builder,
) -> Result<Box<dyn Model>, Error> {
    let named = |source| Error::Build { name: plan.name().to_owned(), source };
    architecture.build(plan, builder).map_err(named)
}

/// Checks that samples are images: (channels, height, width).
pub(super) fn image_shape(input: &[usize]) -> CandleResult<[usize; 3]> {
    match *input {
        [channels, height, width] => Ok([channels, height, width]),
        _ => bail!("samples are (channels, height, width), not {input:?}"),
    }
}

/// Checks that `heads` of attention divide the width of a model.
pub fn check_heads(width: usize, heads: usize) -> CandleResult<()> {
    if heads == 0 || !width.is_multiple_of(heads) {
        bail!("`d_model` = {width} cannot be divided among `n_heads` = {heads}");
    }
    Ok(())
}
