//! Several operations as one node of Candle's graph.
//!
//! Candle adds what each edge of its graph contributes to a new tensor of zeros, on one thread:
//! four passes over memory for each operand of each operation. Inside a chain a gradient is handed
//! on as it is; only where a tensor has two uses is something added, in place. What an operation
//! kept is freed as soon as its gradient is known.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Result, Shape, Storage, Tensor, TensorId, Var, bail};
use half::bf16;

use super::accumulate::{add_to, copied};
use super::half_precision::{Widen, is_half, with_type};
use super::operation::{Backward, List, OnGpu, forward, in_graph};
use super::storage::{read_of, same_storage, take_storage};

/// `f(x)`, whose operations are those of this module and become one node of Candle's graph.
///
/// Tensors that a gradient reaches may only be given to operations of this module there
/// ([`super::add()`] for a sum); another operation of Candle among them is an error, never a lost
/// gradient. Weights are those of [`super::Weight::learnt`]. Inside another chain this is `f(x)`.
pub fn chain(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if TAPE.with_borrow(Option::is_some) {
        return f(x);
    }
    let (y, links) = record_chain(x, f)?;
    if !y.track_op() || y.id() == x.id() {
        return Ok(y);
    }
    if links.last().is_none_or(|link| link.id != y.id()) {
        bail!("the last operation of a chain is not part of it");
    }
    if x.track_op() {
        return closed(x.id(), x, &y, links);
    }
    // Nothing before the chain learns: a leaf of its own lets backward reach it.
    let leaf = Var::zeros((), DType::F32, x.device())?;
    closed(x.id(), leaf.as_tensor(), &y, links)
}

/// Applies an operation to `y`. If a chain of this thread ended with it, the operation becomes a
/// link of that chain: its gradient is handed on as it is, and `y` may be used by nothing else that
/// learns. `op` is told whether it may write over `y`: whether nothing reads it in backward. It
/// gets half precision as f32.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn extended<O: OnGpu>(y: &Tensor, op: impl FnOnce(bool) -> O) -> Result<Tensor> {
    if !is_half(y) {
        return continued(y, op);
    }
    if y.device().is_cpu() {
        return continued(&widen(y)?, op);
    }
    continued(&continued(y, |_| Widen)?, op)
}

#[cfg(any(feature = "cuda", test))]
fn continued<O: OnGpu>(y: &Tensor, op: impl FnOnce(bool) -> O) -> Result<Tensor> {
    let last = LAST.with_borrow(Weak::upgrade);
    let Some(chain) = last.filter(|chain| chain.result.get() == Some(&y.id())) else {
        return apply_one(y, op(false));
    };
    let mut links = chain.take();
    let Some(last) = links.last_mut() else { bail!("a chain can be continued once") };
    let op = op(!last.operation.reads_result());
    (last.id, last.y) = (y.id(), y.clone());
    let (storage, shape) = forward(&op, std::slice::from_ref(y))?;
    let z = Tensor::from_storage(storage, shape, BackpropOp::none(), true);
    let operands = vec![Operand { tensor: y.clone(), is_inner: true }];
    links.push(Link { operation: Box::new(op), operands, id: z.id(), y: z.clone() });
    closed(chain.x, &chain.operand, &z, links)
}

#[cfg(any(feature = "cuda", test))]
fn apply_one<O: OnGpu>(x: &Tensor, op: O) -> Result<Tensor> {
    let x = x.contiguous()?;
    let result = forward(&op, std::slice::from_ref(&x))?;
    node(&[&x], result, Box::new(op))
}

/// The links from `x` to `y` as one node, whose operand in Candle's graph is `operand`.
fn closed(x: TensorId, operand: &Tensor, y: &Tensor, links: Vec<Link>) -> Result<Tensor> {
    let links = Mutex::new(links);
    let operand = operand.clone();
    let chain = Arc::new(Chain { x, operand, links, result: OnceLock::new() });
    let result = in_graph(&[&chain.operand], take_storage(y)?, Box::new(chain.clone()))?;
    chain.result.get_or_init(|| result.id());
    LAST.set(Arc::downgrade(&chain));
    Ok(result)
}

/// Applies an operation; operands that are not contiguous are copied, and those in half precision
/// widened if it does not take them.
pub(crate) fn apply<O: OnGpu>(operands: O::Operands<&Tensor>, op: O) -> Result<Tensor> {
    let operands = operands.into_vec();
    let operands: Vec<Tensor> =
        operands.into_iter().map(Tensor::contiguous).collect::<Result<_>>()?;
    let operands = to_accepted_types(&op, &operands)?;
    let result = forward(&op, &operands)?;
    node(&operands.iter().collect::<Vec<_>>(), result, Box::new(op))
}

/// Applies an operation to bf16 numbers of the CPU, of which `forward` makes others.
pub(crate) fn apply_held<O: OnGpu>(
    x: &Tensor,
    op: O,
    forward: impl FnOnce(&O, &[bf16]) -> (Vec<bf16>, Shape),
) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (y, shape) = read_of([&x], |[x]| Ok(forward(&op, x)))?;
    node(&[&x], (Storage::Cpu(CpuStorage::BF16(y)), shape), Box::new(op))
}

/// Operands of a type that `op` takes: f32, or on a GPU half precision.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only GPUs ask it"))]
fn to_accepted_types<O: OnGpu>(op: &O, operands: &[Tensor]) -> Result<Vec<Tensor>> {
    #[cfg(feature = "cuda")]
    if op.takes_half() && operands.iter().all(|x| x.device().is_cuda()) {
        return Ok(operands.to_vec());
    }
    operands.iter().map(widen).collect()
}

/// x as f32: itself, unless it is in half precision.
pub fn widen(x: &Tensor) -> Result<Tensor> {
    if !is_half(x) {
        return Ok(x.clone());
    }
    if !x.device().is_cpu() {
        return apply([x], Widen);
    }
    let x = x.contiguous()?;
    let wide = with_type(&x, DType::F32)?;
    node(&[&x], take_storage(&wide)?, Box::new(Widen))
}

/// A result that is known: a link of the chain at hand, or a node of Candle's graph.
pub(crate) fn node(
    operands: &[&Tensor],
    result: (Storage, Shape),
    backward: Box<dyn Backward>,
) -> Result<Tensor> {
    if is_recording(operands) {
        return record(operands, result, backward);
    }
    in_graph(operands, result, backward)
}

/// The chain that this thread records.
struct Tape {
    links: Vec<Link>,
    /// The chain's operand, if a gradient reaches it, and the results of its links.
    known: HashSet<TensorId>,
}

thread_local! {
    static TAPE: RefCell<Option<Tape>> = const { RefCell::new(None) };
    /// The chain that was closed last.
    static LAST: RefCell<Weak<Chain>> = const { RefCell::new(Weak::new()) };
}

/// An operation, its operands and its result.
struct Link {
    operation: Box<dyn Backward>,
    operands: Vec<Operand>,
    id: TensorId,
    /// A variable of Candle's, so that the operations that use it see that a gradient is wanted.
    y: Tensor,
}

struct Operand {
    tensor: Tensor,
    /// The chain's operand, or the result of a link before this one.
    is_inner: bool,
}

impl Link {
    /// Adds what this link contributes to the gradients of its operands. `dy` may be written over.
    fn backward(self, dy: &Tensor, gradients: &mut Gradients) -> Result<()> {
        let operands: Vec<&Tensor> = self.operands.iter().map(|operand| &operand.tensor).collect();
        let contributed = self.operation.backward(&operands, &self.y, dy)?;
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

/// Result of `f(x)`, and the links that it recorded.
fn record_chain(
    x: &Tensor,
    f: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<(Tensor, Vec<Link>)> {
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

/// True if an operation of these operands becomes a link: a chain is recorded, and a gradient is
/// wanted.
fn is_recording(operands: &[&Tensor]) -> bool {
    operands.iter().any(|x| x.track_op()) && TAPE.with_borrow(Option::is_some)
}

fn record(
    operands: &[&Tensor],
    (storage, shape): (Storage, Shape),
    operation: Box<dyn Backward>,
) -> Result<Tensor> {
    TAPE.with_borrow_mut(|tape| {
        let Some(tape) = tape else { bail!("no chain is recorded") };
        let operand =
            |x: &&Tensor| Operand { tensor: (*x).clone(), is_inner: tape.known.contains(&x.id()) };
        let operands: Vec<Operand> = operands.iter().map(operand).collect();
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
        tape.links.push(Link { operation, operands, id: y.id(), y: y.clone() });
        Ok(y)
    })
}

/// The chain as one operation.
struct Chain {
    x: TensorId,
    /// The chain's operand in Candle's graph.
    operand: Tensor,
    /// In the order of forward; backward takes them.
    links: Mutex<Vec<Link>>,
    /// As Candle's graph knows it.
    result: OnceLock<TensorId>,
}

impl Chain {
    fn take(&self) -> Vec<Link> {
        std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Backward for Arc<Chain> {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn backward(&self, _: &[&Tensor], y: &Tensor, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut links = self.take();
        let mut gradients = Gradients::default();
        let Some(last) = links.last_mut() else { bail!("the gradient of a chain that went on") };
        // Its own result was handed out.
        last.y = y.clone();
        gradients.0.insert(last.id, dy.clone());
        while let Some(link) = links.pop() {
            if let Some(dy) = gradients.0.remove(&link.id) {
                link.backward(&dy, &mut gradients)?;
            }
        }
        Ok(vec![gradients.0.remove(&self.x)])
    }
}

#[cfg(test)]
mod tests;
