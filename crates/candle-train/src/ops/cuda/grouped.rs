//! Convolutions of groups of few channels, as depthwise ones, and others of groups that cuDNN
//! refuses: its interface promises nothing about them with channels last.

use candle_core::{DType, Result};

use super::columns::{Chunks, merge_sums};
use super::cudnn::Direction;
use super::gpu::{Gpu, Grid};
use super::kernel_args::{Address, Arg, GroupedShape, args, suffix, whole};
use crate::ops::conv::Geometry;

/// Most channels of a group, in and out, whose convolution is computed here; more are cuDNN's.
const MOST_CHANNELS: usize = 2;

impl From<&Geometry> for GroupedShape {
    fn from(g: &Geometry) -> Self {
        let u = |size: usize| size as u32;
        Self {
            n: u(g.n),
            h: u(g.h),
            w: u(g.w),
            ci: u(g.ci),
            oh: u(g.oh),
            ow: u(g.ow),
            co: u(g.co),
            kh: u(g.kh),
            kw: u(g.kw),
            stride: g.stride.map(u),
            padding: g.padding.map(u),
            dilation: g.dilation.map(u),
            groups: u(g.groups),
        }
    }
}

/// True if a convolution is computed here.
pub(super) fn is_ours(g: &Geometry) -> bool {
    g.groups > 1 && g.group_inputs().max(g.co / g.groups) <= MOST_CHANNELS
}

/// Enqueues it: `operands` and `out` as [`super::cudnn::run`]'s.
pub(super) fn run(
    gpu: &Gpu,
    direction: Direction,
    g: &Geometry,
    [a, b]: [Address; 2],
    out: Address,
) -> Result<()> {
    let name = suffix(out.dtype)?;
    let shape = Arg::Grouped(g.into());
    let (kernel, n) = match direction {
        Direction::Forward => ("grouped_forward", g.pixels() * g.co),
        Direction::Data => ("grouped_data", g.n * g.h * g.w * g.ci),
        Direction::Filter => return filter(gpu, g, [a, b], out),
    };
    let arguments = [a.into(), b.into(), out.into(), shape, n.into()];
    gpu.launch(&format!("{kernel}_{name}"), Grid::over(n), &arguments)
}

/// The gradient of the weight, (co, taps, inputs).
fn filter(gpu: &Gpu, g: &Geometry, [x, dy]: [Address; 2], out: Address) -> Result<()> {
    let name = suffix(out.dtype)?;
    let shape = Arg::Grouped(g.into());
    let per_output = g.taps() * g.group_inputs();
    let chunks = Chunks::over(g.pixels(), g.co, per_output);
    let partial = gpu.storage(DType::F32, chunks.count * g.weight_len())?;
    let at = whole(&partial)?;
    let arguments =
        [x.into(), dy.into(), at.into(), shape, g.pixels().into(), chunks.per_chunk.into()];
    let grid = Grid::columns(g.co, chunks.count).deep(per_output);
    gpu.launch(&format!("grouped_filter_{name}"), grid, &arguments)?;
    let sums = merge_sums(gpu, at, chunks.count, g.weight_len())?;
    let n = g.weight_len();
    let arguments = args![whole(&sums)?, out, g.co, per_output, n];
    gpu.launch(&format!("grouped_order_{name}"), Grid::over(n), arguments)
}
