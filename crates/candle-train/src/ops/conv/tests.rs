//! Every algorithm against sums in f64, over odd shapes, threads and instruction sets.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use proptest::prelude::*;

use super::super::batch_norm::{Activation, batch_norm};
use super::super::storage::tensor;
use super::super::testing::{Collected, check_weights, flat, on_threads, values};
use super::super::weight::{GradientSink, Uses, WeightUse};
use super::algorithm::{Method, Operand};
use super::*;

const FAST: ConvOptions = ConvOptions {
    window: SlidingWindow::square(Window { stride: 1, padding: 0 }),
    groups: 1,
    precision: Precision::Fp32,
    convolutions: Convolutions::Fast,
};

const ALL: [Method; 3] = [Method::Direct, Method::Winograd, Method::Depthwise];

fn applies(method: Method, g: &Geometry) -> bool {
    match method {
        Method::Direct => true,
        Method::Winograd => {
            (g.kh, g.kw, g.stride, g.dilation, g.groups) == (3, 3, [1, 1], [1, 1], 1)
                && g.padding < [3, 3]
        }
        Method::Depthwise => depthwise::applies(g),
    }
}

/// Calls `f` with the places of every product: in x, in the weight, in y.
fn products(g: &Geometry, mut f: impl FnMut(usize, usize, usize)) {
    for (pixel, place) in g.output_pixels(0..g.pixels()).enumerate() {
        for (ky, kx) in (0..g.kh).flat_map(|ky| (0..g.kw).map(move |kx| (ky, kx))) {
            let y = (place.y * g.stride[0] + ky * g.dilation[0]) as isize - g.padding[0] as isize;
            let x = (place.x * g.stride[1] + kx * g.dilation[1]) as isize - g.padding[1] as isize;
            if y < 0 || x < 0 || y >= g.h as isize || x >= g.w as isize {
                continue;
            }
            let input = ((place.image * g.h + y as usize) * g.w + x as usize) * g.ci;
            let inputs = g.ci / g.groups;
            for o in 0..g.co {
                let first = o / (g.co / g.groups) * inputs;
                for c in 0..inputs {
                    let weight = ((o * inputs + c) * g.kh + ky) * g.kw + kx;
                    f(input + first + c, weight, pixel * g.co + o);
                }
            }
        }
    }
}

/// A result in f64.
struct Exact {
    values: Vec<f64>,
    /// Root mean square that the values would have with random signs of the products: a sum of many
    /// products may nearly cancel, its rounding errors do not.
    scale: f64,
}

/// y, dx, dw of the sum over y r, in f64.
fn exact(g: &Geometry, x: &[f32], w: &[f32], r: &[f32]) -> [Exact; 3] {
    let mut values = [r.len(), x.len(), w.len()].map(|len| vec![0.0; len]);
    let mut squares = [0.0; 3];
    products(g, |i, j, k| {
        let [x, w, r] = [x[i], w[j], r[k]].map(f64::from);
        for (n, (place, product)) in [(k, x * w), (i, r * w), (j, r * x)].into_iter().enumerate() {
            values[n][place] += product;
            squares[n] += product * product;
        }
    });
    let mut squares = squares.into_iter();
    values.map(|values| {
        let mean = squares.next().unwrap() / values.len() as f64;
        Exact { values, scale: mean.sqrt().max(1e-3) }
    })
}

struct Case {
    g: Geometry,
    x: Vec<f32>,
    w: Vec<f32>,
    r: Vec<f32>,
}

impl Case {
    fn new(x: [usize; 4], w: [usize; 4], sliding: Sliding) -> Self {
        let g = Geometry::new(x.into(), w.into(), sliding).unwrap();
        Self {
            g,
            x: values("x", 0, x.iter().product()),
            w: values("w", 0, w.iter().product()),
            r: values("r", 0, g.pixels() * g.co),
        }
    }

    fn compute(&self, method: Method, precision: Precision) -> [Vec<f32>; 3] {
        let algorithm = Algorithm { method, precision };
        let [x, r] = [&self.x, &self.r].map(|values| Operand::F32(values.into()));
        [
            algorithm.forward(&self.g, &self.x, &self.w),
            algorithm.backward_data(&self.g, &r, &self.w, Precision::Fp32).wide(),
            algorithm.backward_weight(&self.g, &x, &r),
        ]
    }

    /// Results with operands and results held in bf16.
    fn compute_held(&self, method: Method) -> [Vec<f32>; 3] {
        let algorithm = Algorithm { method, precision: Precision::Bf16 };
        let [x, r] = [&self.x, &self.r].map(|values| {
            values.iter().map(|value| half::bf16::from_f32(*value)).collect::<Vec<_>>()
        });
        let [x, r] = [&x, &r].map(|values| algorithm.operand(Numbers::Bf16(values)));
        let (y, _) = algorithm.forward_saved(&self.g, &x, &self.w, |_| ());
        let dx = algorithm.backward_data(&self.g, &r, &self.w, Precision::Bf16);
        assert!(matches!((&y, &dx), (Saved::Bf16(_), Saved::Bf16(_))));
        [y.wide(), dx.wide(), algorithm.backward_weight(&self.g, &x, &r)]
    }

    /// Largest errors of y, dx and dw, relative to the scale of the exact values.
    fn errors(&self, method: Method) -> [f64; 3] {
        let exact = exact(&self.g, &self.x, &self.w, &self.r);
        let found = self.compute(method, Precision::Fp32);
        std::array::from_fn(|i| {
            let (Exact { values, scale }, found) = (&exact[i], &found[i]);
            assert_eq!(values.len(), found.len());
            assert!(found.iter().all(|value| value.is_finite()));
            let errors = values.iter().zip(found).map(|(e, f)| (e - f64::from(*f)).abs());
            errors.fold(0.0, f64::max) / scale
        })
    }

    /// Largest errors of bf16 values, relative to the exact ones of rounded operands, or to their
    /// scale where that is larger.
    fn bf16_errors(&self, method: Method) -> [f64; 3] {
        let held = |values: &[f32]| rounded(values, Precision::Bf16).into_owned();
        let (x, w, r) = (held(&self.x), held(&self.w), held(&self.r));
        let case = Self { g: self.g, x, w, r };
        let exact = exact(&case.g, &case.x, &case.w, &case.r);
        let found = case.compute(method, Precision::Bf16);
        assert!(found == case.compute_held(method), "{method:?}: as f32, and held in bf16");
        std::array::from_fn(|i| {
            let (Exact { values, scale }, found) = (&exact[i], &found[i]);
            let error = |(e, f): (&f64, &f32)| (e - f64::from(*f)).abs() / e.abs().max(*scale);
            values.iter().zip(found).map(error).fold(0.0, f64::max)
        })
    }
}

fn case() -> impl Strategy<Value = Case> {
    let size = || prop::sample::select(vec![1usize, 2, 3, 4, 5, 7, 8, 11, 13]);
    let kernel = prop::sample::select(vec![(1, 1), (3, 3), (3, 3), (2, 5), (7, 7), (1, 3)]);
    let channels = prop::sample::select(vec![1usize, 2, 3, 5, 8, 16, 17, 31]);
    let groups = prop::sample::select(vec![1usize, 1, 1, 2, 3]);
    let sizes = (1..4usize, size(), size(), channels.clone(), channels, groups);
    (sizes, kernel, 1..4usize, (0..4usize, 1..3usize), any::<bool>()).prop_filter_map(
        "the kernel fits",
        |(sizes, (kh, kw), stride, (padding, dilation), depthwise)| {
            let (n, h, w, inputs, outputs, groups) = sizes;
            let groups = if depthwise && inputs > 1 { inputs } else { groups };
            let [inputs, outputs] = if depthwise { [1, 1] } else { [inputs, outputs] };
            let (stride, dilation) = ([stride; 2], [dilation, 1]);
            let sliding = Sliding { stride, padding: [padding; 2], dilation, groups };
            let reach = (kh - 1) * dilation[0] + 1;
            let fits = h + 2 * padding >= reach && w + 2 * padding >= kw;
            fits.then(|| {
                let weight = [outputs * groups, inputs, kh, kw];
                Case::new([n, h, w, inputs * groups], weight, sliding)
            })
        },
    )
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.g.fmt(f)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_algorithm_agrees_with_sums_in_f64(case in case()) {
        for method in ALL.into_iter().filter(|method| applies(*method, &case.g)) {
            let bound = if method == Method::Winograd { 1e-4 } else { 2e-5 };
            for error in case.errors(method) {
                prop_assert!(error < bound, "{method:?}: {error:e}");
            }
            for error in case.bf16_errors(method) {
                // Half of the last of eight digits.
                prop_assert!(error < 1.0 / 250.0, "bf16 {method:?}: {error:e}");
            }
        }
    }
}

#[test]
fn blocks_parts_and_stages_of_larger_shapes_agree_with_sums_in_f64() {
    let same = |groups| Sliding { stride: [1, 1], padding: [1, 1], dilation: [1, 1], groups };
    let halving =
        |padding| Sliding { stride: [2, 2], padding: [padding; 2], dilation: [1, 1], groups: 1 };
    let border = |padding| Sliding { padding: [padding; 2], ..same(1) };
    for (case, method) in [
        // Several blocks and parts; tiles that end outside the image.
        (Case::new([3, 33, 17, 16], [24, 16, 3, 3], same(1)), Method::Winograd),
        // Kernels that are read once for several blocks, and sums spread over the components.
        (Case::new([50, 5, 3, 352], [341, 352, 3, 3], same(1)), Method::Winograd),
        // Tiles of every size.
        (Case::new([7, 3, 3, 33], [34, 33, 3, 3], same(1)), Method::Winograd),
        (Case::new([7, 6, 2, 33], [34, 33, 3, 3], same(1)), Method::Winograd),
        (Case::new([7, 7, 9, 33], [34, 33, 3, 3], same(1)), Method::Winograd),
        (Case::new([2, 33, 17, 16], [24, 16, 3, 3], same(1)), Method::Direct),
        // A large weight.
        (Case::new([2, 18, 14, 130], [129, 130, 3, 3], halving(1)), Method::Direct),
        (Case::new([2, 17, 14, 300], [450, 300, 1, 1], halving(0)), Method::Direct),
        // A stem.
        (Case::new([2, 37, 31, 3], [19, 3, 7, 7], halving(3)), Method::Direct),
        (Case::new([2, 29, 23, 35], [35, 1, 3, 3], same(35)), Method::Depthwise),
        // A weight whose gradient is a sum that nearly cancels.
        (Case::new([3, 11, 11, 1], [1, 1, 1, 1], border(3)), Method::Direct),
    ] {
        assert!(applies(method, &case.g));
        let bound = if method == Method::Winograd { 1e-4 } else { 2e-5 };
        for error in case.errors(method) {
            assert!(error < bound, "{method:?} {:?}: {error:e}", case.g);
        }
        for error in case.bf16_errors(method) {
            assert!(error < 1.0 / 250.0, "bf16 {method:?} {:?}: {error:e}", case.g);
        }
    }
}

#[test]
fn the_error_of_winograd_stays_within_its_bound_over_the_shapes_of_resnets() {
    println!("largest errors relative to the rms, y dx dw: direct, winograd");
    for (n, size, ci, co) in
        [(2, 32, 64, 64), (2, 16, 128, 128), (2, 8, 256, 256), (4, 4, 512, 512)]
    {
        let sliding = Sliding { stride: [1, 1], padding: [1, 1], dilation: [1, 1], groups: 1 };
        let case = Case::new([n, size, size, ci], [co, ci, 3, 3], sliding);
        let direct = case.errors(Method::Direct);
        let winograd = case.errors(Method::Winograd);
        let show = |errors: [f64; 3]| errors.map(|error| format!("{error:.1e}")).join(" ");
        println!("{size}x{size} {ci} -> {co}: {}, winograd {}", show(direct), show(winograd));
        assert!(direct.iter().all(|&error| error < 1e-5), "{direct:?}");
        assert!(winograd.iter().all(|&error| error < 1e-4), "{winograd:?}");
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let sliding =
        |stride, groups| Sliding { stride: [stride; 2], padding: [1, 1], dilation: [1, 1], groups };
    for (case, method) in [
        (Case::new([9, 13, 11, 17], [33, 17, 3, 3], sliding(1, 1)), Method::Winograd),
        (Case::new([40, 4, 4, 352], [341, 352, 3, 3], sliding(1, 1)), Method::Winograd),
        (Case::new([9, 13, 11, 6], [10, 6, 3, 3], sliding(1, 1)), Method::Direct),
        (Case::new([5, 13, 11, 32], [48, 16, 3, 3], sliding(2, 2)), Method::Direct),
        (Case::new([2, 18, 14, 130], [129, 130, 3, 3], sliding(2, 1)), Method::Direct),
        (Case::new([5, 13, 11, 19], [19, 1, 3, 3], sliding(1, 19)), Method::Depthwise),
    ] {
        for precision in [Precision::Fp32, Precision::Bf16] {
            let bits = |threads| {
                let all = on_threads(threads, || case.compute(method, precision));
                all.map(|values| values.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            };
            let one = bits(1);
            assert!(one == bits(2) && one == bits(3), "{method:?} {precision:?}");
        }
    }
}

#[test]
fn the_rule_takes_winograd_for_3x3_of_stride_1_with_enough_channels() {
    let of = |ci: usize, co, k, stride, groups| {
        let sliding = Sliding { stride: [stride; 2], padding: [1, 1], dilation: [1, 1], groups };
        let g = Geometry::new((1, 8, 8, ci), (co, ci / groups, k, k), sliding).unwrap();
        assert_ne!(
            Algorithm::of(&g, Convolutions::Direct, Precision::Fp32).method,
            Method::Winograd
        );
        Algorithm::of(&g, Convolutions::Fast, Precision::Fp32).method
    };
    assert_eq!(of(64, 64, 3, 1, 1), Method::Winograd);
    assert_eq!(of(3, 64, 3, 1, 1), Method::Direct);
    assert_eq!(of(64, 64, 3, 2, 1), Method::Direct);
    assert_eq!(of(64, 64, 1, 1, 1), Method::Direct);
    assert_eq!(of(64, 64, 3, 1, 2), Method::Direct);
    assert_eq!(of(64, 64, 3, 1, 64), Method::Depthwise);
}

/// The operation against central differences.
fn check(x: &[usize], w: &[usize], window: Window, groups: usize) {
    let wide = |shape: &[usize]| match *shape {
        [n, l, c] => [n, 1, l, c],
        _ => shape.try_into().unwrap(),
    };
    let weight = match *w {
        [co, ci, k] => [co, ci, 1, k],
        _ => w.try_into().unwrap(),
    };
    let line = x.len() == 3;
    let Window { stride, padding } = window;
    let [stride, padding] = [[1, stride], [0, padding]]
        .map(|[row, column]| if line { [row, column] } else { [column; 2] });
    let sliding = Sliding { stride, padding, dilation: [1, 1], groups };
    let g = Geometry::new(wide(x).into(), weight.into(), sliding).unwrap();
    let slow = |v: &[Vec<f64>]| {
        let mut y: Vec<f64> =
            (0..g.pixels() * g.co).map(|i| v.get(2).map_or(0.0, |bias| bias[i % g.co])).collect();
        products(&g, |i, j, k| y[k] += v[0][i] * v[1][j]);
        y
    };
    let convolve = |t: &[Weight]| {
        let (x, bias) = (t[0].tensor(), t.get(2));
        let options = ConvOptions { window: window.into(), groups, ..FAST };
        if line { conv1d(x, &t[1], bias, options) } else { conv2d(x, &t[1], bias, options) }
    };
    check_weights(&[x, w], convolve, slow, 1e-4);
    check_weights(&[x, w, &[g.co]], convolve, slow, 1e-4);
}

#[test]
fn outputs_and_gradients_equal_the_slow_ones_over_odd_shapes() {
    let window = |stride, padding| Window { stride, padding };
    check(&[1, 1, 1, 1], &[1, 1, 1, 1], window(1, 0), 1);
    check(&[2, 5, 4, 3], &[2, 3, 3, 3], window(1, 1), 1);
    check(&[2, 7, 5, 2], &[3, 2, 3, 3], window(2, 1), 1);
    check(&[3, 5, 7, 2], &[5, 2, 1, 1], window(2, 0), 1);
    check(&[1, 9, 8, 1], &[2, 1, 7, 7], window(2, 3), 1);
    check(&[2, 3, 2, 2], &[1, 2, 2, 3], window(3, 2), 1);
    check(&[1, 2, 2, 1], &[1, 1, 5, 5], window(1, 3), 1);
    check(&[1, 5, 6, 16], &[17, 16, 3, 3], window(1, 1), 1);
    check(&[2, 5, 4, 6], &[4, 3, 3, 3], window(1, 1), 2);
    check(&[2, 5, 4, 6], &[6, 1, 3, 3], window(2, 1), 6);
}

#[test]
fn gradients_of_one_dimensional_convolutions_are_right_for_several_samples_and_channels() {
    let window = |stride, padding| Window { stride, padding };
    check(&[3, 7, 4], &[5, 4, 3], window(1, 1), 1);
    check(&[2, 9, 2], &[3, 2, 5], window(2, 2), 1);
    check(&[2, 6, 4], &[6, 2, 3], window(1, 1), 2);
    check(&[2, 6, 3], &[3, 1, 3], window(1, 2), 3);
    check(&[1, 1, 1], &[1, 1, 1], window(1, 0), 1);
}

#[test]
fn half_precision_rounds_operands_results_and_gradients() -> Result<()> {
    let x = Var::from_vec(vec![1.0f32 + 2f32.powi(-11)], (1, 1, 1, 1), &Device::Cpu)?;
    let w = Var::from_vec(vec![300.0f32], (1, 1, 1, 1), &Device::Cpu)?;
    let options = ConvOptions { precision: Precision::Fp16, ..FAST };
    let y = conv2d(&x, &w.as_tensor().into(), None, options)?;
    assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [300.0]);
    let grads = (y * 1e4)?.sum_all()?.backward()?;
    let values = |v: &Var| grads.get(v).unwrap().flatten_all()?.to_vec1::<f32>();
    assert_eq!(values(&x)?, [f32::INFINITY]);
    assert_eq!(values(&w)?, [10000.0]);
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let zeros = |dims: [usize; 4]| Tensor::zeros(&dims, DType::F32, &Device::Cpu).unwrap();
    let try_ = |x, w, groups| {
        conv2d(&zeros(x), &(&zeros(w)).into(), None, ConvOptions { groups, ..FAST }).is_err()
    };
    assert!(try_([1, 2, 2, 1], [1, 1, 3, 3], 1), "a kernel larger than the image");
    assert!(try_([1, 3, 3, 2], [1, 1, 3, 3], 1), "other channels");
    assert!(try_([1, 3, 3, 4], [3, 2, 3, 3], 2), "outputs that make no groups");
    assert!(try_([1, 3, 3, 4], [4, 4, 3, 3], 0), "no group");
    assert!(!try_([1, 3, 3, 4], [4, 2, 3, 3], 2));
}

/// y and the gradients of x, weight, scale, shift and residual of sum(y r), apart and as one
/// operation.
fn both_forms(window: Window, activation: Activation, with_residual: bool) -> [Vec<Vec<u32>>; 2] {
    both_forms_of(Precision::Fp32, window, activation, with_residual)
        .map(|all| all.into_iter().map(|v| v.into_iter().map(f32::to_bits).collect()).collect())
}

fn both_forms_of(
    precision: Precision,
    window: Window,
    activation: Activation,
    with_residual: bool,
) -> [Vec<Vec<f32>>; 2] {
    let (x, w) = ([2, 9, 7, 17], [18, 17, 3, 3]);
    let Window { stride, padding } = window;
    let sliding =
        Sliding { stride: [stride; 2], padding: [padding; 2], dilation: [1, 1], groups: 1 };
    let g = Geometry::new(x.into(), w.into(), sliding).unwrap();
    let options = ConvOptions { window: window.into(), precision, ..FAST };
    let y_shape = [g.n, g.oh, g.ow, g.co];
    [false, true].map(|fused| {
        let shapes: [&[usize]; 5] = [&x, &w, &[g.co], &[g.co], &y_shape];
        let vars: Vec<Var> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| {
                let n = shape.iter().product();
                Var::from_vec(values("both", i as u64, n), *shape, &Device::Cpu).unwrap()
            })
            .collect();
        let collected = Arc::new(Collected::default());
        let sink: Arc<dyn GradientSink> = collected.clone();
        let weight =
            |i: usize| Weight::learnt(&vars[i], WeightUse::new(&sink, i, &Uses::default()));
        let (weight, affine) = (weight(1), [&weight(2), &weight(3)]);
        let residual = with_residual.then(|| vars[4].as_tensor());
        let (y, statistics) = if fused {
            let layer =
                ConvNorm { weight: &weight, affine, options, activation, eps: 1e-5, group: None };
            conv_batch_norm(&vars[0], residual, &layer).unwrap()
        } else {
            let z = conv2d(&vars[0], &weight, None, options).unwrap();
            batch_norm(&z, affine, residual, activation, 1e-5).unwrap()
        };
        let y = super::super::widen(&y).unwrap();
        let r = tensor(values("r", 0, y.elem_count()), &y_shape[..]).unwrap();
        let grads = (&y * r).unwrap().sum_all().unwrap().backward().unwrap();
        let mut all = vec![flat(&y), statistics.mean, statistics.variance];
        all.extend([0, 4].iter().filter_map(|&i| grads.get(&vars[i]).map(flat)));
        all.extend([1, 2, 3].map(|i| flat(&collected.of(i).unwrap())));
        all
    })
}

#[test]
fn one_operation_of_convolution_and_norm_has_the_bits_of_two() {
    for stride in [1, 2] {
        for activation in [Activation::Identity, Activation::Relu] {
            for residual in [false, true] {
                let window = Window { stride, padding: 1 };
                let [apart, together] = both_forms(window, activation, residual);
                assert_eq!(apart.len(), 7 + usize::from(residual));
                assert!(apart == together, "{stride} {activation:?} {residual}");
            }
        }
    }
}

/// Results of sum(y r) by a convolution and a norm in bf16: y, and the gradients of x, weight, scale,
/// shift and residual. `held`: x and residual come in bf16, else as f32 numbers that bf16 holds.
fn in_bf16(
    window: Window,
    activation: Activation,
    with_residual: bool,
    held: DType,
) -> Vec<Tensor> {
    let (x, w) = ([3, 9, 7, 17], [18, 17, 3, 3]);
    let Window { stride, padding } = window;
    let sliding =
        Sliding { stride: [stride; 2], padding: [padding; 2], dilation: [1, 1], groups: 1 };
    let g = Geometry::new(x.into(), w.into(), sliding).unwrap();
    let options = ConvOptions { window: window.into(), precision: Precision::Bf16, ..FAST };
    let y_shape = [g.n, g.oh, g.ow, g.co];
    let var = |i: u64, shape: &[usize], dtype| {
        let values = values("in bf16", i, shape.iter().product());
        let values = rounded(&values, Precision::Bf16).into_owned();
        let values = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        Var::from_tensor(&values.to_dtype(dtype).unwrap()).unwrap()
    };
    let (x, residual) = (var(0, &x, held), var(1, &y_shape, held));
    let learnt = [var(2, &w, DType::F32), var(3, &[g.co], DType::F32), var(4, &[g.co], DType::F32)];
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    let weight = |i: usize| Weight::learnt(&learnt[i], WeightUse::new(&sink, i, &Uses::default()));
    let (weight, affine) = (weight(0), [&weight(1), &weight(2)]);
    let layer = ConvNorm { weight: &weight, affine, options, activation, eps: 1e-5, group: None };
    let added = with_residual.then(|| residual.as_tensor());
    let (y, _) = conv_batch_norm(&x, added, &layer).unwrap();
    assert_eq!(y.dtype(), DType::BF16);
    let r = var(5, &y_shape, DType::F32);
    let sum = super::super::widen(&y).unwrap().mul(&r).unwrap().sum_all().unwrap();
    let grads = sum.backward().unwrap();
    let mut all = vec![y];
    for var in [&x, &residual].into_iter().take(1 + usize::from(with_residual)) {
        let gradient = grads.get(var).unwrap();
        assert_eq!(gradient.dtype(), held);
        all.push(gradient.clone());
    }
    all.extend((0..3).map(|i| collected.of(i).unwrap()));
    all.into_iter()
        .map(|tensor| tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap())
        .collect()
}

#[test]
fn operands_in_bf16_are_those_in_f32_that_bf16_holds() {
    for (stride, activation, residual) in [
        (1, Activation::Relu, true),
        (1, Activation::Identity, false),
        (2, Activation::Relu, false),
        (2, Activation::Identity, true),
    ] {
        let window = Window { stride, padding: 1 };
        let [halves, wide] =
            [DType::BF16, DType::F32].map(|held| in_bf16(window, activation, residual, held));
        assert_eq!(halves.len(), 5 + usize::from(residual));
        for (halves, wide) in halves.iter().zip(&wide) {
            let (halves, wide) = (halves.to_vec1::<f32>(), wide.to_vec1::<f32>());
            assert_eq!(halves.unwrap(), wide.unwrap(), "{stride} {activation:?} {residual}");
        }
    }
}

/// The numbers of convolution, norm and gradients in bf16 are near those in f32: within a few of
/// the last of eight digits of the largest.
#[test]
fn a_convolution_and_its_norm_in_bf16_follow_those_in_f32() {
    let window = Window { stride: 1, padding: 1 };
    let [_, together] = both_forms_of(Precision::Fp32, window, Activation::Identity, true);
    let [_, halves] = both_forms_of(Precision::Bf16, window, Activation::Identity, true);
    for (i, (wide, halves)) in together.iter().zip(&halves).enumerate() {
        let largest = wide.iter().fold(0f32, |most, v| most.max(v.abs()));
        let errors = wide.iter().zip(halves).map(|(a, b)| (a - b).abs());
        let worst = errors.fold(0f32, f32::max);
        println!("result {i}: {worst:.1e} of {largest:.1e}");
        assert!(worst < largest / 40.0, "result {i}: {worst:e} of {largest:e}");
    }
}
