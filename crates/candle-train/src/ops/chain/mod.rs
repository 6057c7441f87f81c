//! Several operations as one node of Candle's graph.
//!
//! Candle adds what each edge of its graph contributes to a new tensor of zeros, on one thread: four passes over
//! memory for each operand of each operation. Inside a chain a gradient is handed on as it is; only where a tensor
//! has two uses is something added, in place. What an operation kept is freed as soon as its gradient is known.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
#[cfg(feature = "cuda")]
use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor,
    TensorId, Var, bail,
};

use super::add::{add_to, copied};
use super::storage::{same_storage, with_vector};

/// `f(x)`, whose operations are those of this module and become one node of Candle's graph.
///
/// Tensors that a gradient reaches may only be given to operations of this module there ([`super::add()`] for a sum);
/// another operation of Candle among them is an error, never a lost gradient. Weights are those of
/// [`super::Weight::learnt`]. Inside another chain this is `f(x)`.
///
/// # Errors
///
/// Those of `f`, and that of an operation that is not part of the chain.
pub fn chain(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if TAPE.with_borrow(Option::is_some) {
        return f(x);
    }
    let (y, links) = recorded(x, f)?;
    if !y.track_op() || y.id() == x.id() {
        return Ok(y);
    }
    if links.last().is_none_or(|link| link.id != y.id()) {
        bail!("the last operation of a chain is not part of it");
    }
    let chain = Chain { x: x.id(), links: Mutex::new(links) };
    if x.track_op() {
        return x.apply_op1(chain);
    }
    // Nothing before the chain learns: a leaf of its own lets backward reach it.
    Var::zeros((), DType::F32, x.device())?.apply_op1(chain)
}

/// `x.apply_op1(op)`, or a link of the chain at hand.
pub(crate) fn apply1<C>(x: &Tensor, op: C) -> Result<Tensor>
where
    C: CustomOp1 + Send + Sync + 'static,
{
    if !is_recording([x]) {
        return x.apply_op1(op);
    }
    let made = {
        let (storage, layout) = x.storage_and_layout();
        match &*storage {
            Storage::Cpu(x) => on_cpu(op.cpu_fwd(x, layout)),
            #[cfg(feature = "cuda")]
            Storage::Cuda(x) => on_gpu(op.cuda_fwd(x, layout)),
            _ => bail!("{} on a device that it does not know", op.name()),
        }
    };
    record(Operation::One(Box::new(op)), [x], made?)
}

/// `x.apply_op2(y, op)`, or a link of the chain at hand.
pub(super) fn apply2<C>(x: &Tensor, y: &Tensor, op: C) -> Result<Tensor>
where
    C: CustomOp2 + Send + Sync + 'static,
{
    if !is_recording([x, y]) {
        return x.apply_op2(y, op);
    }
    let made = {
        let (first, second) = (x.storage_and_layout(), y.storage_and_layout());
        match (&*first.0, &*second.0) {
            (Storage::Cpu(x), Storage::Cpu(y)) => on_cpu(op.cpu_fwd(x, first.1, y, second.1)),
            #[cfg(feature = "cuda")]
            (Storage::Cuda(x), Storage::Cuda(y)) => on_gpu(op.cuda_fwd(x, first.1, y, second.1)),
            _ => bail!("{} of tensors of different devices", op.name()),
        }
    };
    record(Operation::Two(Box::new(op)), [x, y], made?)
}

/// `x.apply_op3(y, z, op)`, or a link of the chain at hand.
pub(super) fn apply3<C>(x: &Tensor, y: &Tensor, z: &Tensor, op: C) -> Result<Tensor>
where
    C: CustomOp3 + Send + Sync + 'static,
{
    if !is_recording([x, y, z]) {
        return x.apply_op3(y, z, op);
    }
    let made = {
        let [first, second, third] = [x, y, z].map(Tensor::storage_and_layout);
        let layouts = [first.1, second.1, third.1];
        match (&*first.0, &*second.0, &*third.0) {
            (Storage::Cpu(x), Storage::Cpu(y), Storage::Cpu(z)) => {
                on_cpu(op.cpu_fwd(x, layouts[0], y, layouts[1], z, layouts[2]))
            }
            #[cfg(feature = "cuda")]
            (Storage::Cuda(x), Storage::Cuda(y), Storage::Cuda(z)) => {
                on_gpu(op.cuda_fwd(x, layouts[0], y, layouts[1], z, layouts[2]))
            }
            _ => bail!("{} of tensors of different devices", op.name()),
        }
    };
    record(Operation::Three(Box::new(op)), [x, y, z], made?)
}

fn on_cpu(made: Result<(CpuStorage, Shape)>) -> Result<(Storage, Shape)> {
    made.map(|(storage, shape)| (Storage::Cpu(storage), shape))
}

#[cfg(feature = "cuda")]
fn on_gpu(made: Result<(CudaStorage, Shape)>) -> Result<(Storage, Shape)> {
    made.map(|(storage, shape)| (Storage::Cuda(storage), shape))
}

/// The chain that this thread records.
struct Tape {
    links: Vec<Link>,
    /// The chain's operand, if a gradient reaches it, and the results of its links.
    known: HashSet<TensorId>,
}

thread_local! {
    static TAPE: RefCell<Option<Tape>> = const { RefCell::new(None) };
}

/// An operation, its operands and its result.
struct Link {
    operation: Operation,
    operands: Vec<Operand>,
    id: TensorId,
    /// A variable of Candle's, so that the operations that use it see that a gradient is wanted.
    y: Tensor,
}

enum Operation {
    One(Box<dyn CustomOp1 + Send + Sync>),
    Two(Box<dyn CustomOp2 + Send + Sync>),
    Three(Box<dyn CustomOp3 + Send + Sync>),
}

struct Operand {
    tensor: Tensor,
    /// The chain's operand, or what a link before this one gave.
    is_inner: bool,
}

impl Link {
    /// Adds what this link contributes to the gradients of its operands. `dy` may be written over.
    fn backward(self, dy: &Tensor, gradients: &mut Gradients) -> Result<()> {
        let (x, y) = (|i: usize| &self.operands[i].tensor, &self.y);
        let contributed = match &self.operation {
            Operation::One(op) => vec![op.bwd(x(0), y, dy)?],
            Operation::Two(op) => <[_; 2]>::from(op.bwd(x(0), x(1), y, dy)?).into(),
            Operation::Three(op) => <[_; 3]>::from(op.bwd(x(0), x(1), x(2), y, dy)?).into(),
        };
        let mut given: Vec<Tensor> = Vec::new();
        for (operand, gradient) in self.operands.iter().zip(contributed) {
            let Some(gradient) = gradient else { continue };
            if !operand.is_inner {
                if operand.tensor.is_variable() {
                    bail!("a weight in a chain whose gradient follows Candle's graph");
                }
                continue;
            }
            // Each gradient is its operand's own, to be added to and written over.
            let is_shared = given.iter().any(|other| same_storage(other, &gradient));
            let gradient = if is_shared { copied(&gradient)? } else { gradient };
            given.push(gradient.clone());
            gradients.add(&operand.tensor, gradient)?;
        }
        Ok(())
    }
}

/// Gradients that are known so far.
#[derive(Default)]
struct Gradients(HashMap<TensorId, Tensor>);

impl Gradients {
    fn add(&mut self, x: &Tensor, gradient: Tensor) -> Result<()> {
        let sum = match self.0.remove(&x.id()) {
            None => gradient,
            Some(sum) => add_to(sum, &gradient)?,
        };
        self.0.insert(x.id(), sum);
        Ok(())
    }
}

/// What `f(x)` gives, and the links that it recorded.
fn recorded(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<(Tensor, Vec<Link>)> {
    /// Ends the recording on every path.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            TAPE.take();
        }
    }
    let known = x.track_op().then(|| x.id()).into_iter().collect();
    TAPE.set(Some(Tape { links: Vec::new(), known }));
    let _end = End;
    let y = f(x)?;
    let links = TAPE.take().map_or_else(Vec::new, |tape| tape.links);
    Ok((y, links))
}

/// Whether an operation of these operands becomes a link: a chain is recorded, and a gradient is wanted.
fn is_recording<const N: usize>(operands: [&Tensor; N]) -> bool {
    operands.iter().any(|x| x.track_op()) && TAPE.with_borrow(Option::is_some)
}

fn record<const N: usize>(
    operation: Operation,
    operands: [&Tensor; N],
    (storage, shape): (Storage, Shape),
) -> Result<Tensor> {
    TAPE.with_borrow_mut(|tape| {
        let Some(tape) = tape else { bail!("no chain is recorded") };
        let operands =
            operands.map(|x| Operand { tensor: x.clone(), is_inner: tape.known.contains(&x.id()) });
        for Operand { tensor, is_inner } in &operands {
            // A variable that is not known is a weight.
            if tensor.track_op() && !tensor.is_variable() && !is_inner {
                bail!(
                    "a tensor {:?} in a chain comes from an operation outside of it",
                    tensor.dims()
                );
            }
        }
        let y = Tensor::from_storage(storage, shape, BackpropOp::none(), true);
        tape.known.insert(y.id());
        tape.links.push(Link { operation, operands: operands.into(), id: y.id(), y: y.clone() });
        Ok(y)
    })
}

/// The values of a contiguous tensor that is not read again; on a GPU a copy of them.
fn taken(x: &Tensor) -> Result<Storage> {
    #[cfg(feature = "cuda")]
    if let (Storage::Cuda(storage), layout) = (&*x.storage_and_layout().0, x.layout()) {
        return storage.try_clone(layout).map(Storage::Cuda);
    }
    with_vector(x, |values, _| Storage::Cpu(CpuStorage::F32(std::mem::take(values))))
}

/// The chain as one operation.
struct Chain {
    x: TensorId,
    /// In the order of forward; backward takes them.
    links: Mutex<Vec<Link>>,
}

impl Chain {
    /// What the last link gave.
    fn result(&self) -> Result<(Storage, Shape)> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Link { y, .. }) = links.last() else { bail!("a chain is recorded once") };
        Ok((taken(y)?, y.shape().clone()))
    }
}

impl CustomOp1 for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn cpu_fwd(&self, _x: &CpuStorage, _layout: &Layout) -> Result<(CpuStorage, Shape)> {
        match self.result()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => bail!("a chain on the CPU gave a tensor of a GPU"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, _x: &CudaStorage, _layout: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.result()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => bail!("a chain on a GPU gave a tensor of the CPU"),
        }
    }

    fn bwd(&self, _x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let mut links =
            std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner));
        let mut gradients = Gradients::default();
        if let Some(last) = links.last_mut() {
            // Its own result was handed out.
            last.y = y.clone();
            gradients.0.insert(last.id, dy.clone());
        }
        while let Some(link) = links.pop() {
            if let Some(dy) = gradients.0.remove(&link.id) {
                link.backward(&dy, &mut gradients)?;
            }
        }
        Ok(gradients.0.remove(&self.x))
    }
}

#[cfg(test)]
mod tests;
