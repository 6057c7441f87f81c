//! Operators that move numbers, and change none.

use super::graph::Graph;
use super::value::{Attribute, Layout, Value};

impl Graph {
    /// x in another shape: 0 keeps the axis at its place, -1 is the rest, as ONNX writes it.
    pub fn reshaped(&mut self, x: &Value, shape: &[i64]) -> Value {
        let mut dims: Vec<Option<usize>> = shape
            .iter()
            .enumerate()
            .map(|(axis, &length)| match length {
                0 => x.dims[axis],
                -1 => None,
                length => Some(length as usize),
            })
            .collect();
        if let Some(rest) = shape.iter().position(|&length| length == -1) {
            dims[rest] = rest_of(&x.dims, &dims, shape);
        }
        let shape = self.integers(shape);
        self.node("Reshape", &[x, &shape], &[], &dims)
    }

    /// Each sample of x (n, ...) in the shape `dims`.
    pub fn shaped(&mut self, x: &Value, dims: &[usize]) -> Value {
        let shape: Vec<i64> = [-1].into_iter().chain(dims.iter().map(|&dim| dim as i64)).collect();
        self.reshaped(x, &shape)
    }

    /// All axes from `axis` on as one.
    pub fn flattened(&mut self, x: &Value, axis: usize) -> Value {
        let shape: Vec<i64> = std::iter::repeat_n(0, axis).chain([-1]).collect();
        self.reshaped(x, &shape)
    }

    /// Axes in another order.
    pub fn transposed(&mut self, x: &Value, order: &[usize]) -> Value {
        let dims: Vec<_> = order.iter().map(|&axis| x.dims[axis]).collect();
        let order = order.iter().map(|&axis| axis as i64).collect();
        self.node("Transpose", &[x], &[Attribute::Ints("perm", order)], &dims)
    }

    /// New axes of length 1 at these places.
    pub fn unsqueezed(&mut self, x: &Value, axes: &[usize]) -> Value {
        let mut dims = x.dims.clone();
        for &axis in axes {
            dims.insert(axis, Some(1));
        }
        let axes = self.integers(&axes.iter().map(|&axis| axis as i64).collect::<Vec<_>>());
        self.node("Unsqueeze", &[x, &axes], &[], &dims)
    }

    /// Removes the axes at these places, which have the length 1.
    pub fn squeezed(&mut self, x: &Value, axes: &[usize]) -> Value {
        let kept = x.dims.iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
        let dims: Vec<_> = kept.map(|(_, dim)| *dim).collect();
        let axes = self.integers(&axes.iter().map(|&axis| axis as i64).collect::<Vec<_>>());
        self.node("Squeeze", &[x, &axes], &[], &dims)
    }

    /// `length` places of an axis, from `start` on.
    pub fn narrowed(&mut self, x: &Value, axis: usize, start: usize, length: usize) -> Value {
        self.stepped(x, axis, [start, start + length], 1)
    }

    /// The places of an axis in a range, or every so many of them.
    pub fn stepped(
        &mut self,
        x: &Value,
        axis: usize,
        [start, end]: [usize; 2],
        step: usize,
    ) -> Value {
        let mut dims = x.dims.clone();
        dims[axis] = Some((end - start).div_ceil(step));
        let [start, end, axis, step] = [start, end, axis, step].map(|n| self.integers(&[n as i64]));
        self.node("Slice", &[x, &start, &end, &axis, &step], &[], &dims)
    }

    /// The first places of an axis, as many as `length`, a vector of one whole number, says.
    pub fn cut(&mut self, x: &Value, axis: usize, length: &Value) -> Value {
        let mut dims = x.dims.clone();
        dims[axis] = None;
        let start = self.integers(&[0]);
        let axis = self.integers(&[axis as i64]);
        self.node("Slice", &[x, &start, length, &axis], &[], &dims)
    }

    /// Values one behind the other along an axis.
    pub fn concatenated(&mut self, values: &[&Value], axis: usize) -> Value {
        let rank = values[0].rank();
        let is_first = values.iter().all(|value| value.layout == Layout::First);
        let mut dims = values[0].dims.clone();
        let lengths: Option<Vec<usize>> = values.iter().map(|value| value.dims[axis]).collect();
        dims[axis] = lengths.map(|lengths| lengths.iter().sum());
        if !is_first {
            let place = Attribute::Int("axis", axis as i64);
            return self.node("Concat", values, &[place], &dims);
        }
        let place = match axis {
            0 => 0,
            axis if axis + 1 == rank => 1,
            axis => axis as i64 + 1,
        };
        let names: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
        let name = self.push("Concat", &names, &[Attribute::Int("axis", place)]);
        Value { name, dims, layout: Layout::First }
    }

    /// The length of an axis, as a vector of one whole number.
    pub fn length(&mut self, x: &Value, axis: usize) -> Value {
        let axis = axis as i64;
        let ends = [Attribute::Int("start", axis), Attribute::Int("end", axis + 1)];
        self.node("Shape", &[x], &ends, &[Some(1)])
    }

    /// A constant (1, ...) for each sample of `like`: (n, ...).
    pub fn for_each_sample(&mut self, x: &Value, like: &Value) -> Value {
        let samples = self.length(like, 0);
        let others: Vec<i64> = x.dims[1..].iter().map(|dim| dim.unwrap_or(1) as i64).collect();
        let others = self.integers(&others);
        let shape = self.concatenated(&[&samples, &others], 0);
        let dims = [&[None], &x.dims[1..]].concat();
        self.node("Expand", &[x, &shape], &[], &dims)
    }

    /// Zeros before and behind along an axis.
    pub fn padded(&mut self, x: &Value, axis: usize, before: usize, behind: usize) -> Value {
        self.padded_by(0.0, x, axis, [before, behind])
    }

    /// So many of a value before and behind along an axis.
    pub fn padded_by(
        &mut self,
        value: f64,
        x: &Value,
        axis: usize,
        [before, behind]: [usize; 2],
    ) -> Value {
        if before + behind == 0 {
            return x.clone();
        }
        let mut dims = x.dims.clone();
        dims[axis] = dims[axis].map(|length| length + before + behind);
        // Of all axes: onnxruntime confuses those of an input `axes` where it moves a transpose.
        let mut pads = vec![0; 2 * x.rank()];
        (pads[axis], pads[x.rank() + axis]) = (before as i64, behind as i64);
        let pads = self.integers(&pads);
        let value = self.scalar(value);
        self.node("Pad", &[x, &pads, &value], &[], &dims)
    }
}

/// The size that -1 stands for, where that is known before it runs. An axis that is not known must be
/// kept.
fn rest_of(before: &[Option<usize>], after: &[Option<usize>], shape: &[i64]) -> Option<usize> {
    let is_kept = |axis: usize| shape.get(axis) == Some(&0);
    let whole = (0..before.len()).filter(|&axis| !is_kept(axis)).map(|axis| before[axis]);
    let given = (0..after.len()).filter(|&axis| shape[axis] > 0).map(|axis| after[axis]);
    Some(product(whole)? / product(given)?.max(1))
}

fn product(mut dims: impl Iterator<Item = Option<usize>>) -> Option<usize> {
    dims.try_fold(1, |product, dim| Some(product * dim?))
}
