//! Ordered parameters and buffers; their gradients leave `backward` for the sink of the pass.
//!
//! `candle_nn::VarMap` is a hash map whose order differs per process; ranks that reduce by position
//! need registration order. Names are PyTorch's state-dict keys, so safetensors move both ways.

mod frozen;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor, Var, bail};

use super::activation_checkpointing::{self, Stage};
use super::init::Init;
use super::state_dict::Grid;
use crate::onnx;
use crate::ops::{self, Backward, GradientSink, StoredTensor, Uses, Weight, WeightUse};
use crate::rng::{Key, Purpose, name_hash};

pub use frozen::{Base, BaseTensor};
use frozen::{FrozenValues, Storage, Values};

/// All parameters and buffers of a model, in registration order.
#[derive(Default)]
pub struct Params {
    parameters: Vec<Param>,
    buffers: Vec<Buffer>,
    counters: Vec<Counter>,
    aliases: Vec<(String, Param)>,
    least_rows: Option<usize>,
    drops: bool,
    embeddings: Vec<String>,
    grids: Vec<(String, Grid)>,
    growing: Vec<String>,
    other_names: Vec<LibraryName>,
    computes_on_cpu: bool,
    has_adapters: bool,
    /// Modules that are trained within a frozen model.
    trained_modules: Vec<String>,
    /// Lengths of the rows of weights, and these weights.
    magnitudes: Vec<(Param, Param)>,
    base: Mutex<Option<Arc<Base>>>,
}

/// A trainable (or frozen) tensor with its PyTorch name. Cloning shares it.
#[derive(Clone)]
pub struct Param(Arc<ParamInner>);

struct ParamInner {
    name: String,
    /// Position in [`Params::parameters`]; `None` for a frozen parameter.
    index: Option<usize>,
    shape: Vec<usize>,
    values: Values,
    /// True if it gets no gradient for now.
    idle: AtomicBool,
    /// One for each pass at once ([`with_concurrent_pass`]); most often there is one.
    passes: Mutex<Vec<PassState>>,
}

thread_local! {
    /// Index of the pass that this thread runs, among those that run at once.
    static PASS: Cell<usize> = const { Cell::new(0) };
}

/// Runs `f` as the pass `index` of several that different threads run at once on the same
/// parameters. Alone a thread runs pass 0.
pub fn with_concurrent_pass<T>(index: usize, f: impl FnOnce() -> T) -> T {
    /// Back to the pass before, on every path.
    struct Leave(usize);
    impl Drop for Leave {
        fn drop(&mut self) {
            PASS.set(self.0);
        }
    }
    let _leave = Leave(PASS.replace(index));
    f()
}

/// The parameter's part of the pass at hand.
#[derive(Default)]
struct PassState {
    sink: Option<Arc<dyn GradientSink>>,
    uses: Uses,
    /// Nodes of the parameter for Candle's operations: one outside of checkpointed blocks, one for each run
    /// of a block.
    nodes: Vec<(u64, Tensor)>,
}

impl Param {
    /// PyTorch's state-dict key.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// True if gradients reach it; a frozen parameter enters every graph detached.
    pub fn is_trainable(&self) -> bool {
        self.0.index.is_some()
    }

    /// Number of elements.
    pub fn elem_count(&self) -> usize {
        self.0.shape.iter().product()
    }

    /// The f32 master.
    ///
    /// # Errors
    ///
    /// The model was only described, or the values stay in their file.
    pub fn var(&self) -> Result<&Var> {
        self.0.values.var(self.name())
    }

    /// The values as f32, detached: a copy of those that stay in their file.
    pub fn detached(&self) -> Result<Tensor> {
        self.0.values.tensor(self.name())
    }

    /// The parameter as an operand of [`crate::ops`]: without a copy, its gradient goes straight to
    /// the sink of this pass. Detached when no gradient is wanted.
    pub fn weight(&self) -> Result<Weight> {
        match self.with_pass(|pass| self.place(pass)) {
            Some(place) => Ok(Weight::learnt(self.var()?, place)),
            None => self.0.values.weight(self.name()),
        }
    }

    /// The parameter as a tensor for Candle's own operations: a copy, the same node however often
    /// it is used in the pass. Detached when no gradient is wanted.
    pub fn tensor(&self) -> Result<Tensor> {
        if self.0.index.is_none() {
            return self.detached();
        }
        self.with_pass(|pass| {
            let scope = activation_checkpointing::stage().scope();
            if let Some((_, node)) = pass.nodes.iter().find(|(at, _)| *at == scope) {
                return Ok(node.clone());
            }
            let node = match self.place(pass) {
                Some(place) => {
                    let var = self.var()?.as_tensor();
                    ops::in_graph(&[var], ops::copy_of(var)?, Box::new(Hook { place }))?
                }
                None => self.var()?.as_detached_tensor(),
            };
            pass.nodes.push((scope, node.clone()));
            Ok(node)
        })
    }

    /// The parameter in a graph of ONNX, under its name.
    pub fn onnx(&self, graph: &mut onnx::Graph) -> Result<onnx::Value> {
        graph.initializer(self.name(), &self.detached()?)
    }

    /// Gives this thread's pass to `f`.
    fn with_pass<T>(&self, f: impl FnOnce(&mut PassState) -> T) -> T {
        let mut passes = lock(&self.0.passes);
        let index = PASS.get();
        if passes.len() <= index {
            passes.resize_with(index + 1, PassState::default);
        }
        f(&mut passes[index])
    }

    /// One more use in the pass; `None` when no gradient is wanted, or none yet.
    fn place(&self, pass: &PassState) -> Option<WeightUse> {
        let sink = pass.sink.as_ref()?;
        let index = self.0.index?;
        match activation_checkpointing::stage() {
            Stage::Recorded => Some(WeightUse::new(sink, index, &pass.uses)),
            Stage::Replayed(_) => Some(WeightUse::promised(sink, index, &pass.uses)),
            Stage::Promised(_) => {
                pass.uses.promise();
                activation_checkpointing::promise();
                None
            }
        }
    }
}

/// A tensor that no gradient changes: running statistics, frozen parameters. Cloning shares it.
#[derive(Clone)]
pub struct Buffer(Arc<BufferInner>);

struct BufferInner {
    name: String,
    shape: Vec<usize>,
    values: Values,
    frozen: bool,
    storage: Storage,
}

impl Buffer {
    /// PyTorch's state-dict key.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// True for a frozen parameter, which nothing ever changes.
    pub fn is_frozen(&self) -> bool {
        self.0.frozen
    }

    /// The value, f32.
    ///
    /// # Errors
    ///
    /// The model was only described, or the value stays in its file.
    pub fn var(&self) -> Result<&Var> {
        self.0.values.var(self.name())
    }

    /// The value as f32, detached: a copy of one that stays in its file.
    pub fn detached(&self) -> Result<Tensor> {
        self.0.values.tensor(self.name())
    }

    /// The value as its file holds it, if it stays there.
    pub fn stored(&self) -> Option<StoredTensor> {
        self.0.values.stored()
    }

    /// True for a frozen matrix that its layer can read where a file holds it.
    pub fn may_stay_in_file(&self) -> bool {
        self.0.storage == Storage::MayStayInFile
    }

    /// Takes the value from a file from now on, if that can be, and it is in the CPU's memory.
    /// Returns whether it does.
    pub(super) fn keep(&self, value: &StoredTensor) -> bool {
        match &self.0.values {
            Values::Frozen(frozen) if self.may_stay_in_file() && frozen.is_on_cpu() => {
                frozen.keep(value.clone());
                true
            }
            _ => false,
        }
    }

    /// Takes the value from memory again.
    pub(super) fn release(&self) {
        if let Values::Frozen(frozen) = &self.0.values {
            frozen.release();
        }
    }

    /// The buffer in a graph of ONNX, under its name.
    pub fn onnx(&self, graph: &mut onnx::Graph) -> Result<onnx::Value> {
        graph.initializer(self.name(), &self.detached()?)
    }
}

/// A counter of PyTorch's state dict (`num_batches_tracked`). Cloning shares it.
#[derive(Clone)]
pub struct Counter(Arc<(String, AtomicI64)>);

impl Counter {
    /// PyTorch's state-dict key.
    pub fn name(&self) -> &str {
        &self.0.0
    }

    /// The count.
    pub fn get(&self) -> i64 {
        self.0.1.load(Ordering::Relaxed)
    }

    /// Sets the count.
    pub fn set(&self, value: i64) {
        self.0.1.store(value, Ordering::Relaxed);
    }

    /// Counts one more.
    pub fn increment(&self) {
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl Params {
    /// Trainable parameters in registration order.
    pub fn parameters(&self) -> &[Param] {
        &self.parameters
    }

    /// Buffers in registration order, frozen parameters among them: whatever is done for buffers
    /// (broadcast, checkpoints) is done for these too, and nothing that is done for gradients.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Buffers that training changes: those without the frozen parameters.
    pub fn moving_buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.buffers.iter().filter(|buffer| !buffer.is_frozen())
    }

    /// Counters in registration order.
    pub fn counters(&self) -> &[Counter] {
        &self.counters
    }

    /// Further names of parameters, in registration order: saved as tensors of their own, as
    /// PyTorch saves tied weights.
    pub fn aliases(&self) -> &[(String, Param)] {
        &self.aliases
    }

    /// Values per channel in one sample where a layer takes statistics over a batch
    /// (`BatchNorm2d`), the fewest of all such layers; `None` if there is none.
    pub fn least_rows(&self) -> Option<usize> {
        self.least_rows
    }

    /// True if a layer drops something in training.
    pub fn drops(&self) -> bool {
        self.drops
    }

    /// Names of tables of vectors.
    pub fn embeddings(&self) -> &[String] {
        &self.embeddings
    }

    /// Tables of positions of an image, and how they lie in it.
    pub fn grids(&self) -> &[(String, Grid)] {
        &self.grids
    }

    /// Tensors of which weights to start from may have the first rows only.
    pub fn growing(&self) -> &[String] {
        &self.growing
    }

    /// Chooses the parameters that are trained from the next pass on, by their place in
    /// registration order: the others enter the graph detached, and get no gradient.
    pub fn train_only(&self, is_trained: impl Fn(usize) -> bool) {
        for (index, param) in self.parameters.iter().enumerate() {
            param.0.idle.store(!is_trained(index), Ordering::Relaxed);
        }
    }

    /// True if a layer computes on the CPU even if its input is on a GPU.
    pub fn computes_on_cpu(&self) -> bool {
        self.computes_on_cpu
    }

    /// True if layers have adapters, which are trained on top of a model that stays as it is.
    pub fn has_adapters(&self) -> bool {
        self.has_adapters
    }

    /// True if the model is at first what it is without its adapters, and stays so without them.
    pub fn begins_as_base(&self) -> bool {
        self.has_adapters && self.trained_modules.is_empty()
    }

    /// A module that was to be trained within a frozen model, and has no weights of its own.
    pub fn absent_module(&self) -> Option<&str> {
        let is_of = |param: &Param, module: &str| {
            let dots = param.name().match_indices('.').map(|(dot, _)| dot);
            dots.into_iter().any(|dot| param.name()[..dot].ends_with(module))
        };
        let is_absent =
            |module: &&String| !self.parameters.iter().any(|param| is_of(param, module));
        self.trained_modules.iter().find(is_absent).map(String::as_str)
    }

    /// Gives adapters whose values follow from the weights below them their first values.
    pub fn begin_adapters(&self) -> Result<()> {
        for (magnitude, weight) in &self.magnitudes {
            let &[outputs, inputs] = weight.shape() else {
                bail!("`{}` is no matrix", weight.name())
            };
            let var = magnitude.var()?;
            let nothing = |rows, columns| Tensor::zeros((rows, columns), DType::F32, var.device());
            let (a, b) = (nothing(1, inputs)?, nothing(outputs, 1)?);
            var.set(&ops::row_norms(&weight.weight()?, &a, &b, 1.0)?)?;
        }
        Ok(())
    }

    /// The file of the model below the adapters, once its values were loaded from one: checkpoints
    /// name it, and do not hold its tensors.
    pub fn base(&self) -> Option<Arc<Base>> {
        lock(&self.base).clone()
    }

    /// Buffers in registration order without those that come from the file of the base.
    pub fn own_buffers(&self) -> Vec<&Buffer> {
        let base = self.base();
        let tensors = base.iter().flat_map(|base| &base.tensors);
        let names: BTreeSet<&str> = tensors.map(|tensor| tensor.name.as_str()).collect();
        self.buffers.iter().filter(|buffer| !names.contains(buffer.name())).collect()
    }

    /// Says which tensors come from a file; `None` = they are the model's own.
    pub(super) fn set_base(&self, base: Option<Base>) {
        *lock(&self.base) = base.map(Arc::new);
    }

    /// Makes all values the model's own again. Those that are in `lost` will be replaced; others
    /// are copied from their file.
    pub fn leave_base(&self, lost: &BTreeSet<&str>) -> Result<()> {
        for buffer in &self.buffers {
            let Some(stored) = buffer.stored() else { continue };
            buffer.release();
            if !lost.contains(buffer.name()) {
                buffer.var()?.set(&stored.widened()?)?;
            }
        }
        self.set_base(None);
        Ok(())
    }

    /// Number of trainable elements.
    pub fn elem_count(&self) -> usize {
        self.parameters.iter().map(Param::elem_count).sum()
    }

    /// Opens a pass: each parameter enters the graph anew, and its gradient goes to `sink`.
    /// Without a sink the pass records no gradients.
    pub fn begin_pass(&self, sink: Option<&Arc<dyn GradientSink>>) {
        for param in &self.parameters {
            let sink = sink.filter(|_| !param.0.idle.load(Ordering::Relaxed)).cloned();
            param.with_pass(|pass| *pass = PassState { sink, ..PassState::default() });
        }
    }

    /// Closes the pass and lets go of its graph.
    pub fn end_pass(&self) {
        self.begin_pass(None);
    }

    fn holds(&self, name: &str) -> bool {
        self.parameters.iter().any(|param| param.name() == name)
            || self.buffers.iter().any(|buffer| buffer.name() == name)
            || self.aliases.iter().any(|(alias, _)| alias == name)
    }
}

/// Registers a model's parameters under a path: `builder.pp("layer1").pp("0")` names `layer1.0.…`.
#[derive(Clone)]
pub struct Builder {
    params: Arc<Mutex<Params>>,
    path: String,
    /// `None` = only describe.
    seed: Option<u64>,
    device: Device,
    frozen: bool,
    /// Modules that are trainable even where this builder is frozen.
    trained: Arc<[String]>,
}

impl Builder {
    /// Builds parameters with initial values drawn for `seed`.
    pub fn new(seed: u64) -> Self {
        Self::on(seed, &Device::Cpu)
    }

    /// [`Builder::new`] in the memory of `device`; the values are the same on every device.
    pub fn on(seed: u64, device: &Device) -> Self {
        Self { seed: Some(seed), device: device.clone(), ..Self::describe() }
    }

    /// Records names and shapes only; nothing is allocated, and nothing can be computed.
    pub fn describe() -> Self {
        Self {
            params: Arc::default(),
            path: String::new(),
            seed: None,
            device: Device::Cpu,
            frozen: false,
            trained: Arc::default(),
        }
    }

    /// The builder of a child module.
    #[must_use]
    pub fn pp(&self, name: impl std::fmt::Display) -> Self {
        let path = self.name(&name.to_string());
        let frozen = self.frozen && !self.trained.iter().any(|end| path.ends_with(end));
        Self { path, frozen, ..self.clone() }
    }

    /// A builder at the same path whose parameters are frozen: they keep their values, are listed
    /// as buffers, and enter every graph detached.
    #[must_use]
    pub fn frozen(&self) -> Self {
        Self { frozen: true, ..self.clone() }
    }

    /// [`Builder::frozen`], but for modules whose names end so, and what is in them.
    #[must_use]
    pub fn frozen_except(&self, modules: &[String]) -> Self {
        lock(&self.params).trained_modules = modules.to_vec();
        Self { trained: modules.into(), ..self.frozen() }
    }

    /// A builder at the same path whose parameters are trainable, whatever their neighbours are.
    #[must_use]
    pub fn trainable(&self) -> Self {
        Self { frozen: false, ..self.clone() }
    }

    /// Path of this module; the empty string at the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Device of the parameters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Registers a parameter, trainable unless this builder is [`Builder::frozen`].
    pub fn param(&self, name: &str, shape: &[usize], init: Init) -> Result<Param> {
        self.register(name, shape, init, Storage::Memory)
    }

    /// [`Builder::param`] for a layer that reads its matrix through [`Param::weight`] alone: below
    /// adapters, the matrix can stay in its file.
    pub fn matrix(&self, name: &str, shape: [usize; 2], init: Init) -> Result<Param> {
        self.register(name, &shape, init, Storage::MayStayInFile)
    }

    fn register(&self, name: &str, shape: &[usize], init: Init, storage: Storage) -> Result<Param> {
        let name = self.name(name);
        let mut params = lock(&self.params);
        if params.holds(&name) {
            bail!("parameter `{name}` is registered twice");
        }
        let key = |seed| Key::new(seed, Purpose::Init, name_hash(&name), 0);
        let values = match self.seed {
            Some(seed) if self.frozen => {
                let frozen = FrozenValues::new(shape, init, key(seed), &self.device);
                Values::Frozen(Arc::new(frozen))
            }
            _ => self.values(shape, |seed, n| init.values(key(seed), n))?,
        };
        let index = (!self.frozen).then_some(params.parameters.len());
        let shape = shape.to_vec();
        if self.frozen {
            let inner = BufferInner {
                name: name.clone(),
                shape: shape.clone(),
                values: values.clone(),
                frozen: true,
                storage,
            };
            params.buffers.push(Buffer(Arc::new(inner)));
        }
        let idle = AtomicBool::new(false);
        let passes = Mutex::default();
        let param = Param(Arc::new(ParamInner { name, index, shape, values, idle, passes }));
        if !self.frozen {
            params.parameters.push(param.clone());
        }
        Ok(param)
    }

    /// Registers a buffer with all elements equal to `value`.
    pub fn buffer(&self, name: &str, shape: &[usize], value: f32) -> Result<Buffer> {
        self.constant(name, shape, || vec![value; shape.iter().product()])
    }

    /// Registers a buffer with these values in row-major order.
    pub fn constant(
        &self,
        name: &str,
        shape: &[usize],
        values: impl FnOnce() -> Vec<f32>,
    ) -> Result<Buffer> {
        let name = self.name(name);
        let mut params = lock(&self.params);
        if params.holds(&name) {
            bail!("buffer `{name}` is registered twice");
        }
        let values = self.values(shape, |_, _| values())?;
        let (shape, storage) = (shape.to_vec(), Storage::Memory);
        let inner = BufferInner { name, shape, values, frozen: false, storage };
        let buffer = Buffer(Arc::new(inner));
        params.buffers.push(buffer.clone());
        Ok(buffer)
    }

    /// The trainable parameter of this full name that was registered before.
    pub fn existing(&self, name: &str) -> Option<Param> {
        let params = lock(&self.params);
        params.parameters.iter().find(|param| param.name() == name).cloned()
    }

    /// Registers another name of `param`, whose values both are.
    pub fn alias(&self, name: &str, param: &Param) -> Result<()> {
        let name = self.name(name);
        let mut params = lock(&self.params);
        if params.holds(&name) {
            bail!("parameter `{name}` is registered twice");
        }
        params.aliases.push((name, param.clone()));
        Ok(())
    }

    /// Registers a counter, zero.
    pub fn counter(&self, name: &str) -> Counter {
        let counter = Counter(Arc::new((self.name(name), AtomicI64::new(0))));
        lock(&self.params).counters.push(counter.clone());
        counter
    }

    /// Says that a layer takes statistics over a batch in which each channel of a sample has `rows`
    /// values.
    pub fn needs_statistics_of(&self, rows: usize) {
        let mut params = lock(&self.params);
        params.least_rows = Some(params.least_rows.map_or(rows, |least| least.min(rows)));
    }

    /// Says that a layer computes on the CPU even if its input is on a GPU, so that its passes
    /// cannot be recorded.
    pub fn computes_on_cpu(&self) {
        lock(&self.params).computes_on_cpu = true;
    }

    /// Says that the values of `magnitude` are at first the lengths of the rows of `weight`.
    pub fn is_magnitude_of(&self, magnitude: &Param, weight: &Param) {
        lock(&self.params).magnitudes.push((magnitude.clone(), weight.clone()));
    }

    /// Says that a layer has an adapter.
    pub fn has_adapter(&self) {
        lock(&self.params).has_adapters = true;
    }

    /// Says that a layer drops something in training.
    pub fn has_dropout(&self) {
        lock(&self.params).drops = true;
    }

    /// Says that the parameter called `name` here is a table of vectors, of tokens or positions.
    pub fn is_embedding(&self, name: &str) {
        let name = self.name(name);
        lock(&self.params).embeddings.push(name);
    }

    /// Says that weights to start from may have the first rows only of the parameter called `name`
    /// here: the others then begin as their mean.
    pub fn may_grow(&self, name: &str) {
        let name = self.name(name);
        lock(&self.params).growing.push(name);
    }

    /// Says that the parameter called `name` here is a table of positions of an image: pretrained
    /// weights may be those of images of another size.
    pub fn is_grid_of_positions(&self, name: &str, grid: Grid) {
        self.is_embedding(name);
        let name = self.name(name);
        lock(&self.params).grids.push((name, grid));
    }

    /// All that was registered through this builder and its children.
    pub fn finish(self) -> Params {
        std::mem::take(&mut *lock(&self.params))
    }

    fn values(
        &self,
        shape: &[usize],
        values: impl FnOnce(u64, usize) -> Vec<f32>,
    ) -> Result<Values> {
        let Some(seed) = self.seed else { return Ok(Values::Described) };
        let values = values(seed, shape.iter().product());
        Var::from_vec(values, shape, &self.device).map(Values::Var)
    }

    /// Full name of what is called `name` here.
    pub(super) fn name(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// Copy whose backward hands the complete gradient to the sink, and keeps it out of the
/// `GradStore`.
struct Hook {
    place: WeightUse,
}

impl Backward for Hook {
    fn name(&self) -> &'static str {
        "gradient-hook"
    }

    fn backward(
        &self,
        _: &[&Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        self.place.give(gradient)?;
        // `None` is allowed because the argument is a Var: nothing enters the GradStore.
        Ok(vec![None])
    }
}

/// A panicking thread cannot leave these plain values half-written.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A module or tensor in the weights of another library that is computed alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryName {
    /// The library: "timm".
    pub library: &'static str,
    /// The name there, with its whole path.
    pub other: String,
    /// The name here.
    pub own: String,
    /// Sides of a tensor there, if it has more or fewer of length 1 than here.
    pub shape: Option<Vec<usize>>,
}

impl Params {
    /// Modules and tensors by their names in weights of other libraries, which load as well. Of
    /// several names in one library, the first is the one that it writes.
    pub fn other_names(&self) -> &[LibraryName] {
        &self.other_names
    }

    /// Name of the tensor `name` in `library`, and its shape there if that differs; `None` if it has no
    /// name of its own there.
    pub fn name_in(&self, library: &str, name: &str) -> Option<(String, Option<&[usize]>)> {
        let mut names = self.other_names.iter().filter(|other| other.library == library);
        if let Some(found) = names.clone().find(|other| other.own == name) {
            return Some((found.other.clone(), found.shape.as_deref()));
        }
        names.find_map(|other| {
            let tensor = name.strip_prefix(&other.own)?.strip_prefix('.')?;
            Some((format!("{}.{tensor}", other.other), None))
        })
    }
}

impl Builder {
    /// Says that the module or tensor called `name` here (an empty name is this module) is called
    /// `other`, with its whole path, in weights of `library`.
    pub fn also_called(&self, library: &'static str, name: &str, other: impl Into<String>) {
        self.called(library, name, other.into(), None);
    }

    /// [`Builder::also_called`] for a tensor that has the sides `shape` there.
    pub fn also_called_with_shape(
        &self,
        library: &'static str,
        name: &str,
        other: impl Into<String>,
        shape: &[usize],
    ) {
        self.called(library, name, other.into(), Some(shape.to_vec()));
    }

    fn called(&self, library: &'static str, name: &str, other: String, shape: Option<Vec<usize>>) {
        let own = if name.is_empty() { self.path.clone() } else { self.name(name) };
        lock(&self.params).other_names.push(LibraryName { library, other, own, shape });
    }
}

#[cfg(test)]
mod tests;
