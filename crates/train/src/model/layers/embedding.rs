//! Learnt vectors: `name = "embedding"`, `"position_embedding"`, `"class_token"`, `"latents"`

use candle_core::{DType, Device, Error, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes,
};
use crate::nn::{self, ForwardContext, Init, Param};
use crate::onnx::{Graph, Value};

/// Initial values of learnt positions, class tokens and latents, as in GPT-2.
const INIT: Init = Init::Normal(0.02);

/// a learnt vector per token, `torch.nn.Embedding`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// width of the vectors.
    #[schemars(range(min = 1, max = 16_777_216), example = 128)]
    pub out_features: u32,
}

impl Kind for Embedding {
    const NAME: &'static str = "embedding";
}

impl Layer for Embedding {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        match input {
            Flow::Tokens(_) => Ok(input.with_features(self.out_features as usize).into()),
            _ => Err(input.is_no("tokens").into()),
        }
    }

    fn details(&self, sizes: &Sizes) -> String {
        format!(" of {}", sizes.needed)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.needed * sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        nn::Embedding::new(&site.builder(), sizes.needed, sizes.outputs())
            .map(|table| Node::of(Table(table)))
    }
}

struct Table(nn::Embedding);

impl Forward for Table {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        self.0.forward(&x.to_dtype(DType::U32)?)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        self.0.onnx(graph, x)
    }
}

/// a learnt vector per step, added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PositionEmbedding {}

impl Kind for PositionEmbedding {
    const NAME: &'static str = "position_embedding";
}

impl Layer for PositionEmbedding {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        input.sequence()?;
        Ok(input.into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.output.rows() * sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        // The plan gives it such a shape; only a plan that was edited by hand does not.
        let [steps, features] =
            site.sizes().output.sequence().map_err(|unfit| Error::Msg(unfit.what))?;
        let table = nn::Embedding::with_init(&site.builder(), steps, features, INIT)?;
        Ok(Node::of(Positions { table, steps }))
    }
}

struct Positions {
    table: nn::Embedding,
    steps: usize,
}

impl Forward for Positions {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let steps = Tensor::arange(0, self.steps as u32, &Device::Cpu)?;
        x.broadcast_add(&self.table.forward(&steps)?)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let table = self.table.weight().onnx(graph)?;
        Ok(graph.add(x, &table))
    }
}

/// a learnt vector as the first step of a sequence, as in vision transformers; `select` takes it
/// out again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClassToken {}

impl Kind for ClassToken {
    const NAME: &'static str = "class_token";
}

impl Layer for ClassToken {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let [steps, features] = input.sequence()?;
        Ok(Flow::Sequence([steps + 1, features]).into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let shape = [1, 1, site.sizes().outputs()];
        site.builder().param("weight", &shape, INIT).map(|token| Node::of(Token(token)))
    }
}

/// (1, 1, c)
struct Token(Param);

impl Forward for Token {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let (n, _, features) = x.dims3()?;
        let token = self.0.tensor()?.broadcast_as((n, 1, features))?;
        Tensor::cat(&[&token.contiguous()?, x], 1)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let token = self.0.onnx(graph)?;
        let token = graph.for_each_sample(&token, x);
        Ok(graph.concatenated(&[&token, x], 1))
    }
}

/// learnt vectors, the same for each sample whatever comes in: what asks in a `cross_attention`, as
/// in Perceiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latents {
    /// how many.
    #[schemars(range(min = 1, max = 16_777_216), example = 16)]
    pub steps: u32,
    /// width of the vectors.
    #[schemars(range(min = 1, max = 16_777_216), example = 128)]
    pub out_features: u32,
}

impl Kind for Latents {
    const NAME: &'static str = "latents";
}

impl Layer for Latents {
    fn decide(&self, _: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(Flow::Sequence([self.steps as usize, self.out_features as usize]).into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.output.rows() * sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        let shape = [1, sizes.output.rows(), sizes.outputs()];
        let vectors = site.builder().param("weight", &shape, INIT)?;
        Ok(Node::of(Vectors(vectors)))
    }
}

/// (1, steps, c)
struct Vectors(Param);

impl Forward for Vectors {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let vectors = self.0.tensor()?;
        let (_, steps, features) = vectors.dims3()?;
        vectors.broadcast_as((x.dim(0)?, steps, features))?.contiguous()
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let vectors = self.0.onnx(graph)?;
        Ok(graph.for_each_sample(&vectors, x))
    }
}
