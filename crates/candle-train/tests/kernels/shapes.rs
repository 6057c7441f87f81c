use candle_train::ops::{self, Window};

use crate::emulator::Arg::{Count, In, Nothing, Out, Words};
use crate::emulator::{Arg, STRIDING, emulator};
use crate::{agree, reference, tensor, values, var};

#[test]
fn images_are_transposed_through_tiles() {
    let Some(gpu) = emulator() else { return };
    for [n, rows, columns] in [[2usize, 3usize, 40usize], [1, 35, 33], [3, 1, 5]] {
        let x = values(1, n * rows * columns);
        let expected = ops::nchw_to_nhwc(&tensor(&x, &[n, rows, 1, columns])).unwrap();
        let mut found = vec![0.0; x.len()];
        let blocks = [(columns as u32).div_ceil(32), (rows as u32).div_ceil(32), n as u32];
        let shape = [blocks[0], blocks[1], blocks[2], 32, 8, 1];
        let arguments = &mut [In(&x), Out(&mut found), Count(rows as u64), Count(columns as u64)];
        gpu.run("transpose_images", shape, arguments);
        assert_eq!(found, crate::flat(&expected));
    }
}

#[test]
fn weights_go_channels_last_and_back() {
    let Some(gpu) = emulator() else { return };
    let (outputs, inputs, taps) = (3usize, 4usize, 6usize);
    let n = outputs * inputs * taps;
    let weight: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let (mut last, mut back) = (vec![0.0; n], vec![0.0; n]);
    let sizes = || [Count(inputs as u64), Count(taps as u64), Count(n as u64)];
    let [a, b, c] = sizes();
    gpu.run("weight_to_channels_last_f32", STRIDING, &mut [In(&weight), Out(&mut last), a, b, c]);
    // Output 2, tap 5, input 1.
    assert_eq!(last[(2 * taps + 5) * inputs + 1], ((2 * inputs + 1) * taps + 5) as f32);
    let [a, b, c] = sizes();
    gpu.run("weight_from_channels_last_f32", STRIDING, &mut [In(&last), Out(&mut back), a, b, c]);
    assert_eq!(back, weight);
}

#[test]
fn pooling_and_its_gradients_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let (n, h, w, c) = (2usize, 7usize, 6usize, 5usize);
    // Few values, so that windows have equal maxima.
    let x: Vec<f32> = values(1, n * h * w * c).iter().map(|v| v.round()).collect();
    for (kernel, stride, padding) in [(3usize, 2usize, 1usize), (2, 2, 0), (3, 1, 1)] {
        let window = Window { stride, padding };
        let (oh, ow) =
            ((h + 2 * padding - kernel) / stride + 1, (w + 2 * padding - kernel) / stride + 1);
        let outputs = n * oh * ow * c;
        let dy = values(2, outputs);
        let sizes =
            |n: usize| [h, w, c, oh, ow, kernel, stride, padding, n].map(|n| Count(n as u64));
        let operand = var(&x, &[n, h, w, c]);
        let (y, dx) = reference(&[&operand], &dy, || ops::max_pool2d(&operand, kernel, window));
        let (mut found, mut chosen, mut gradient) =
            (vec![0.0; outputs], vec![0u32; outputs], vec![0.0; x.len()]);
        let with = |places: Vec<Arg<'_>>, n: usize, name: &str| {
            let mut arguments: Vec<Arg<'_>> = places.into_iter().chain(sizes(n)).collect();
            gpu.run(name, STRIDING, &mut arguments);
        };
        with(vec![In(&x), Out(&mut found), Words(&mut chosen)], outputs, "max_pool");
        assert_eq!(found, y);
        let places = vec![In(&dy), Words(&mut chosen), Out(&mut gradient)];
        with(places, x.len(), "pool_gradient");
        agree("gradient of maxima", &gradient, &dx[0], 1e-6);
        let (y, dx) = reference(&[&operand], &dy, || ops::average_pool2d(&operand, kernel, window));
        with(vec![In(&x), Out(&mut found)], outputs, "average_pool");
        agree("means", &found, &y, 1e-6);
        with(vec![In(&dy), Nothing, Out(&mut gradient)], x.len(), "pool_gradient");
        agree("gradient of means", &gradient, &dx[0], 1e-6);
    }
}

#[test]
fn the_mean_of_an_image_and_its_gradient_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let (n, pixels, c) = (3usize, 20usize, 7usize);
    let (x, dy) = (values(1, n * pixels * c), values(2, n * c));
    let operand = var(&x, &[n, 4, 5, c]);
    let (y, dx) = reference(&[&operand], &dy, || ops::global_average_pool(&operand));
    let (mut found, mut gradient) = (vec![0.0; n * c], vec![0.0; x.len()]);
    let sizes = |n: usize| [pixels, c, n].map(|n| Count(n as u64));
    let [a, b, m] = sizes(n * c);
    gpu.run("global_average_pool", STRIDING, &mut [In(&x), Out(&mut found), a, b, m]);
    agree("means", &found, &y, 1e-6);
    let [a, b, m] = sizes(x.len());
    let arguments = &mut [In(&dy), Out(&mut gradient), a, b, m];
    gpu.run("global_average_pool_gradient", STRIDING, arguments);
    agree("gradient", &gradient, &dx[0], 1e-6);
}
