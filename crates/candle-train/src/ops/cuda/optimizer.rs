//! All parameters of a model updated by one launch, and their gradients measured by two others.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::address::of_tensor;
use super::gpu::{Arg, Gpu, Grid, Scratch};
use super::ledger::Ledger;

/// Elements of one parameter that a block of threads works on.
const PER_BLOCK: usize = 1 << 13;
/// Most state tensors of a rule that has a kernel: `MOST_STATE` of optimizer.cu.
const MOST_STATE: usize = 3;

/// What an update does, in numbers: `Rule` of optimizer.cu.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Rule {
    /// One of the constants below.
    pub kind: i32,
    /// Learning rate; `NAdam`'s factor of the gradient.
    pub lr: f32,
    /// Share of the momentum buffer that stays.
    pub momentum: f32,
    /// Share of the gradient that goes into the momentum buffer.
    pub damp: f32,
    /// 1 - beta1
    pub rest1: f32,
    /// Share of the mean of squares that stays.
    pub beta2: f32,
    /// 1 - beta2
    pub rest2: f32,
    /// Added to the root of the mean of squares.
    pub eps: f32,
    /// Adam's learning rate, the bias correction of the first moment included; `NAdam`'s factor of
    /// the momentum.
    pub step_size: f32,
    /// Root of the bias correction of the second moment.
    pub root_correction: f32,
    /// What weight decay adds of a value to its gradient.
    pub penalty: f32,
    /// What weight decay leaves of a value.
    pub shrink: f32,
    /// Added to Adagrad's sum before the square.
    pub start: f32,
    /// Factor that makes a mean of a summed gradient.
    pub mean: f32,
    /// Factor of clipping by norm.
    pub clip: f32,
    /// Largest absolute value of a gradient element.
    pub limit: f32,
    /// Share of their way to the values that averages go.
    pub follow: f32,
}

impl Rule {
    /// SGD without momentum.
    pub const SGD: i32 = 0;
    /// SGD with momentum.
    pub const SGD_MOMENTUM: i32 = 1;
    /// SGD with Nesterov's momentum.
    pub const SGD_NESTEROV: i32 = 2;
    /// Adam and `AdamW`.
    pub const ADAM: i32 = 3;
    /// Values stay; only averages move.
    pub const AVERAGE_ONLY: i32 = 4;
    /// Lion.
    pub const LION: i32 = 5;
    /// `RMSprop` without momentum.
    pub const RMSPROP: i32 = 6;
    /// `RMSprop` with momentum.
    pub const RMSPROP_MOMENTUM: i32 = 7;
    /// Adagrad.
    pub const ADAGRAD: i32 = 8;
    /// `NAdam`.
    pub const NADAM: i32 = 9;
    /// Adam and `AdamW` with the largest mean of squares so far.
    pub const ADAM_AMSGRAD: i32 = 10;
}

/// A parameter, f32, and what belongs to it. All stay where they are for the whole run.
pub struct Parameter<'a> {
    /// Its values.
    pub values: &'a Tensor,
    /// What holds its gradient, and from which element on; `None` = another rank.
    pub gradient: Option<(&'a Tensor, usize)>,
    /// The rule's state tensors, in the order in which it names them.
    pub state: &'a [Tensor],
    /// The average of its values, if one is kept.
    pub average: Option<&'a Tensor>,
    /// Whether weight decay applies to it.
    pub decays: bool,
}

/// `ParameterAddresses` of optimizer.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ParameterAddresses {
    values: u64,
    gradient: u64,
    state: [u64; MOST_STATE],
    average: u64,
    n: u64,
    decays: u32,
    idle: u32,
}

/// What the GPU decided about an update by itself ([`super::Ledger::decide`]): how gradients are
/// clipped, and whether parameters move.
pub struct Decision(Scratch);

impl Decision {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        gpu.scratch(8).map(Self)
    }

    pub(super) fn argument(&self) -> Arg {
        self.0.at()
    }
}

/// Where everything is, on the GPU.
pub struct Updater {
    gpu: Gpu,
    addresses: Vec<ParameterAddresses>,
    table: Scratch,
    parts: Scratch,
    /// Which parameter each part is of.
    parameter_of: Vec<u32>,
    /// The sum of squares of each part's gradient, f64.
    sums: Tensor,
}

impl Updater {
    /// Notes where the parameters are.
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

    /// Where the parameters are.
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
        let arguments = [sums, ledger.squares()?.argument(), self.n_parts().into()];
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
