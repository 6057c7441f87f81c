//! The conditional 1-D U-Net of diffusion policies (Janner et al., 2022; Chi et al., 2023),
//! channels last: residual blocks along a chunk of actions, each scaled and shifted by features of
//! the condition (`FiLM`).

use candle_core::{Result, Tensor, bail};

use crate::nn::{
    Builder, Conv1d, ConvShape, ConvTranspose1d, ForwardContext, GroupNorm, Linear, Nonlinearity,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Window};

/// Sizes of the net.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes<'a> {
    pub(super) kernel_size: usize,
    pub(super) n_groups: usize,
    /// Channels of each level.
    pub(super) down_dims: &'a [usize],
    pub(super) names: Names,
}

/// Names of the parts of a net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// As in the authors' repository: `blocks.{0,1}`, `2.conv`.
    Authors,
    /// As in `LeRobot`: `conv1`, `conv2`, `2`.
    LeRobot,
}

impl Names {
    /// Names of the two convolutions of a residual block.
    fn blocks(self) -> [&'static str; 2] {
        match self {
            Self::Authors => ["blocks.0", "blocks.1"],
            Self::LeRobot => ["conv1", "conv2"],
        }
    }

    /// Name of the convolution that halves or doubles the length after the blocks of a level.
    fn resampling(self) -> &'static str {
        match self {
            Self::Authors => "2.conv",
            Self::LeRobot => "2",
        }
    }
}

/// Conv1d, `GroupNorm`, Mish. Keys: `block.{0,1}`.
struct ConvBlock {
    conv: Conv1d,
    norm: GroupNorm,
}

impl ConvBlock {
    fn new(builder: &Builder, inputs: usize, outputs: usize, sizes: Sizes<'_>) -> Result<Self> {
        let block = builder.pp("block");
        if !outputs.is_multiple_of(sizes.n_groups.max(1)) || sizes.kernel_size.is_multiple_of(2) {
            bail!("`n_groups` must divide every width of `down_dims`, and `kernel_size` be odd");
        }
        let window = Window { stride: 1, padding: sizes.kernel_size / 2 };
        Ok(Self {
            conv: Conv1d::new(&block.pp(0), line(inputs, outputs, sizes.kernel_size, window))?,
            norm: GroupNorm::new(&block.pp(1), sizes.n_groups, outputs)?,
        })
    }

    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        Nonlinearity::Mish.forward(&self.norm.forward(&self.conv.forward(x, pass)?)?)
    }

    /// [`ConvBlock::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let y = self.conv.onnx(graph, x, 0)?;
        let y = self.norm.onnx(graph, &y)?;
        Ok(Nonlinearity::Mish.onnx(graph, &y))
    }
}

/// A convolution along a line.
fn line(inputs: usize, outputs: usize, kernel: usize, window: Window) -> ConvShape {
    ConvShape { inputs, outputs, kernel, window, groups: 1 }
}

/// Two blocks with the condition between them, beside a shortcut. Keys: [`Names::blocks`],
/// `cond_encoder.1`, `residual_conv`.
struct Residual {
    blocks: [ConvBlock; 2],
    condition: Linear,
    shortcut: Option<Conv1d>,
    outputs: usize,
}

impl Residual {
    fn new(
        builder: &Builder,
        inputs: usize,
        outputs: usize,
        condition: usize,
        sizes: Sizes<'_>,
    ) -> Result<Self> {
        let blocks = sizes.names.blocks().map(|name| builder.pp(name));
        let window = Window { stride: 1, padding: 0 };
        let shape = line(inputs, outputs, 1, window);
        Ok(Self {
            blocks: [
                ConvBlock::new(&blocks[0], inputs, outputs, sizes)?,
                ConvBlock::new(&blocks[1], outputs, outputs, sizes)?,
            ],
            condition: Linear::new(&builder.pp("cond_encoder").pp(1), condition, 2 * outputs)?,
            shortcut: (inputs != outputs)
                .then(|| Conv1d::new(&builder.pp("residual_conv"), shape))
                .transpose()?,
            outputs,
        })
    }

    /// x (n, length, inputs), activated condition (n, features) -> (n, length, outputs).
    fn forward(&self, x: &Tensor, condition: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let film = self.condition.forward(condition, pass)?.unsqueeze(1)?;
        let scale = ops::narrow(&film, 2, 0, self.outputs)?;
        let shift = ops::narrow(&film, 2, self.outputs, self.outputs)?;
        let inner =
            ops::add_channel_bias(&ops::gated(&self.blocks[0].forward(x, pass)?, &scale)?, &shift)?;
        let inner = self.blocks[1].forward(&inner, pass)?;
        match &self.shortcut {
            Some(conv) => ops::add(&inner, &conv.forward(x, pass)?),
            None => ops::add(&inner, x),
        }
    }

    /// [`Residual::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value, condition: &Value) -> Result<Value> {
        let film = self.condition.onnx(graph, condition)?;
        let film = graph.unsqueezed(&film, &[1]);
        let [scale, bias] =
            [0, self.outputs].map(|first| graph.narrowed(&film, 2, first, self.outputs));
        let inner = self.blocks[0].onnx(graph, x)?;
        let inner = graph.mul(&inner, &scale);
        let inner = graph.add(&inner, &bias);
        let inner = self.blocks[1].onnx(graph, &inner)?;
        let shortcut = match &self.shortcut {
            Some(conv) => conv.onnx(graph, x, 0)?,
            None => x.clone(),
        };
        Ok(graph.add(&inner, &shortcut))
    }
}

/// Two residual blocks, the second of which keeps the width.
struct Pair([Residual; 2]);

impl Pair {
    fn new(
        builder: &Builder,
        inputs: usize,
        outputs: usize,
        condition: usize,
        sizes: Sizes<'_>,
    ) -> Result<Self> {
        let block = |i, inputs| Residual::new(&builder.pp(i), inputs, outputs, condition, sizes);
        Ok(Self([block(0, inputs)?, block(1, outputs)?]))
    }

    fn forward(&self, x: &Tensor, condition: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, block| block.forward(&x, condition, pass))
    }

    /// [`Pair::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value, condition: &Value) -> Result<Value> {
        self.0.iter().try_fold(x.clone(), |x, block| block.onnx(graph, &x, condition))
    }
}

/// Predicts the noise in actions, given features of the condition.
pub(super) struct UNet1d {
    middle: Pair,
    up: Vec<(Pair, ConvTranspose1d)>,
    down: Vec<(Pair, Option<Conv1d>)>,
    last: ConvBlock,
    out: Conv1d,
}

impl UNet1d {
    /// Registers `mid_modules`, whatever `between` registers, `up_modules`, `down_modules` and
    /// `final_conv`: the original's order.
    pub(super) fn new<T>(
        builder: &Builder,
        actions: usize,
        condition: usize,
        sizes: Sizes<'_>,
        between: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        let [first, .., last] = sizes.down_dims[..] else {
            bail!("`down_dims` needs two widths or more, not {:?}", sizes.down_dims)
        };
        let middle = Pair::new(&builder.pp("mid_modules"), last, last, condition, sizes)?;
        let between = between()?;
        let widths = [&[actions], sizes.down_dims].concat();
        let resampled = |kernel| line(0, 0, kernel, Window { stride: 2, padding: 1 });
        let level = |modules: &str, i: usize, inputs: usize, outputs: usize| {
            let builder = builder.pp(modules).pp(i);
            Pair::new(&builder, inputs, outputs, condition, sizes)
                .map(|pair| (pair, builder.pp(sizes.names.resampling())))
        };
        let mut up = Vec::new();
        for (i, pair) in sizes.down_dims.windows(2).rev().enumerate() {
            let (blocks, builder) = level("up_modules", i, 2 * pair[1], pair[0])?;
            let shape = ConvShape { inputs: pair[0], outputs: pair[0], ..resampled(4) };
            up.push((blocks, ConvTranspose1d::new(&builder, shape)?));
        }
        let mut down = Vec::new();
        for (i, pair) in widths.windows(2).enumerate() {
            let (blocks, builder) = level("down_modules", i, pair[0], pair[1])?;
            let shape = ConvShape { inputs: pair[1], outputs: pair[1], ..resampled(3) };
            let is_last = i + 2 == widths.len();
            let smaller = (!is_last).then(|| Conv1d::new(&builder, shape)).transpose()?;
            down.push((blocks, smaller));
        }
        let end = builder.pp("final_conv");
        let net = Self {
            middle,
            up,
            down,
            last: ConvBlock::new(&end.pp(0), first, first, sizes)?,
            out: Conv1d::new(
                &end.pp(1),
                line(first, actions, 1, Window { stride: 1, padding: 0 }),
            )?,
        };
        Ok((net, between))
    }

    /// x (n, length, actions), condition (n, features) -> (n, length, actions).
    pub(super) fn forward(
        &self,
        x: &Tensor,
        condition: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let condition = Nonlinearity::Mish.forward(condition)?;
        let mut x = x.clone();
        let mut skips = Vec::new();
        for (blocks, smaller) in &self.down {
            x = blocks.forward(&x, &condition, pass)?;
            skips.push(x.clone());
            if let Some(smaller) = smaller {
                x = smaller.forward(&x, pass)?;
            }
        }
        x = self.middle.forward(&x, &condition, pass)?;
        // The skip of the first level is left over, as in the original.
        for ((blocks, larger), skip) in self.up.iter().zip(skips.iter().rev()) {
            x = blocks.forward(&Tensor::cat(&[&x, skip], 2)?, &condition, pass)?;
            x = larger.forward(&x, pass)?;
        }
        self.out.forward(&self.last.forward(&x, pass)?, pass)
    }

    /// [`UNet1d::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value, condition: &Value) -> Result<Value> {
        let condition = Nonlinearity::Mish.onnx(graph, condition);
        let mut x = x.clone();
        let mut skips = Vec::new();
        for (blocks, smaller) in &self.down {
            x = blocks.onnx(graph, &x, &condition)?;
            skips.push(x.clone());
            if let Some(smaller) = smaller {
                x = smaller.onnx(graph, &x, 0)?;
            }
        }
        x = self.middle.onnx(graph, &x, &condition)?;
        for ((blocks, larger), skip) in self.up.iter().zip(skips.iter().rev()) {
            let both = graph.concatenated(&[&x, skip], 2);
            x = blocks.onnx(graph, &both, &condition)?;
            x = larger.onnx(graph, &x)?;
        }
        let x = self.last.onnx(graph, &x)?;
        self.out.onnx(graph, &x, 0)
    }
}
