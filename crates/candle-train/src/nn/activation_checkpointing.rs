//! Activation checkpointing: a part of a model keeps its input only, and is run again in backward
//! (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016,
//! <https://arxiv.org/abs/1604.06174>).
//!
//! The second run gives the bits of the first: random numbers are a function of the place, batch
//! statistics are those of the batch, and running statistics learn in the first run only.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Result, Tensor, Var, bail};

use super::{ForwardContext, Mode, Track};
use crate::ops::{self, Backward};

/// A part of a model, one tensor in and one out.
pub trait Block: Send + Sync + 'static {
    /// The block's output.
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor>;
}

/// `block.forward(x, pass)`; where the pass asks for it, with nothing kept but `x` and the output.
/// Inside another such block it is an ordinary call.
pub fn run_block<B: Block>(block: &Arc<B>, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
    let Mode::Train { key, .. } = pass.mode else { return block.forward(x, pass) };
    if !pass.activation_checkpointing || stage() != Stage::Recorded {
        return block.forward(x, pass);
    }
    let (y, uses) = within(Stage::Promised(new_scope()), || block.forward(&x.detach(), pass))?;
    let input = match (x.track_op(), uses) {
        (true, _) => x.clone(),
        // Nothing before the block learns: a leaf of its own lets backward reach the block.
        (false, 1..) => Var::from_tensor(x)?.into_inner(),
        (false, 0) => return Ok(y),
    };
    let pass = ForwardContext { mode: Mode::Train { key, track: Track::Nothing }, ..pass.clone() };
    let block = block.clone();
    let is_leaf = !x.track_op();
    ops::node(&[&input], ops::copy_of(&y)?, Box::new(Recompute { block, pass, is_leaf }))
}

/// Role of parameters in the operations of the block at hand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// As always: their gradients are expected from the operation.
    Recorded,
    /// Detached; each use promises a gradient from the second run.
    Promised(u64),
    /// As always, but for a gradient that was promised.
    Replayed(u64),
}

impl Stage {
    /// Number of the run of a block; 0 outside of blocks.
    pub(super) fn scope(self) -> u64 {
        match self {
            Self::Recorded => 0,
            Self::Promised(scope) | Self::Replayed(scope) => scope,
        }
    }
}

thread_local! {
    static STAGE: Cell<Stage> = const { Cell::new(Stage::Recorded) };
    /// Promises made by this thread since the block was entered.
    static PROMISES: Cell<u64> = const { Cell::new(0) };
}

/// The stage of the thread at hand.
pub(super) fn stage() -> Stage {
    STAGE.get()
}

/// Counts a promised gradient.
pub(super) fn promise() {
    PROMISES.set(PROMISES.get() + 1);
}

fn new_scope() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Result of `run` in `stage`, and the number of gradients that it promised.
fn within<T>(stage: Stage, run: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    /// Back to the stage before, on every path.
    struct Leave(Stage);
    impl Drop for Leave {
        fn drop(&mut self) {
            STAGE.set(self.0);
        }
    }
    let _leave = Leave(STAGE.replace(stage));
    PROMISES.set(0);
    Ok((run()?, PROMISES.get()))
}

/// The block as one operation.
struct Recompute<B> {
    block: Arc<B>,
    pass: ForwardContext,
    /// True if nothing before the block learns.
    is_leaf: bool,
}

impl<B: Block> Backward for Recompute<B> {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn backward(
        &self,
        operands: &[&Tensor],
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let [x] = operands else { bail!("a block has one operand") };
        let leaf = Var::from_tensor(&x.detach())?;
        let again = || self.block.forward(leaf.as_tensor(), &self.pass);
        let (y, _) = within(Stage::Replayed(new_scope()), again)?;
        let mut gradients = seed(&y, dy)?.backward()?;
        Ok(match gradients.remove(&leaf) {
            // `None` is allowed because the argument is a leaf.
            _ if self.is_leaf => vec![None],
            Some(dx) => vec![Some(dx)],
            None => vec![Some(x.zeros_like()?)],
        })
    }
}

/// A scalar whose gradient with respect to y is `dy`.
fn seed(y: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let scalar = Tensor::zeros((), DType::F32, y.device())?;
    ops::in_graph(&[y], ops::copy_of(&scalar)?, Box::new(Seed(dy.clone())))
}

struct Seed(Tensor);

impl Backward for Seed {
    fn name(&self) -> &'static str {
        "seed"
    }

    fn backward(&self, _: &[&Tensor], _: &Tensor, _: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.0.clone())])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use candle_core::Device;

    use super::*;
    use crate::Precision;
    use crate::nn::{Builder, Dropout, Init, Linear, Param, Params};
    use crate::ops::GradientSink;
    use crate::rng::{Key, Purpose};

    /// Linear, dropout, a weight of Candle's own operations, and a weight that others use too.
    struct Layers {
        linear: Linear,
        dropout: Dropout,
        own: Param,
        shared: Param,
    }

    impl Block for Layers {
        fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
            let x = self.dropout.forward(&self.linear.forward(x, pass)?, pass)?;
            let own = self.own.tensor()?;
            x.broadcast_mul(&own)?.broadcast_add(&own)?.broadcast_mul(&self.shared.tensor()?)
        }
    }

    struct Network {
        blocks: Vec<Arc<Layers>>,
        shared: Param,
        params: Params,
    }

    fn network(frozen: bool) -> Result<Network> {
        let builder = Builder::new(1);
        let shared = builder.param("shared", &[3], Init::Uniform(1.0))?;
        let block = |i: usize| {
            let at = if frozen && i == 0 { builder.pp(i).frozen() } else { builder.pp(i) };
            Ok(Arc::new(Layers {
                linear: Linear::new(&at, 3, 3)?,
                dropout: Dropout::new(&at.pp("dropout"), 0.4),
                own: at.param("own", &[3], Init::Uniform(1.0))?,
                shared: shared.clone(),
            }))
        };
        let blocks = (0..3).map(block).collect::<Result<_>>()?;
        Ok(Network { blocks, shared, params: builder.finish() })
    }

    /// Sums of gradients, and how often each was said to be complete.
    struct Sums(Mutex<Vec<(Vec<f32>, usize)>>);

    impl GradientSink for Sums {
        fn add(&self, index: usize, gradient: &[f32]) -> Result<()> {
            let sum = &mut self.0.lock().unwrap()[index].0;
            sum.resize(gradient.len(), 0.0);
            sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            Ok(())
        }

        fn complete(&self, index: usize) -> Result<()> {
            self.0.lock().unwrap()[index].1 += 1;
            Ok(())
        }
    }

    fn gradients(network: &Network, checkpointing: bool) -> Result<Vec<(Vec<f32>, usize)>> {
        let count = network.params.parameters().len();
        let sums = Arc::new(Sums(Mutex::new(vec![(Vec::new(), 0); count])));
        let sink: Arc<dyn GradientSink> = sums.clone();
        let key = Key::new(1, Purpose::Dropout, 0, 0);
        let mut pass = ForwardContext::train(key, Precision::Fp32);
        pass.activation_checkpointing = checkpointing;
        network.params.begin_pass(Some(&sink));
        let mut x = Tensor::new(&[[0.3f32, -1.0, 2.0], [1.5, 0.1, -0.7]], &Device::Cpu)?;
        for block in &network.blocks {
            x = run_block(block, &x, &pass)?;
        }
        // The shared weight is used after the blocks too.
        x.broadcast_mul(&network.shared.tensor()?)?.sqr()?.sum_all()?.backward()?;
        network.params.end_pass();
        let sums = sums.0.lock().unwrap().clone();
        Ok(sums)
    }

    #[test]
    fn gradients_have_the_same_bits_and_are_complete_once() -> Result<()> {
        for frozen in [false, true] {
            let network = network(frozen)?;
            let kept = gradients(&network, false)?;
            assert_eq!(gradients(&network, true)?, kept);
            assert!(
                kept.iter().all(|(sum, complete)| sum.iter().any(|&g| g != 0.0) && *complete == 1)
            );
        }
        Ok(())
    }

    #[test]
    fn a_block_that_does_not_learn_needs_no_second_run() -> Result<()> {
        let network = network(true)?;
        let mut pass = ForwardContext::train(Key::new(1, Purpose::Dropout, 0, 0), Precision::Fp32);
        pass.activation_checkpointing = true;
        let x = Tensor::ones((2, 3), candle_core::DType::F32, &Device::Cpu)?;
        // No sink: nothing learns at all.
        assert!(!run_block(&network.blocks[0], &x, &pass)?.track_op());
        assert_eq!(stage().scope(), 0);
        Ok(())
    }
}
