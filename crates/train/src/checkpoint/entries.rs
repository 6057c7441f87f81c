//! The tensors of a checkpoint, and where their values are in memory.

use candle_core::Var;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, SafeTensorError, TensorInfo};

use crate::nn::{Counter, Param, Params, change_values};
use crate::optim::{NamedTensor, ParameterState};
use crate::plan::Plan;

/// A tensor of a safetensors file with its values, or the place for them.
pub(crate) struct Entry<V> {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: V,
}

/// Values of a model, which can be read and written where they are.
pub(crate) enum ValueSlot<'a> {
    /// f32
    Var(&'a Var),
    /// i64
    Counter(&'a Counter),
}

/// Values that can be copied out of memory.
pub(crate) trait Source: Sync {
    /// Fills `bytes`, which are as many as the values have.
    fn copy_to(&self, bytes: &mut [u8]) -> candle_core::Result<()>;
}

/// Memory that can be filled with values.
pub(crate) trait Target: Send {
    /// Calls `fill` with the memory.
    fn fill(self, fill: impl FnOnce(&mut [u8])) -> candle_core::Result<()>;

    /// True if this rank keeps the values at all.
    fn is_here(&self) -> bool {
        true
    }
}

/// Destination of a vector of the optimizer's state.
pub(crate) enum StateSlot<'a> {
    /// To this rank.
    Local(&'a mut [f32]),
    /// To another rank alone.
    Remote,
}

impl Source for ValueSlot<'_> {
    fn copy_to(&self, bytes: &mut [u8]) -> candle_core::Result<()> {
        match self {
            Self::Counter(counter) => bytes.copy_from_slice(&counter.get().to_le_bytes()),
            Self::Var(var) if !var.device().is_cpu() => {
                let values = var.flatten_all()?.to_vec1::<f32>()?;
                bytes.copy_from_slice(bytemuck::cast_slice(&values));
            }
            Self::Var(var) => {
                let (storage, layout) = var.storage_and_layout();
                let candle_core::Storage::Cpu(storage) = &*storage else {
                    candle_core::bail!("parameters are in the memory of the CPU")
                };
                let Some((start, end)) = layout.contiguous_offsets() else {
                    candle_core::bail!("a parameter is always contiguous")
                };
                let values = &storage.as_slice::<f32>()?[start..end];
                bytes.copy_from_slice(bytemuck::cast_slice(values));
            }
        }
        Ok(())
    }
}

impl Source for &[f32] {
    fn copy_to(&self, bytes: &mut [u8]) -> candle_core::Result<()> {
        bytes.copy_from_slice(bytemuck::cast_slice(self));
        Ok(())
    }
}

impl Target for ValueSlot<'_> {
    fn fill(self, fill: impl FnOnce(&mut [u8])) -> candle_core::Result<()> {
        match self {
            Self::Var(var) => change_values(var, |values| fill(bytemuck::cast_slice_mut(values)))?,
            Self::Counter(counter) => {
                let mut bytes = counter.get().to_le_bytes();
                fill(&mut bytes);
                counter.set(i64::from_le_bytes(bytes));
            }
        }
        Ok(())
    }
}

impl Target for StateSlot<'_> {
    fn fill(self, fill: impl FnOnce(&mut [u8])) -> candle_core::Result<()> {
        if let Self::Local(values) = self {
            fill(bytemuck::cast_slice_mut(values));
        }
        Ok(())
    }

    fn is_here(&self) -> bool {
        matches!(self, Self::Local(_))
    }
}

/// Parameters, buffers and counters under PyTorch's state-dict keys, without what comes from the
/// file of the base.
pub(crate) fn of_model(params: &Params) -> candle_core::Result<Vec<Entry<ValueSlot<'_>>>> {
    let parameters = params.parameters().iter().map(|p| (p.name(), p.shape(), p.var()));
    let buffers = params.own_buffers().into_iter().map(|b| (b.name(), b.shape(), b.var()));
    let base = params.base();
    let is_elsewhere = |of: &Param| base.as_ref().is_some_and(|base| base.holds(of.name()));
    let aliases = params.aliases().iter().filter(|(_, of)| !is_elsewhere(of));
    let aliases = aliases.map(|(name, p)| (name.as_str(), p.shape(), p.var()));
    let mut entries = Vec::new();
    for (name, shape, var) in parameters.chain(buffers).chain(aliases) {
        let name = name.to_owned();
        let shape = shape.to_vec();
        let values = ValueSlot::Var(var?);
        entries.push(Entry { name, dtype: Dtype::F32, shape, values });
    }
    for counter in params.counters() {
        let name = counter.name().to_owned();
        let values = ValueSlot::Counter(counter);
        entries.push(Entry { name, dtype: Dtype::I64, shape: vec![], values });
    }
    Ok(in_file_order(entries))
}

/// The optimizer's state tensors under PyTorch's names, `exp_avg.layer1.0.conv1.weight`, and the
/// averages of the weights, `ema.layer1.0.conv1.weight` or `swa.`, and buffers.
pub(crate) fn of_optimizer<'a>(
    params: &Params,
    plan: &Plan,
    states: &'a [ParameterState],
) -> Vec<Entry<&'a [f32]>> {
    let mut entries = Vec::new();
    for ((of, shape), ParameterState { tensors, average }) in owners(params).zip(states) {
        for NamedTensor { name, shape, values } in tensors {
            entries.push(Entry::of_state(name, of, shape, values.as_slice()));
        }
        entries.push(Entry::of_state(average_name(plan), of, shape, average.as_slice()));
    }
    entries.retain(|entry| !entry.values.is_empty());
    in_file_order(entries)
}

/// Lists the tensors of [`of_optimizer`], to be filled; state tensors of parameters for which
/// `keeps` is false stay as they are.
pub(crate) fn of_optimizer_mut<'a>(
    params: &Params,
    plan: &Plan,
    states: &'a mut [ParameterState],
    keeps: &dyn Fn(usize) -> bool,
) -> Vec<Entry<StateSlot<'a>>> {
    let mut entries = Vec::new();
    for (index, ((of, shape), state)) in owners(params).zip(states).enumerate() {
        let ParameterState { tensors, average } = state;
        for NamedTensor { name, shape, values } in tensors {
            if !values.is_empty() {
                let place = if keeps(index) { StateSlot::Local(values) } else { StateSlot::Remote };
                entries.push(Entry::of_state(name, of, shape, place));
            }
        }
        if !average.is_empty() {
            entries.push(Entry::of_state(average_name(plan), of, shape, StateSlot::Local(average)));
        }
    }
    in_file_order(entries)
}

/// Names and shapes of what an optimizer, or an average, keeps something of: parameters, then
/// moving buffers.
fn owners(params: &Params) -> impl Iterator<Item = (&str, &[usize])> {
    let parameters = params.parameters().iter().map(|param| (param.name(), param.shape()));
    parameters.chain(params.moving_buffers().map(|buffer| (buffer.name(), buffer.shape())))
}

/// Prefix of the averages' names; empty without averages.
fn average_name(plan: &Plan) -> &str {
    plan.average().map_or("", |average| average.name)
}

/// The order of the safetensors library: the widest type first, so that every tensor is aligned;
/// then by name.
fn in_file_order<V>(mut entries: Vec<Entry<V>>) -> Vec<Entry<V>> {
    entries.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    entries
}

impl<V> Entry<V> {
    /// A tensor that is kept of the parameter or buffer `of`.
    fn of_state(name: &str, of: &str, shape: &[usize], values: V) -> Self {
        let name = format!("{name}.{of}");
        Self { name, dtype: Dtype::F32, shape: shape.to_vec(), values }
    }

    /// Size of the values.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// The first bytes of a safetensors file with these tensors: the length of the header, and the
/// header. `format` is what PyTorch's tools look for (`pt`).
pub(crate) fn header<V>(
    entries: &[Entry<V>],
    format: Option<&str>,
) -> Result<Vec<u8>, SafeTensorError> {
    let mut start = 0;
    let info = |entry: &Entry<V>| {
        let data_offsets = (start, start + entry.bytes());
        start = data_offsets.1;
        let dtype = entry.dtype;
        let shape = entry.shape.clone();
        (entry.name.clone(), TensorInfo { dtype, shape, data_offsets })
    };
    let tensors = entries.iter().map(info).collect();
    let format = format.map(|format| [("format".to_owned(), format.to_owned())].into());
    let mut text = serde_json::to_vec(&Metadata::new(format, tensors)?)?;
    // The tensors begin at a multiple of 8.
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([&(text.len() as u64).to_le_bytes()[..], &text].concat())
}
