use crate::emulator::Arg::{Count, Flag, In, Nothing, Single};
use crate::emulator::{STRIDING, emulator};
use crate::{Typed, values};

#[test]
fn gradients_are_added_where_they_are() {
    let Some(gpu) = emulator() else { return };
    for (kind, n) in ["f32", "bf16", "f16"].into_iter().flat_map(|kind| [(kind, 64), (kind, 61)]) {
        let (mut sum, mut more) =
            (Typed::new(kind, &values(1, n)), Typed::new(kind, &values(2, n)));
        let expected: Vec<f32> =
            sum.values().iter().zip(more.values()).map(|(a, b)| a + b).collect();
        let kernel = format!("add_to_{kind}");
        gpu.run(&kernel, STRIDING, &mut [sum.arg(), more.arg(), Count(n as u64)]);
        assert_eq!(sum.values(), Typed::new(kind, &expected).values());
    }
}

#[test]
fn activations_in_half_precision_compute_with_f32() {
    let Some(gpu) = emulator() else { return };
    for (kind, n) in [("bf16", 64), ("bf16", 61), ("f16", 64), ("f16", 61)] {
        for function in 0..12 {
            let x = Typed::new(kind, &values(1, n)).values();
            let dy = Typed::new(kind, &values(2, n)).values();
            let run = |kernel: &str, kind: &'static str, first: &[f32], second: &[f32]| {
                let (mut first, mut second) = (Typed::new(kind, first), Typed::new(kind, second));
                let numbers = [Flag(function), Single(0.1), Count(n as u64)];
                let arguments = [first.arg(), second.arg()].into_iter().chain(numbers);
                gpu.run(kernel, STRIDING, &mut arguments.collect::<Vec<_>>());
                second.values()
            };
            for kernel in ["activation", "activation_gradient"] {
                let exact = run(kernel, "f32", &x, &dy);
                let found = run(&format!("{kernel}_{kind}"), kind, &x, &dy);
                assert_eq!(found, Typed::new(kind, &exact).values(), "{kernel} {function}");
            }
        }
    }
}

/// Rows of a product, and what follows it with a rectifier (1) or GELU (2).
struct Product {
    kind: &'static str,
    function: i32,
    width: usize,
    stride: usize,
}

impl Product {
    const ROWS: usize = 7;

    /// The result and its gradient as `out`: result, what entered the activation, and the gradient
    /// of that.
    fn run(&self, out: &'static str) -> Option<[Vec<f32>; 3]> {
        let gpu = emulator()?;
        let &Self { kind, function, width, stride } = self;
        let (n, all) = (Self::ROWS * width, Self::ROWS * stride);
        let count = |size: usize| Count(size as u64);
        let mut z = Typed::new(kind, &values(1, all));
        let mut y = Typed::new(out, &vec![f32::NAN; n]);
        let mut before = Typed::new(kind, &vec![f32::NAN; n]);
        let bias = values(2, width);
        let kernel = format!("finish_{kind}_as_{out}");
        let sizes = [Flag(function), count(width), count(stride), count(n)];
        let places = [z.arg(), In(&bias), y.arg(), before.arg()];
        gpu.run(&kernel, STRIDING, &mut places.into_iter().chain(sizes).collect::<Vec<_>>());
        // Both types hold them.
        let mut dy = Typed::new(out, &Typed::new(kind, &values(3, n)).values());
        let mut dz = Typed::new(kind, &vec![f32::NAN; all]);
        let entered = if function == 1 { Nothing } else { before.arg() };
        let kernel = format!("unfinish_{kind}_as_{out}");
        let sizes = [Flag(function), count(width), count(stride), count(all)];
        let places = [dy.arg(), y.arg(), entered, dz.arg()];
        gpu.run(&kernel, STRIDING, &mut places.into_iter().chain(sizes).collect::<Vec<_>>());
        Some([y.values(), before.values(), dz.values()])
    }
}

#[test]
fn what_follows_a_product_is_the_same_in_half_precision_as_in_f32() {
    for (width, stride) in [(20, 20), (20, 24), (19, 24)] {
        for (kind, function) in [("bf16", 1), ("bf16", 2), ("f16", 1), ("f16", 2)] {
            let product = Product { kind, function, width, stride };
            let (Some(half), Some(wide)) = (product.run(kind), product.run("f32")) else { return };
            assert_eq!(half, wide, "{kind} {function} {width} of {stride}");
            assert!(half.iter().flatten().all(|value| value.is_finite()));
            let behind = half[2].chunks(stride).flat_map(|row| &row[width..]);
            assert!(behind.into_iter().all(|value| *value == 0.0));
        }
    }
}
