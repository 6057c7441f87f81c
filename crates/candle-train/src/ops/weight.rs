//! A weight as an operation's operand: its values, and the destination of its gradient.
//!
//! A model's weights enter an operation as they are, and its backward hands their gradients
//! straight to the sink, which adds them up in the bucket. Through Candle's graph the weight would
//! be copied once, and its gradient be stored, added to zeros and copied.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use candle_core::{Device, Result, Tensor, Var, bail};

use super::scratch::zeros;
use super::storage::{read, tensor};
use super::stored::StoredTensor;

/// Receives the gradients of parameters from inside `backward`.
pub trait GradientSink: Send + Sync {
    /// Adds `gradient`, f32 in the parameter's layout, to that of parameter `index` (registration
    /// order): once for each use of the parameter in the pass.
    fn add(&self, index: usize, gradient: &[f32]) -> Result<()>;

    /// [`GradientSink::add`] of `len` values that `write` puts into the memory that it is given,
    /// whatever is there: the gradient's own place, where the sink has one.
    fn add_written(
        &self,
        index: usize,
        len: usize,
        write: &mut dyn FnMut(&mut [f32]),
    ) -> Result<()> {
        let mut gradient = zeros(len);
        write(&mut gradient);
        self.add(index, &gradient)
    }

    /// [`GradientSink::add`] of a gradient that is a tensor of any device, f32 and contiguous;
    /// through the CPU's memory, unless the sink knows better.
    fn add_tensor(&self, index: usize, gradient: &Tensor) -> Result<()> {
        read([&gradient.to_device(&Device::Cpu)?], |[values]| self.add(index, values))
    }

    /// Says that all uses of the pass have been added.
    fn complete(&self, index: usize) -> Result<()>;
}

/// An operand that is learnt, or a tensor that stands for one.
#[derive(Clone)]
pub struct Weight {
    values: WeightValues,
    destination: Destination,
}

#[derive(Clone)]
enum WeightValues {
    Tensor(Tensor),
    /// As a file holds them; in f32 for operations that take no others.
    Stored(StoredTensor, Arc<OnceLock<Tensor>>),
}

impl Weight {
    /// The weight itself, not a copy; its gradient goes to `place`.
    pub fn learnt(var: &Var, place: WeightUse) -> Self {
        let values = WeightValues::Tensor(var.as_tensor().clone());
        Self { values, destination: Destination::Sink(place) }
    }

    /// A weight that nothing changes, as a file holds it. [`linear`](super::linear()) and
    /// [`embedding`](super::embedding()) read it there; other operations get an f32 copy.
    pub fn stored(values: StoredTensor) -> Self {
        let values = WeightValues::Stored(values, Arc::default());
        Self { values, destination: Destination::Dropped }
    }

    /// The values, if they are as a file holds them.
    pub(super) fn as_stored(&self) -> Option<&StoredTensor> {
        match &self.values {
            WeightValues::Tensor(_) => None,
            WeightValues::Stored(stored, _) => Some(stored),
        }
    }

    /// Rows and columns of a matrix.
    pub(super) fn dims2(&self) -> Result<(usize, usize)> {
        match &self.values {
            WeightValues::Tensor(tensor) => tensor.dims2(),
            WeightValues::Stored(stored, _) => match stored.shape() {
                &[rows, columns] => Ok((rows, columns)),
                shape => bail!("a matrix is needed, not {shape:?}"),
            },
        }
    }

    /// The values as f32.
    pub fn tensor(&self) -> &Tensor {
        match &self.values {
            WeightValues::Tensor(tensor) => tensor,
            WeightValues::Stored(stored, wide) => wide.get_or_init(|| match stored.widened() {
                Ok(tensor) => tensor,
                Err(error) => {
                    unreachable!("a stored tensor has as many values as its shape: {error}")
                }
            }),
        }
    }

    /// Destination of the gradient.
    pub(super) fn destination(&self) -> Destination {
        self.destination.clone()
    }

    /// True if its gradient follows Candle's graph.
    pub(super) fn is_in_graph(&self) -> bool {
        matches!(self.destination, Destination::Graph) && self.tensor().track_op()
    }

    /// The weight as an operand. Where no gradient would reach it, nor one of `others`, though one
    /// of `held` is learnt, it becomes a leaf, so that backward comes to the operation; the leaf's
    /// own gradient is dropped.
    pub(super) fn reachable<const N: usize>(
        &self,
        others: [Option<&Tensor>; N],
        held: [&Self; 2],
    ) -> Result<Self> {
        let is_reached = others.into_iter().flatten().chain([self.tensor()]).any(Tensor::track_op);
        if is_reached || !held.iter().any(|held| held.tensor().track_op()) {
            return Ok(self.clone());
        }
        let values = WeightValues::Tensor(Var::from_tensor(self.tensor())?.into_inner());
        Ok(Self { values, destination: Destination::Dropped })
    }

    /// The weight as something that an operation holds beside its operands, of which Candle allows
    /// three.
    ///
    /// # Errors
    ///
    /// A tensor of Candle's graph: its gradient would be lost.
    pub(super) fn held(&self) -> Result<Self> {
        if self.is_in_graph() {
            bail!("a tensor of the graph can only be an operand: its gradient would be lost")
        }
        Ok(self.clone())
    }
}

/// A tensor whose gradient, if it has one, follows Candle's graph.
impl From<&Tensor> for Weight {
    fn from(tensor: &Tensor) -> Self {
        Self { values: WeightValues::Tensor(tensor.clone()), destination: Destination::Graph }
    }
}

/// Destination of a gradient.
#[derive(Clone)]
pub(super) enum Destination {
    /// Back through Candle's graph.
    Graph,
    /// Straight to the sink.
    Sink(WeightUse),
    /// Nowhere.
    Dropped,
}

impl Destination {
    /// Sends the gradient of `operand` off; returns the value for the operation's backward to return.
    pub(super) fn send(&self, gradient: Vec<f32>, operand: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Graph if operand.track_op() => tensor(gradient, operand.shape()).map(Some),
            Self::Graph | Self::Dropped => Ok(None),
            // `None` is allowed because the operand is a `Var`: nothing enters the `GradStore`.
            Self::Sink(place) => place.give_values(&gradient).map(|()| None),
        }
    }

    /// [`Destination::send`] of a gradient that `write` puts into the memory that it is given,
    /// whatever is there: its place in the bucket, if it is the first.
    pub(super) fn send_written(
        &self,
        operand: &Tensor,
        mut write: impl FnMut(&mut [f32]),
    ) -> Result<Option<Tensor>> {
        let len = operand.elem_count();
        match self {
            Self::Sink(place) => place.give_written(len, &mut write).map(|()| None),
            Self::Dropped => Ok(None),
            Self::Graph => {
                let mut gradient = zeros(len);
                write(&mut gradient);
                self.send(gradient, operand)
            }
        }
    }

    /// [`Destination::send`] of a gradient in a GPU's memory.
    #[cfg(feature = "cuda")]
    pub(super) fn send_tensor(&self, gradient: Tensor, operand: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Graph if operand.track_op() => Ok(Some(gradient)),
            Self::Graph | Self::Dropped => Ok(None),
            Self::Sink(place) => place.give(&gradient).map(|()| None),
        }
    }
}

/// One use of a parameter in a pass.
#[derive(Clone)]
pub struct WeightUse {
    sink: Arc<dyn GradientSink>,
    index: usize,
    uses: Uses,
}

impl WeightUse {
    /// One more use of parameter `index`.
    pub fn new(sink: &Arc<dyn GradientSink>, index: usize, uses: &Uses) -> Self {
        uses.promise();
        Self::promised(sink, index, uses)
    }

    /// A use of parameter `index` that was promised before.
    pub fn promised(sink: &Arc<dyn GradientSink>, index: usize, uses: &Uses) -> Self {
        Self { sink: sink.clone(), index, uses: uses.clone() }
    }

    /// Hands over the gradient of this use, and says so when it was the last outstanding one.
    pub fn give(&self, gradient: &Tensor) -> Result<()> {
        self.sink.add_tensor(self.index, gradient)?;
        self.count_down()
    }

    fn give_values(&self, gradient: &[f32]) -> Result<()> {
        self.sink.add(self.index, gradient)?;
        self.count_down()
    }

    fn give_written(&self, len: usize, write: &mut dyn FnMut(&mut [f32])) -> Result<()> {
        self.sink.add_written(self.index, len, write)?;
        self.count_down()
    }

    fn count_down(&self) -> Result<()> {
        if self.uses.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.sink.complete(self.index)?;
        }
        Ok(())
    }
}

/// Uses of one parameter in a pass whose gradients are still to come.
#[derive(Clone, Default)]
pub struct Uses(Arc<AtomicUsize>);

impl Uses {
    /// One more gradient will come, whose [`WeightUse`] is not known yet.
    pub fn promise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
