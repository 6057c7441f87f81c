//! Vision transformers (Dosovitskiy et al., 2021, <https://arxiv.org/abs/2010.11929>) with timm's
//! keys, initialisation and eps: `vit_tiny` to `vit_large` are its `vit_*_patch16_224`, for images
//! of any size that patches divide; positions of pretrained weights for images of another size are
//! resampled. With `layer_scale`, patches of 14 and registers they are the backbones of `DINOv2`
//! (Oquab et al., 2023, <https://arxiv.org/abs/2304.07193>).
//!
//! Keys: `cls_token`, `reg_token`, `pos_embed`, `patch_embed.proj`,
//! `blocks.{i}.{norm1,attn.qkv,attn.proj,ls1.gamma,norm2,mlp.fc1,mlp.fc2,ls2.gamma}`, `norm`,
//! `head`. torchvision's names load as well.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::names::{Library, Naming};
use super::{Architecture, Head, Model, Models};
use crate::config::kind::Kind;
use crate::nn::state_dict::Grid;
use crate::nn::{
    self, Builder, Conv2d, ConvShape, DropPath, Dropout, ForwardContext, Init, LayerNorm, Linear,
    Param,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Attention, LinearActivation, Window};
use crate::plan::{Modality, ModelPlan};

/// Standard deviation of initial weights and positions.
const STD: f64 = 0.02;
/// Epsilon of the norms.
const EPS: f64 = 1e-6;

/// timm's vision transformer of 12 layers of 192 features, 5.7 million parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VitConfig {
    /// rows and columns of a patch; they divide the image.
    #[schemars(range(min = 1, max = 1024))]
    pub patch_size: usize,
    /// dropout of the embedded patches, and after each linear layer of a block except that of
    /// queries, keys and values (timm's `pos_drop_rate` and `proj_drop_rate`).
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
    pub dropout: f64,
    /// stochastic depth: the probability that a sample skips a part of the last block; it grows
    /// from 0 in the first.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
    pub drop_path_rate: f64,
    /// initial value of a scale of each feature after both parts of a block, as `DINOv2` has (timm's
    /// `init_values`). Default: no scales.
    #[schemars(with = "f64", range(min = 0.0), example = 1e-5)]
    pub layer_scale: Option<f64>,
    /// tokens beside the class token that belong to no patch (Darcet et al. 2023); the class token
    /// then has no position, as in timm's `*_reg4_dinov2`.
    #[schemars(range(max = 1024), example = 4)]
    pub registers: usize,
    /// Size, which follows from the name.
    #[serde(skip)]
    pub size: VitSize,
}

/// Size of a vision transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VitSize {
    pub name: &'static str,
    /// Features.
    pub width: usize,
    /// Heads of each attention.
    pub heads: usize,
    /// Blocks.
    pub layers: usize,
}

impl Default for VitSize {
    fn default() -> Self {
        Self { name: "vit_tiny", width: 192, heads: 3, layers: 12 }
    }
}

impl Default for VitConfig {
    fn default() -> Self {
        Self {
            patch_size: 16,
            dropout: 0.0,
            drop_path_rate: 0.0,
            layer_scale: None,
            registers: 0,
            size: VitSize::default(),
        }
    }
}

impl Kind for VitConfig {
    const NAME: &'static str = "vit_tiny";

    fn name(&self) -> &'static str {
        self.size.name
    }
}

/// Adds all sizes.
pub(super) fn register(models: &mut Models) {
    models.add::<VitConfig>();
    let mut add = |about: &str, size: VitSize| {
        models.add_variant(size.name, about, move |vit: &mut VitConfig| vit.size = size);
    };
    let about = "The same of 384 features, 22 million.";
    add(about, VitSize { name: "vit_small", width: 384, heads: 6, layers: 12 });
    let about = "The same of 768 features, 86 million.";
    add(about, VitSize { name: "vit_base", width: 768, heads: 12, layers: 12 });
    let about = "The same of 24 layers of 1024 features, 304 million.";
    add(about, VitSize { name: "vit_large", width: 1024, heads: 16, layers: 24 });
}

impl Architecture for VitConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let patch = self.patch_size;
        let [channels, height, width] = image_shape(&plan.input)?;
        if !height.is_multiple_of(patch) || !width.is_multiple_of(patch) {
            bail!("patches of {patch}x{patch} do not divide images of {height}x{width}");
        }
        let features = self.size.width;
        let patches = height / patch * (width / patch);
        let token = Init::Normal(1e-6);
        let positions = Init::Normal(STD);
        let window = Window { stride: patch, padding: 0 };
        let shape =
            ConvShape { inputs: channels, outputs: features, kernel: patch, window, groups: 1 };
        let blocks = builder.pp("blocks");
        // The class token has a position, unless there are registers.
        let prefix = usize::from(self.registers == 0);
        let grid = Grid { prefix, sides: [height / patch, width / patch] };
        builder.is_grid_of_positions("pos_embed", grid);
        builder.is_embedding("cls_token");
        if self.is_of_torchvision() {
            register_torchvision_names(builder, self.size.layers);
        }
        let cls_token = builder.param("cls_token", &[1, 1, features], token)?;
        let registers = (self.registers > 0).then(|| {
            builder.is_embedding("reg_token");
            builder.param("reg_token", &[1, self.registers, features], token)
        });
        Ok(Box::new(Vit {
            cls_token,
            reg_token: registers.transpose()?,
            pos_embed: builder.param("pos_embed", &[1, patches + prefix, features], positions)?,
            patch_embed: Conv2d::new(&builder.pp("patch_embed.proj"), shape)?,
            dropout: Dropout::new(&builder.pp("pos_drop"), self.dropout),
            blocks: (0..self.size.layers)
                .map(|i| Block::new(self, i, &blocks.pp(i)).map(Arc::new))
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(&builder.pp("norm"), features)?.with_eps(EPS),
            head: linear(&builder.pp("head"), features, plan.outputs)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["head."])
    }

    fn library(&self) -> Option<Library> {
        Some(Library::Timm)
    }

    fn named_as(&self, plan: &ModelPlan, library: Library) -> std::result::Result<Naming, String> {
        let is_square = plan.input.get(1) == plan.input.get(2);
        match library {
            Library::Timm => Ok(Naming::default()),
            Library::Torchvision if !self.is_of_torchvision() => {
                Err("has no vision transformer with layer scale or registers".to_owned())
            }
            Library::Torchvision if is_square => Ok(Naming::default()),
            Library::Torchvision => Err("takes square images only".to_owned()),
            Library::Transformers => Err(Naming::unknown()),
        }
    }
}

impl VitConfig {
    fn is_of_torchvision(&self) -> bool {
        self.layer_scale.is_none() && self.registers == 0
    }
}

const TORCHVISION: &str = Library::Torchvision.words();

/// Registers torchvision's names; older files have other names for the linear layers of `mlp`.
fn register_torchvision_names(builder: &Builder, layers: usize) {
    for (own, other) in [
        ("cls_token", "class_token"),
        ("pos_embed", "encoder.pos_embedding"),
        ("patch_embed.proj", "conv_proj"),
        ("norm", "encoder.ln"),
        ("head", "heads.head"),
    ] {
        builder.also_called(TORCHVISION, own, other);
    }
    for layer in 0..layers {
        for (own, other) in [
            ("norm1", "ln_1"),
            ("attn.qkv.weight", "self_attention.in_proj_weight"),
            ("attn.qkv.bias", "self_attention.in_proj_bias"),
            ("attn.proj", "self_attention.out_proj"),
            ("norm2", "ln_2"),
            ("mlp.fc1", "mlp.0"),
            ("mlp.fc1", "mlp.linear_1"),
            ("mlp.fc2", "mlp.3"),
            ("mlp.fc2", "mlp.linear_2"),
        ] {
            let other = format!("encoder.layers.encoder_layer_{layer}.{other}");
            builder.also_called(TORCHVISION, &format!("blocks.{layer}.{own}"), other);
        }
    }
}

fn linear(builder: &Builder, inputs: usize, outputs: usize) -> Result<Linear> {
    Linear::with_init(builder, inputs, outputs, Init::Normal(STD), Some(Init::Constant(0.0)))
}

struct Vit {
    cls_token: Param,
    reg_token: Option<Param>,
    pos_embed: Param,
    patch_embed: Conv2d,
    dropout: Dropout,
    blocks: Vec<Arc<Block>>,
    norm: LayerNorm,
    head: Linear,
}

impl Vit {
    /// Images (n, c, h, w) -> the class token, registers and the patches with their positions, (n, 1
    /// + registers + patches, features).
    fn tokens(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let patches = self.patch_embed.forward(&ops::nchw_to_nhwc(input)?, pass)?.flatten(1, 2)?;
        let (n, _, features) = patches.dims3()?;
        let each = |token: &Param| {
            let tokens = token.shape()[1];
            token.tensor()?.broadcast_as((n, tokens, features))?.contiguous()
        };
        let token = each(&self.cls_token)?;
        let positions = self.pos_embed.tensor()?;
        match &self.reg_token {
            None => Tensor::cat(&[&token, &patches], 1)?.broadcast_add(&positions),
            Some(registers) => {
                Tensor::cat(&[&token, &each(registers)?, &patches.broadcast_add(&positions)?], 1)
            }
        }
    }
}

impl Model for Vit {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = self.dropout.forward(&self.tokens(input, pass)?, pass)?;
        let x = ops::chain(&x, |x| {
            let x = self
                .blocks
                .iter()
                .try_fold(x.clone(), |x, block| nn::run_block(block, &x, pass))?;
            self.norm.forward(&x)
        })?;
        self.head.forward(&x.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?, pass)
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let patches = self.patch_embed.onnx(graph, &x, [0; 2])?;
        let patches = graph.reshaped(&patches, &[0, -1, patches.features() as i64]);
        let token = self.cls_token.onnx(graph)?;
        let token = graph.for_each_sample(&token, &patches);
        let positions = self.pos_embed.onnx(graph)?;
        let x = match &self.reg_token {
            None => {
                let tokens = graph.concatenated(&[&token, &patches], 1);
                graph.add(&tokens, &positions)
            }
            Some(registers) => {
                let registers = registers.onnx(graph)?;
                let registers = graph.for_each_sample(&registers, &patches);
                let patches = graph.add(&patches, &positions);
                graph.concatenated(&[&token, &registers, &patches], 1)
            }
        };
        let x = self.blocks.iter().try_fold(x, |x, block| block.onnx(graph, &x))?;
        let x = self.norm.onnx(graph, &x)?;
        let first = graph.narrowed(&x, 1, 0, 1);
        let first = graph.squeezed(&first, &[1]);
        self.head.onnx(graph, &first)
    }
}

/// x + attention(norm x), then x + mlp(norm x), each perhaps with a scale, and with stochastic depth.
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    heads: usize,
    /// After `proj`, inside of the feed-forward part and after it.
    dropouts: [Dropout; 3],
    /// Scales of the features of both parts.
    scales: Option<[Param; 2]>,
    drop_paths: [DropPath; 2],
}

impl Block {
    fn new(config: &VitConfig, index: usize, builder: &Builder) -> Result<Self> {
        let VitSize { width, heads, .. } = config.size;
        let attn = builder.pp("attn");
        let mlp = builder.pp("mlp");
        let skipped = config.drop_path_rate * index as f64 / (config.size.layers - 1) as f64;
        let norm = |name| {
            Ok::<_, candle_core::Error>(LayerNorm::new(&builder.pp(name), width)?.with_eps(EPS))
        };
        let norm1 = norm("norm1")?;
        let qkv = linear(&attn.pp("qkv"), width, 3 * width)?;
        let proj = linear(&attn.pp("proj"), width, width)?;
        let scale = |name: &str| {
            let init = config.layer_scale.map(Init::Constant);
            init.map(|init| builder.pp(name).param("gamma", &[width], init)).transpose()
        };
        let first = scale("ls1")?;
        Ok(Self {
            norm1,
            qkv,
            proj,
            norm2: norm("norm2")?,
            fc1: linear(&mlp.pp("fc1"), width, 4 * width)?,
            fc2: linear(&mlp.pp("fc2"), 4 * width, width)?,
            scales: first.zip(scale("ls2")?).map(|(first, second)| [first, second]),
            heads,
            dropouts: [attn.pp("proj_drop"), mlp.pp("drop1"), mlp.pp("drop2")]
                .map(|builder| Dropout::new(&builder, config.dropout)),
            drop_paths: ["drop_path1", "drop_path2"]
                .map(|name| DropPath::new(&builder.pp(name), skipped)),
        })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let y = self.norm1.onnx(graph, x)?;
        let qkv = self.qkv.onnx(graph, &y)?;
        let y = graph.attention_packed(&qkv, self.heads, false);
        let y = self.proj.onnx(graph, &y)?;
        let y = self.scaled_onnx(0, graph, y)?;
        let x = graph.add(x, &y);
        let y = self.norm2.onnx(graph, &x)?;
        let y = self.fc1.onnx_activated(graph, &y, LinearActivation::Gelu)?;
        let y = self.fc2.onnx(graph, &y)?;
        let y = self.scaled_onnx(1, graph, y)?;
        Ok(graph.add(&x, &y))
    }

    /// The output y of the first or second part times its scale, if it has one.
    fn scaled(&self, part: usize, y: Tensor) -> Result<Tensor> {
        match &self.scales {
            None => Ok(y),
            Some(scales) => ops::scale_channels(&y, &scales[part].weight()?),
        }
    }

    /// [`Block::scaled`] in a graph of ONNX.
    fn scaled_onnx(&self, part: usize, graph: &mut Graph, y: Value) -> Result<Value> {
        let Some(scales) = &self.scales else { return Ok(y) };
        let scale = scales[part].onnx(graph)?;
        Ok(graph.mul(&y, &scale))
    }
}

impl nn::Block for Block {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let ([after_attention, inside, last], [first, second]) = (&self.dropouts, &self.drop_paths);
        let precision = pass.precision;
        let options = Attention { heads: self.heads, causal: false, dropout: None, precision };
        let qkv = self.qkv.forward(&self.norm1.forward(x)?, pass)?;
        let y = self.proj.forward(&ops::attention_packed(&qkv, options)?, pass)?;
        let y = self.scaled(0, after_attention.forward(&y, pass)?)?;
        let x = ops::add(x, &first.forward(&y, pass)?)?;
        let y = self.norm2.forward(&x)?;
        let y = self.fc1.forward_activated(&y, LinearActivation::Gelu, pass)?;
        let y = self.fc2.forward(&inside.forward(&y, pass)?, pass)?;
        let y = self.scaled(1, last.forward(&y, pass)?)?;
        ops::add(&x, &second.forward(&y, pass)?)
    }
}
