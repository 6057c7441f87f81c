//! Gradients in flat buckets; all parameters of a model updated by one launch, and their gradients
//! measured by two others.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::gpu::{Gpu, Grid, Scratch};
use super::kernel_args::{Arg, MOST_STATE, ParameterAddresses, Rule, args, of_tensor, suffix};
use super::ledger::{Decision, Ledger};

/// Elements of one parameter that a block of threads works on.
const PER_BLOCK: usize = 1 << 13;

/// Elements `start..` of `bucket`, both f32 on the GPU, plus `values`, or replaced by them.
pub fn write_gradient(bucket: &Tensor, start: usize, values: &Tensor, adds: bool) -> Result<()> {
    let n = values.elem_count();
    let values = values.contiguous()?;
    let from = of_tensor(&values)?.into();
    let place = place(bucket, start, n)?;
    let (kernel, places) =
        if adds { ("add", [place, from]) } else { ("narrow_f32", [from, place]) };
    let gpu = Gpu::of_tensor(bucket)?;
    gpu.launch(kernel, Grid::over(n.div_ceil(4)), &[places[0], places[1], n.into()])
}

/// Sets `n` elements of `bucket` from `start` on to zero.
pub fn clear(bucket: &Tensor, start: usize, n: usize) -> Result<()> {
    let place = place(bucket, start, n)?;
    Gpu::of_tensor(bucket)?.launch("clear", Grid::over(n.div_ceil(4)), &[place, n.into()])
}

/// Gives each of two tensors, f32 on the GPU and equally long, the values of the other; both stay
/// where they are.
pub fn swap_values(one: &Tensor, other: &Tensor) -> Result<()> {
    let n = one.elem_count();
    let places = [place(one, 0, n)?, place(other, 0, n)?];
    Gpu::of_tensor(one)?.launch("exchange", Grid::over(n), &[places[0], places[1], n.into()])
}

/// The values of `bucket`, f32 on the GPU, times `factor`, as `dtype`.
pub fn compress(bucket: &Tensor, dtype: DType, factor: f32) -> Result<Tensor> {
    let gpu = Gpu::of_tensor(bucket)?;
    let n = bucket.elem_count();
    let half = gpu.tensor(dtype, n)?;
    let kernel = format!("compress_{}", suffix(dtype)?);
    let arguments = args![of_tensor(bucket)?, of_tensor(&half)?, factor, n];
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), arguments)?;
    Ok(half)
}

/// The way back: `bucket` becomes `half` times `factor`.
pub fn decompress(half: &Tensor, bucket: &Tensor, factor: f32) -> Result<()> {
    let gpu = Gpu::of_tensor(bucket)?;
    let n = bucket.elem_count();
    let kernel = format!("expand_{}", suffix(half.dtype())?);
    let arguments = args![of_tensor(half)?, of_tensor(bucket)?, factor, n];
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), arguments)
}

/// Address of a tensor's values, for libraries that know nothing of tensors.
pub fn pointer(tensor: &Tensor) -> Result<u64> {
    Ok(of_tensor(tensor)?.at)
}

fn place(bucket: &Tensor, start: usize, n: usize) -> Result<Arg> {
    let capacity = bucket.elem_count();
    if start + n > capacity {
        bail!("{n} gradients at {start} of a bucket of {capacity}");
    }
    Ok(Arg::Address(of_tensor(bucket)?.at + 4 * start as u64))
}

/// A parameter, f32, and what belongs to it. All stay where they are for the whole run.
pub struct Parameter<'a> {
    /// Values of the parameter.
    pub values: &'a Tensor,
    /// The tensor that holds its gradient, and the first element of it; `None` = another rank.
    pub gradient: Option<(&'a Tensor, usize)>,
    /// The rule's state tensors, in the order in which it names them.
    pub state: &'a [Tensor],
    /// The average of its values, if one is kept.
    pub average: Option<&'a Tensor>,
    /// True if weight decay applies to it.
    pub decays: bool,
}

/// Addresses of all parameters on the GPU, and of what belongs to them.
pub struct Updater {
    gpu: Gpu,
    addresses: Vec<ParameterAddresses>,
    table: Scratch,
    parts: Scratch,
    /// The parameter of each part.
    parameter_of: Vec<u32>,
    /// The sum of squares of each part's gradient, f64.
    sums: Tensor,
}

impl Updater {
    /// Notes the addresses of the parameters.
    pub fn new(gpu: &Gpu, parameters: &[Parameter<'_>]) -> Result<Self> {
        let addresses: Vec<ParameterAddresses> =
            parameters.iter().map(addresses_of).collect::<Result<_>>()?;
        let parts: Vec<[u32; 2]> = (0..)
            .zip(&addresses)
            .flat_map(|(parameter, own)| {
                let blocks = (own.n as usize).div_ceil(PER_BLOCK) as u32;
                (0..blocks).map(move |block| [parameter, block])
            })
            .collect();
        let table = gpu.upload(bytemuck::cast_slice(&addresses))?;
        let parameter_of: Vec<u32> = parts.iter().map(|[parameter, _]| *parameter).collect();
        let parts = gpu.upload(bytemuck::cast_slice(&parts))?;
        let sums = Tensor::zeros(parameter_of.len().max(1), DType::F64, &gpu.device())?;
        Ok(Self { gpu: gpu.clone(), addresses, table, parts, parameter_of, sums })
    }

    /// The device of the parameters.
    pub fn device(&self) -> Device {
        self.gpu.device()
    }

    /// Enqueues the update of the parameters that `takes_part` names by their index. Where the GPU
    /// makes the `decision`, it replaces the rule's clipping.
    pub fn update(
        &mut self,
        rule: Rule,
        decision: Option<&Decision>,
        takes_part: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let mut addresses = self.addresses.clone();
        for (parameter, own) in addresses.iter_mut().enumerate() {
            own.idle = u32::from(!takes_part(parameter));
        }
        let differs = |(new, old): (&ParameterAddresses, &ParameterAddresses)| new.idle != old.idle;
        if addresses.iter().zip(&self.addresses).any(differs) {
            self.table = self.gpu.upload(bytemuck::cast_slice(&addresses))?;
            self.addresses = addresses;
        }
        let decision = decision.map_or(Arg::Address(0), Decision::argument);
        let table = self.table.at();
        let parts = self.parts.at();
        let arguments = [table, parts, Arg::Rule(rule), decision, PER_BLOCK.into()];
        self.gpu.launch("update", Grid::rows(self.n_parts()), &arguments)
    }

    fn n_parts(&self) -> usize {
        self.parameter_of.len()
    }

    /// Measures the gradients of this rank: the sums of squares of their parts, f64, in the order
    /// of the parameters; zeros are those of other ranks.
    pub fn measure(&self) -> Result<&Tensor> {
        let sums = of_tensor(&self.sums)?.into();
        let arguments = [self.table.at(), self.parts.at(), sums, PER_BLOCK.into()];
        self.gpu.launch("squares", Grid::rows(self.n_parts()), &arguments)?;
        Ok(&self.sums)
    }

    /// Puts what all ranks measured in the place of what this one did.
    pub fn set_measured(&self, sums: &[f64]) -> Result<()> {
        if sums.len() != self.sums.elem_count() {
            bail!("{} sums of {} parts", sums.len(), self.sums.elem_count());
        }
        let from = self.gpu.upload(bytemuck::cast_slice(sums))?;
        // As words of four bytes.
        let words = 2 * sums.len();
        let arguments = [from.at(), of_tensor(&self.sums)?.into(), words.into()];
        self.gpu.launch("narrow_f32", Grid::over(words), &arguments)
    }

    /// Notes the sum of squares of all gradients in `ledger`, as they were measured.
    pub fn note_squares(&self, ledger: &Ledger) -> Result<()> {
        let sums = of_tensor(&self.sums)?.into();
        let arguments = [sums, ledger.squares().argument(), self.n_parts().into()];
        self.gpu.launch("total_of_squares", Grid::rows(1), &arguments)
    }

    /// The first parameter whose gradient was not finite when it was measured. Waits for the GPU.
    pub fn first_not_finite(&self) -> Result<Option<usize>> {
        let sums = self.sums.to_vec1::<f64>()?;
        let mut parts = self.parameter_of.iter().zip(sums);
        Ok(parts.find(|(_, sum)| !sum.is_finite()).map(|(&parameter, _)| parameter as usize))
    }
}

fn addresses_of(parameter: &Parameter<'_>) -> Result<ParameterAddresses> {
    let Parameter { values, gradient, state: tensors, average, decays } = parameter;
    if tensors.len() > MOST_STATE {
        bail!("{} state tensors, more than the {MOST_STATE} of the kernel", tensors.len());
    }
    let mut state = [0; MOST_STATE];
    for (address, tensor) in state.iter_mut().zip(*tensors) {
        *address = of_tensor(tensor)?.at;
    }
    Ok(ParameterAddresses {
        values: of_tensor(values)?.at,
        gradient: match gradient {
            Some((held, start)) => of_tensor(held)?.at + 4 * *start as u64,
            None => 0,
        },
        state,
        average: average.map_or(Ok(0), |average| of_tensor(average).map(|a| a.at))?,
        n: values.elem_count() as u64,
        decays: u32::from(*decays),
        idle: 0,
    })
}
