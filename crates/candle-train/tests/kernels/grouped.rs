use candle_train::ops::{self, ConvOptions, SlidingWindow, Weight};
use candle_train::{Convolutions, Precision};

use crate::emulator::Arg::{Count, In, Out, Whole};
use crate::emulator::{Emulator, STRIDING, emulator, merging};
use crate::{agree, reference, values, var};

/// A convolution of groups.
struct Case {
    n: usize,
    sizes: [usize; 2],
    kernel: [usize; 2],
    slides: SlidingWindow,
    /// Channels of each group, in and out.
    channels: [usize; 2],
    groups: usize,
}

impl Case {
    fn inputs(&self) -> usize {
        self.channels[0] * self.groups
    }

    fn outputs(&self) -> usize {
        self.channels[1] * self.groups
    }

    fn out_sizes(&self) -> [usize; 2] {
        let SlidingWindow { stride, padding, dilation } = self.slides;
        [0, 1].map(|axis| {
            let reach = dilation[axis] * (self.kernel[axis] - 1) + 1;
            (self.sizes[axis] + 2 * padding[axis] - reach) / stride[axis] + 1
        })
    }

    /// `GroupedShape` of grouped.cu.
    fn words(&self) -> Vec<u32> {
        let [oh, ow] = self.out_sizes();
        let ([h, w], [kh, kw]) = (self.sizes, self.kernel);
        let SlidingWindow { stride, padding, dilation } = self.slides;
        let sizes = [self.n, h, w, self.inputs(), oh, ow, self.outputs(), kh, kw];
        let all = [&sizes[..], &stride, &padding, &dilation, &[self.groups]].concat();
        all.into_iter().map(|size| size as u32).collect()
    }

    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// The weight as (co, taps, inputs).
    fn channels_last(&self, weight: &[f32]) -> Vec<f32> {
        let (taps, inputs) = (self.taps(), self.channels[0]);
        let at = |i: usize| {
            let (output, tap, input) = (i / taps / inputs, i / inputs % taps, i % inputs);
            weight[(output * inputs + input) * taps + tap]
        };
        (0..weight.len()).map(at).collect()
    }

    /// The gradient of the weight, (co, taps, inputs), summed over chunks of pixels.
    fn weight_gradient(&self, gpu: &Emulator, x: &[f32], dy: &[f32]) -> Vec<f32> {
        let (co, per_output) = (self.outputs(), self.taps() * self.channels[0]);
        let pixels = dy.len() / co;
        let (chunks, per_chunk) = (pixels.div_ceil(17), 17u64);
        let mut partial = vec![0.0; chunks * co * per_output];
        let blocks = [co.div_ceil(32), chunks, per_output].map(|n| n as u32);
        let shape = [blocks[0], blocks[1], blocks[2], 32, 8, 1];
        let words = self.words();
        let sizes = [Whole(&words), Count(pixels as u64), Count(per_chunk)];
        let mut arguments = vec![In(x), In(dy), Out(&mut partial)];
        arguments.extend(sizes);
        gpu.run("grouped_filter_f32", shape, &mut arguments);
        let n = co * per_output;
        let (mut sums, mut dw) = (vec![0.0; n], vec![0.0; n]);
        let arguments = &mut [In(&partial), Out(&mut sums), Count(chunks as u64), Count(n as u64)];
        gpu.run("merge_sums", merging(n), arguments);
        let sizes = [co, per_output, n].map(|n| Count(n as u64));
        let mut arguments = vec![In(&sums), Out(&mut dw)];
        arguments.extend(sizes);
        gpu.run("grouped_order_f32", STRIDING, &mut arguments);
        dw
    }

    fn check(&self, gpu: &Emulator) {
        let ([h, w], [oh, ow], [kh, kw]) = (self.sizes, self.out_sizes(), self.kernel);
        let (ci, co) = (self.inputs(), self.outputs());
        let x = values(1, self.n * h * w * ci);
        let weight = values(2, co * self.channels[0] * self.taps());
        let dy = values(3, self.n * oh * ow * co);
        let (operand, learnt) =
            (var(&x, &[self.n, h, w, ci]), var(&weight, &[co, self.channels[0], kh, kw]));
        let options = ConvOptions {
            window: self.slides,
            groups: self.groups,
            precision: Precision::Fp32,
            convolutions: Convolutions::Direct,
        };
        let (y, gradients) = reference(&[&operand, &learnt], &dy, || {
            ops::conv2d(&operand, &Weight::from(learnt.as_tensor()), None, options)
        });
        let last = self.channels_last(&weight);
        let (mut found, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        let (words, n, m) = (self.words(), Count(dy.len() as u64), Count(x.len() as u64));
        let arguments = &mut [In(&x), In(&last), Out(&mut found), Whole(&words), n];
        gpu.run("grouped_forward_f32", STRIDING, arguments);
        let arguments = &mut [In(&last), In(&dy), Out(&mut dx), Whole(&words), m];
        gpu.run("grouped_data_f32", STRIDING, arguments);
        agree("output", &found, &y, 1e-6);
        agree("gradient of the input", &dx, &gradients[0], 1e-6);
        let expected = self.channels_last(&gradients[1]);
        agree("gradient of the weight", &self.weight_gradient(gpu, &x, &dy), &expected, 2e-6);
    }
}

#[test]
fn convolutions_of_groups_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let slides = |stride, padding, dilation| SlidingWindow { stride, padding, dilation };
    let case = |sizes, kernel, slides, channels, groups| {
        Case { n: 2, sizes, kernel, slides, channels, groups }.check(gpu);
    };
    case([7, 6], [3, 3], slides([1, 1], [1, 1], [1, 1]), [1, 1], 35);
    case([9, 8], [5, 3], slides([2, 1], [2, 1], [1, 1]), [1, 2], 3);
    case([9, 8], [3, 3], slides([1, 2], [2, 2], [2, 1]), [2, 2], 4);
    case([5, 5], [1, 1], slides([2, 2], [0, 0], [1, 1]), [2, 1], 5);
}
