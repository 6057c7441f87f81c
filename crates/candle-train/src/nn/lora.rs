//! Low-rank adaptation (Hu et al., 2021, <https://arxiv.org/abs/2106.09685>) as PEFT computes it,
//! with its names: also `rsLoRA` (Kalajdzievski, 2023, <https://arxiv.org/abs/2312.03732>) and `DoRA`
//! (Liu et al., 2024, <https://arxiv.org/abs/2402.09353>).

use candle_core::{Result, Tensor};
use fancy_regex::Regex;

use super::{Builder, Dropout, ForwardContext, Init, Linear, Param};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Weight};

/// The layers that have an adapter, and its settings: PEFT's `LoraConfig`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoraConfig {
    /// Rank of the matrix that is added to a weight.
    pub r: usize,
    /// The matrix that is added is multiplied by alpha / r.
    pub alpha: f64,
    /// Dropout before the adapter.
    pub dropout: f64,
    /// The layers that have one.
    pub targets: Targets,
    /// True if the matrix is multiplied by alpha / sqrt(r) instead.
    pub rslora: bool,
    /// True if the sum has a learnt length for each output, which is that of the weight at first.
    pub dora: bool,
    /// Other ranks, by patterns of the layers' names; the first that matches counts.
    pub ranks: Vec<(String, usize)>,
    /// Other values of alpha, likewise.
    pub alphas: Vec<(String, f64)>,
    /// Ends of the names of modules that are trained as they are.
    pub modules_to_save: Vec<String>,
}

/// Layers that have an adapter.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// Those whose names are these, or end in one of them behind a dot.
    Names(Vec<String>),
    /// Those whose whole names a pattern matches.
    Pattern(String),
    /// All but the output layer.
    AllLinear,
}

impl Default for Targets {
    fn default() -> Self {
        Self::Names(Vec::new())
    }
}

impl Targets {
    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|name| is_end(path, name)),
            Self::Pattern(pattern) => is_match(&format!("^(?:{pattern})$"), path),
            Self::AllLinear => true,
        }
    }
}

impl LoraConfig {
    /// Rank of the adapter of the layer at `path`, and the factor of what it adds; `None` if it has
    /// none.
    pub fn adapter(&self, path: &str) -> Option<(usize, f64)> {
        if !self.targets.matches(path) {
            return None;
        }
        let r = other(&self.ranks, path).unwrap_or(self.r).max(1);
        let alpha = other(&self.alphas, path).unwrap_or(self.alpha);
        let divisor = if self.rslora { (r as f64).sqrt() } else { r as f64 };
        Some((r, alpha / divisor))
    }

    /// True if the tensor of this name is of a module that is trained as it is.
    pub fn saves(&self, name: &str) -> bool {
        let paths = name.match_indices('.').map(|(dot, _)| &name[..dot]);
        paths.into_iter().any(|path| self.modules_to_save.iter().any(|end| path.ends_with(end)))
    }
}

/// The value of the first pattern that matches the end of a path behind a dot.
fn other<T: Copy>(patterns: &[(String, T)], path: &str) -> Option<T> {
    let matches = |pattern: &str| is_match(&format!("^(?:.*\\.)?(?:{pattern})$"), path);
    patterns.iter().find(|(pattern, _)| matches(pattern)).map(|&(_, value)| value)
}

/// True if a path is `name`, or ends in it behind a dot.
fn is_end(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

/// True if `pattern` is one, and matches; patterns are those of Python's `re`.
fn is_match(pattern: &str, path: &str) -> bool {
    Regex::new(pattern).is_ok_and(|regex| regex.is_match(path).unwrap_or(false))
}

/// Why `pattern` is none, if so.
pub fn pattern_error(pattern: &str) -> Option<String> {
    Regex::new(pattern).err().map(|error| error.to_string())
}

/// A linear layer that may have an adapter: y = W x + scale B (A dropout(x)).
///
/// With `dora`, where x is not dropped, y = m / |W + scale B A| (W x + scale B (A x)), where the
/// norms are those of the rows, and no gradient reaches them. A pass `without_adapters` gives W x.
pub struct Adapted {
    base: Linear,
    adapter: Option<Adapter>,
}

/// `lora_A.weight` (r, in), U(+-1/sqrt(in)), and `lora_B.weight` (out, r), zeros: at first nothing
/// is added.
struct Adapter {
    a: Linear,
    b: Linear,
    dropout: Dropout,
    scale: f64,
    /// `lora_magnitude_vector` (out).
    magnitude: Option<Param>,
}

impl Adapter {
    /// What it adds to the layer: scale B A x.
    fn added(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::scale(&self.b.forward(&self.a.forward(x, pass)?, pass)?, self.scale)
    }
}

impl Adapted {
    /// Registers `weight`, without a bias, and the adapter if `lora` names this layer as one of its
    /// targets. The adapter is trainable even where the builder is frozen.
    pub fn new(
        builder: &Builder,
        sizes: [usize; 2],
        init: Init,
        lora: Option<&LoraConfig>,
    ) -> Result<Self> {
        Self::with_bias(builder, sizes, init, None, lora)
    }

    /// [`Adapted::new`] with a `bias`, if it has initial values.
    pub fn with_bias(
        builder: &Builder,
        [inputs, outputs]: [usize; 2],
        init: Init,
        bias: Option<Init>,
        lora: Option<&LoraConfig>,
    ) -> Result<Self> {
        let base = Linear::with_init(builder, inputs, outputs, init, bias)?;
        let found = lora.and_then(|lora| Some((lora, lora.adapter(builder.path())?)));
        let Some((lora, (r, scale))) = found else { return Ok(Self { base, adapter: None }) };
        builder.has_adapter();
        let builder = builder.trainable();
        let down = Init::torch_default(inputs);
        let zeros = Init::Constant(0.0);
        let a = Linear::with_init(&builder.pp("lora_A"), inputs, r, down, None)?;
        let b = Linear::with_init(&builder.pp("lora_B"), r, outputs, zeros, None)?;
        let dropout = Dropout::new(&builder.pp("lora_dropout"), lora.dropout);
        let mut magnitude = None;
        if lora.dora {
            let ones = Init::Constant(1.0);
            let param = builder.param("lora_magnitude_vector", &[outputs], ones)?;
            builder.is_magnitude_of(&param, base.weight());
            magnitude = Some(param);
        }
        Ok(Self { base, adapter: Some(Adapter { a, b, dropout, scale, magnitude }) })
    }

    /// x (..., in) -> (..., out).
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let adapter = self.adapter.as_ref().filter(|_| !pass.without_adapters);
        let Some(adapter) = adapter else { return self.base.forward(x, pass) };
        if let Some(magnitude) = &adapter.magnitude {
            return self.rescaled(x, adapter, magnitude, pass);
        }
        let y = self.base.forward(x, pass)?;
        ops::add(&y, &adapter.added(&adapter.dropout.forward(x, pass)?, pass)?)
    }

    /// [`Adapted::forward`] with learnt lengths, which the bias is no part of.
    fn rescaled(
        &self,
        x: &Tensor,
        adapter: &Adapter,
        magnitude: &Param,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let Adapter { a, b, dropout, scale, .. } = adapter;
        let weight = self.base.weight().weight()?;
        let product = |x: &Tensor| ops::linear(x, &weight, None, pass.precision);
        // What is dropped is dropped for the weight, too, but not for the layer's own result.
        let (y, own) = match dropout.drawn(pass) {
            Some(_) => (Some(self.base.forward(x, pass)?), None),
            None => (None, Some(product(x)?)),
        };
        let dropped = dropout.forward(x, pass)?;
        let added = adapter.added(&dropped, pass)?;
        let own = own.map_or_else(|| product(&dropped), Ok)?;
        let [a, b] = [a, b].map(|linear| linear.weight().detached());
        let inverse = Weight::from(&ops::row_norms(&weight, &a?, &b?, *scale)?.recip()?);
        let sum = ops::scale_channels(&ops::add(&own, &added)?, &inverse)?;
        let rescaled = ops::scale_channels(&sum, &magnitude.weight()?)?;
        match (y, self.base.bias()) {
            (Some(y), _) => ops::add(&ops::add(&y, &ops::scale(&own, -1.0)?)?, &rescaled),
            (None, Some(bias)) => rescaled.broadcast_add(&bias.detached()?),
            (None, None) => Ok(rescaled),
        }
    }

    /// Adds [`Adapted::forward`] to a graph of ONNX, by one weight, W + scale B A.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let Some(Adapter { a, b, scale, magnitude, .. }) = &self.adapter else {
            return self.base.onnx(graph, x);
        };
        let [base, a, b] = [&self.base, a, b].map(|linear| linear.weight().detached());
        let magnitude = magnitude.as_ref().map(Param::detached).transpose()?;
        let merged = merged(&base?, &a?, &b?, *scale, magnitude.as_ref())?;
        let weight = graph.initializer(self.base.weight().name(), &merged)?;
        let bias = self.base.bias().map(|bias| bias.onnx(graph)).transpose()?;
        Ok(graph.linear(x, &weight, bias.as_ref()))
    }
}

/// The weight (out, in) of a layer with its adapter: W + scale B A, of which each row has the
/// length that `magnitude` says, if that is given.
pub fn merged(
    weight: &Tensor,
    a: &Tensor,
    b: &Tensor,
    scale: f64,
    magnitude: Option<&Tensor>,
) -> Result<Tensor> {
    let sum = (weight + (b.matmul(a)? * scale)?)?;
    let Some(magnitude) = magnitude else { return Ok(sum) };
    let norms = ops::row_norms(&Weight::from(weight), a, b, scale)?;
    sum.broadcast_mul(&(magnitude / norms)?.unsqueeze(1)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::Precision;

    fn config(targets: Targets) -> LoraConfig {
        LoraConfig { r: 4, alpha: 8.0, targets, ..LoraConfig::default() }
    }

    #[test]
    fn layers_are_chosen_as_peft_chooses_them() {
        let path = "model.layers.11.self_attn.q_proj";
        let chosen = |targets| config(targets).adapter(path).is_some();
        let names = |names: &[&str]| Targets::Names(names.iter().map(|&n| n.to_owned()).collect());
        assert!(chosen(names(&["v_proj", "q_proj"])) && chosen(names(&["self_attn.q_proj"])));
        assert!(!chosen(names(&["proj"])) && !chosen(names(&[])));
        let pattern = |pattern: &str| Targets::Pattern(pattern.to_owned());
        assert!(chosen(pattern(r".*\.1\d\..*q_proj")) && chosen(Targets::AllLinear));
        assert!(!chosen(pattern("q_proj")) && !chosen(pattern("(")));
        assert!(pattern_error("(").is_some() && pattern_error(r"layers\.[01]").is_none());
    }

    #[test]
    fn ranks_and_factors_follow_the_first_pattern_that_matches() {
        let mut lora = config(Targets::AllLinear);
        assert_eq!(lora.adapter("model.layers.1.mlp.up_proj"), Some((4, 2.0)));
        lora.ranks = vec![("up_proj".to_owned(), 16), (r"1\.mlp\..*".to_owned(), 2)];
        lora.alphas = vec![("model.layers.1.mlp.down_proj".to_owned(), 3.0)];
        assert_eq!(lora.adapter("model.layers.1.mlp.up_proj"), Some((16, 0.5)));
        assert_eq!(lora.adapter("model.layers.1.mlp.down_proj"), Some((2, 1.5)));
        assert_eq!(lora.adapter("model.layers.2.mlp.down_proj"), Some((4, 2.0)));
        lora.rslora = true;
        assert_eq!(lora.adapter("model.layers.1.mlp.up_proj"), Some((16, 2.0)));
    }

    #[test]
    fn modules_to_save_are_trained_within_a_frozen_model() -> Result<()> {
        let builder = Builder::describe();
        let root = builder.frozen_except(&["lm_head".to_owned()]);
        for path in ["lm_head", "head", "model.norm"] {
            root.pp(path).param("weight", &[2], Init::Constant(0.0))?;
        }
        let params = builder.finish();
        let names: Vec<&str> = params.parameters().iter().map(Param::name).collect();
        assert_eq!((names, params.absent_module()), (vec!["lm_head.weight"], None));
        Ok(())
    }

    #[test]
    fn a_learnt_length_scales_the_product_and_not_the_bias() -> Result<()> {
        let builder = Builder::new(1);
        let lora = LoraConfig { dora: true, ..config(Targets::AllLinear) };
        let bias = Some(Init::Constant(0.5));
        let sizes = [3, 2];
        let layer =
            Adapted::with_bias(&builder.pp("q"), sizes, Init::Normal(0.5), bias, Some(&lora))?;
        let Some(Adapter { magnitude: Some(magnitude), .. }) = &layer.adapter else {
            panic!("it has an adapter")
        };
        let weight = layer.base.weight().detached()?;
        // Twice the lengths that the rows have; the adapter adds nothing yet.
        magnitude.var()?.set(&(weight.sqr()?.sum(1)?.sqrt()? * 2.0)?)?;
        let x = Tensor::new(&[[1f32, -2.0, 3.0]], &Device::Cpu)?;
        let expected = ((x.matmul(&weight.t()?)? * 2.0)? + 0.5)?.flatten_all()?.to_vec1::<f32>()?;
        let y = layer.forward(&x, &ForwardContext::eval(Precision::Fp32))?;
        let y = y.flatten_all()?.to_vec1::<f32>()?;
        assert!(y.iter().zip(&expected).all(|(y, e)| (y - e).abs() < 1e-5), "{y:?} {expected:?}");
        Ok(())
    }
}
