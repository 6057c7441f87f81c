use candle_train::ops::{self, Window};

use crate::emulator::Arg::{Count, In, Nothing, Out, Words};
use crate::emulator::{Arg, Emulator, STRIDING, emulator};
use crate::{Typed, agree, reference, tensor, values, var};

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

/// Windows of a pooling over images of these sizes, and what the kernels ask for.
struct Pool {
    x: [usize; 4],
    outputs: [usize; 2],
    kernel: usize,
    window: Window,
}

impl Pool {
    fn new(x: [usize; 4], kernel: usize, stride: usize, padding: usize) -> Self {
        let along = |size: usize| (size + 2 * padding - kernel) / stride + 1;
        let window = Window { stride, padding };
        Self { x, outputs: [along(x[1]), along(x[2])], kernel, window }
    }

    /// Values of the result.
    fn len(&self) -> usize {
        self.x[0] * self.outputs[0] * self.outputs[1] * self.x[3]
    }

    /// Runs a kernel with a block for each of `rows` rows of each image.
    fn run(&self, gpu: &Emulator, kernel: &str, rows: usize, places: Vec<Arg<'_>>) {
        let ([n, h, w, c], [oh, ow]) = (self.x, self.outputs);
        let Window { stride, padding } = self.window;
        let sizes = [h, w, c, oh, ow, self.kernel, stride, padding].map(|n| Count(n as u64));
        let mut arguments: Vec<Arg<'_>> = places.into_iter().chain(sizes).collect();
        gpu.run(kernel, [(n * rows) as u32, 1, 1, 32, 1, 1], &mut arguments);
    }
}

/// Windows that overlap, that touch, that leave out edges, for one channel at a time and for four.
fn pools() -> Vec<Pool> {
    let windows = [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 1), (1, 1, 0)];
    let of = |c: usize| windows.map(|(k, stride, pad)| Pool::new([2, 7, 6, c], k, stride, pad));
    [5, 8].into_iter().flat_map(of).collect()
}

/// Few values, so that windows have equal maxima; half precision holds them.
fn images(n: usize) -> Vec<f32> {
    values(1, n).iter().map(|v| v.round()).collect()
}

#[test]
fn pooling_and_its_gradients_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    for pool in pools() {
        let (x, dy) = (images(pool.x.iter().product()), values(2, pool.len()));
        let (operand, window) = (var(&x, &pool.x), pool.window);
        let (y, dx) =
            reference(&[&operand], &dy, || ops::max_pool2d(&operand, pool.kernel, window));
        let (mut found, mut chosen) = (vec![0.0; dy.len()], vec![0u32; dy.len()]);
        let mut gradient = vec![0.0; x.len()];
        let places = vec![In(&x), Out(&mut found), Words(&mut chosen)];
        pool.run(gpu, "max_pool_f32", pool.outputs[0], places);
        assert_eq!(found, y);
        let places = vec![In(&dy), Words(&mut chosen), Out(&mut gradient)];
        pool.run(gpu, "pool_gradient_f32", pool.x[1], places);
        agree("gradient of maxima", &gradient, &dx[0], 1e-6);
        let means = || ops::average_pool2d(&operand, pool.kernel, window);
        let (y, dx) = reference(&[&operand], &dy, means);
        pool.run(gpu, "average_pool_f32", pool.outputs[0], vec![In(&x), Out(&mut found)]);
        agree("means", &found, &y, 1e-6);
        let places = vec![In(&dy), Nothing, Out(&mut gradient)];
        pool.run(gpu, "pool_gradient_f32", pool.x[1], places);
        agree("gradient of means", &gradient, &dx[0], 1e-6);
    }
}

#[test]
fn pooling_in_half_precision_computes_with_f32() {
    let Some(gpu) = emulator() else { return };
    for (kind, pool) in ["bf16", "f16"]
        .into_iter()
        .flat_map(|kind| pools().into_iter().map(move |pool| (kind, pool)))
    {
        let run = |kind: &'static str| {
            // Both kinds hold them.
            let dy: Vec<f32> =
                values(2, pool.len()).iter().map(|v| (v * 32.0).round() / 32.0).collect();
            let mut x = Typed::new(kind, &images(pool.x.iter().product()));
            let mut dy = Typed::new(kind, &dy);
            let (mut y, mut dx) = (Typed::new(kind, &dy.values()), Typed::new(kind, &x.values()));
            let mut chosen = vec![0u32; pool.len()];
            let places = vec![x.arg(), y.arg(), Words(&mut chosen)];
            pool.run(gpu, &format!("max_pool_{kind}"), pool.outputs[0], places);
            let places = vec![dy.arg(), Words(&mut chosen), dx.arg()];
            pool.run(gpu, &format!("pool_gradient_{kind}"), pool.x[1], places);
            let maxima = [y.values(), dx.values()];
            pool.run(gpu, &format!("average_pool_{kind}"), pool.outputs[0], vec![x.arg(), y.arg()]);
            let places = vec![dy.arg(), Nothing, dx.arg()];
            pool.run(gpu, &format!("pool_gradient_{kind}"), pool.x[1], places);
            [maxima, [y.values(), dx.values()]].concat()
        };
        for (found, exact) in run(kind).into_iter().zip(run("f32")) {
            assert_eq!(found, Typed::new(kind, &exact).values(), "{kind}");
        }
    }
}

#[test]
fn the_mean_of_an_image_and_its_gradient_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let (n, pixels, c) = (3usize, 20usize, 7usize);
    let (x, dy) = (images(n * pixels * c), values(2, n * c));
    let operand = var(&x, &[n, 4, 5, c]);
    let (y, dx) = reference(&[&operand], &dy, || ops::global_average_pool(&operand));
    let sizes = |n: usize| [pixels, c, n].map(|n| Count(n as u64));
    for (kind, limit) in [("f32", 1e-6), ("bf16", 4e-3), ("f16", 5e-4)] {
        let (mut x, mut found) = (Typed::new(kind, &x), vec![0.0; n * c]);
        let [a, b, m] = sizes(n * c);
        let kernel = format!("global_average_pool_{kind}");
        gpu.run(&kernel, STRIDING, &mut [x.arg(), Out(&mut found), a, b, m]);
        agree("means", &found, &y, 1e-6);
        let [a, b, m] = sizes(n * pixels * c);
        let arguments = &mut [In(&dy), x.arg(), a, b, m];
        gpu.run(&format!("global_average_pool_gradient_{kind}"), STRIDING, arguments);
        agree("gradient", &x.values(), &dx[0], limit);
    }
}
