//! Models written with candle-nn.

use candle_core::{DType, Result, Tensor};
use candle_nn::{ModuleT, VarBuilder};

use super::Model;
use crate::nn::{Builder, ForwardContext, Mode, VarBuilderParams, compute_dtype};

/// A module of candle-nn (or of candle-transformers) as a model, loaded anew in each pass.
///
/// All of its pass is computed in the numbers of `train.precision`, as it has no autocast.
///
/// ```
/// use candle_core::Result;
/// use candle_nn::{Activation, Sequential, VarBuilder, linear, seq};
/// use candle_train::nn::{Builder, Init};
/// use ddprun_train::model::VarBuilderModel;
///
/// fn net(vb: VarBuilder) -> Result<Sequential> {
///     Ok(seq()
///         .add_fn(|x| x.flatten_from(1))
///         .add(linear(64, 32, vb.pp("fc1"))?)
///         .add(Activation::Gelu)
///         .add(linear(32, 10, vb.pp("fc2"))?))
/// }
///
/// let builder = Builder::new(0);
/// let model = VarBuilderModel::new(&builder, net)?;
/// assert_eq!(builder.finish().elem_count(), 64 * 32 + 32 + 32 * 10 + 10);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub struct VarBuilderModel<L> {
    params: VarBuilderParams,
    load: L,
}

impl<L, M> VarBuilderModel<L>
where
    L: Fn(VarBuilder<'static>) -> Result<M> + Send + Sync,
    M: ModuleT,
{
    /// The module that `load` makes, with its parameters below the builder's path.
    ///
    /// # Errors
    ///
    /// [`VarBuilderParams::register`]'s.
    pub fn new(builder: &Builder, load: L) -> Result<Self> {
        Ok(Self { params: VarBuilderParams::register(builder, |_| true, &load)?, load })
    }
}

impl<L, M> Model for VarBuilderModel<L>
where
    L: Fn(VarBuilder<'static>) -> Result<M> + Send + Sync,
    M: ModuleT,
{
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let module = (self.load)(self.params.var_builder(pass))?;
        let input = input.to_dtype(compute_dtype(pass.precision))?;
        let is_training = matches!(pass.mode, Mode::Train { .. });
        module.forward_t(&input, is_training)?.to_dtype(DType::F32)
    }
}
