//! The layers that come with ddprun.

use crate::model::layers::{
    AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, BatchNorm, ClassToken, Concat, Conv1d, Conv2d,
    ConvTranspose2d, CrossAttention, Dropout, Embedding, Flatten, Gelu, GlobalAvgPool, GroupNorm,
    Gru, Hardsigmoid, Hardswish, InstanceNorm, Latents, LayerFamily, LayerNorm, Layers, LeakyRelu,
    Linear, Lstm, MaxPool1d, MaxPool2d, Mish, PositionEmbedding, Product, Relu, Relu6, Repeat,
    Residual, RmsNorm, Rnn, Select, SelfAttention, Sequential, Sigmoid, Silu, Softmax,
    StochasticDepth, Tanh, Tokens, Transpose, Upsample,
};
use crate::registry::Registered;

impl Registered for LayerFamily {
    fn registered() -> Layers {
        let mut all = Layers::empty();
        all.add::<Conv2d>();
        all.add::<Conv1d>();
        all.add::<ConvTranspose2d>();
        all.add::<BatchNorm>();
        all.add::<LayerNorm>();
        all.add::<GroupNorm>();
        all.add::<InstanceNorm>();
        all.add::<RmsNorm>();
        all.add::<Linear>();
        all.add::<Embedding>();
        all.add::<PositionEmbedding>();
        all.add::<ClassToken>();
        all.add::<Select>();
        all.add::<SelfAttention>();
        all.add::<CrossAttention>();
        all.add::<Latents>();
        all.add::<Lstm>();
        all.add::<Gru>();
        all.add::<Rnn>();
        all.add::<Relu>();
        all.add::<LeakyRelu>();
        all.add::<Relu6>();
        all.add::<Hardswish>();
        all.add::<Hardsigmoid>();
        all.add::<Gelu>();
        all.add::<Silu>();
        all.add::<Mish>();
        all.add::<Sigmoid>();
        all.add::<Tanh>();
        all.add::<Softmax>();
        all.add::<Dropout>();
        all.add::<StochasticDepth>();
        all.add::<MaxPool2d>();
        all.add::<AvgPool2d>();
        all.add::<MaxPool1d>();
        all.add::<AvgPool1d>();
        all.add::<AdaptiveAvgPool2d>();
        all.add::<GlobalAvgPool>();
        all.add::<Upsample>();
        all.add::<Flatten>();
        all.add::<Tokens>();
        all.add::<Transpose>();
        all.add::<Sequential>();
        all.add::<Repeat>();
        all.add::<Residual>();
        all.add::<Product>();
        all.add::<Concat>();
        all
    }
}
