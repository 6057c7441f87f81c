use crate::emulator::Arg::{Count, Flag, Single};
use crate::emulator::{STRIDING, emulator};
use crate::typed::Typed;
use crate::values;

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
