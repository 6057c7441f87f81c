use crate::emulator::Arg::{Bytes, Count, Doubles, Nothing, Whole};
use crate::emulator::emulator;
use crate::{agree, values};

/// Elements of a parameter, and of a block.
const N: usize = 1003;
const PER_BLOCK: usize = 256;

/// A parameter of `N` values, its gradient, Adam's state of it, and its average.
struct Parameter {
    values: Vec<f32>,
    gradient: Vec<f32>,
    state: [Vec<f32>; 2],
    average: Vec<f32>,
}

impl Parameter {
    fn new() -> Self {
        let squares = values(4, N).iter().map(|v| v * v).collect();
        Self {
            values: values(1, N),
            gradient: values(2, N),
            state: [values(3, N), squares],
            average: values(5, N),
        }
    }

    /// `ParameterAddresses` of optimizer.cu. The gradient begins `shift` values into `shifted`.
    fn addresses(&mut self, shift: usize, shifted: &mut Vec<f32>) -> [u64; 8] {
        *shifted = vec![0.0; shift];
        shifted.extend(&self.gradient);
        let [exp_avg, exp_avg_sq] = &mut self.state;
        let gradient = shifted[shift..].as_mut_ptr() as u64;
        let [values, exp_avg, exp_avg_sq, average] =
            [&mut self.values, exp_avg, exp_avg_sq, &mut self.average]
                .map(|v| v.as_mut_ptr() as u64);
        // There is no third state tensor; it decays, and is not idle.
        [values, gradient, exp_avg, exp_avg_sq, 0, average, N as u64, 1]
    }
}

fn parts() -> Vec<u32> {
    (0..N.div_ceil(PER_BLOCK) as u32).flat_map(|block| [0, block]).collect()
}

fn shape() -> [u32; 6] {
    [N.div_ceil(PER_BLOCK) as u32, 1, 1, 32, 1, 1]
}

/// `Rule` of optimizer.cu, for Adam.
fn adam() -> [u32; 17] {
    let mut words = [0; 17];
    words[0] = 3;
    let numbers: [(usize, f32); 11] = [
        (4, 0.1),   // 1 - beta1
        (5, 0.99),  // beta2
        (6, 0.01),  // 1 - beta2
        (7, 1e-8),  // eps
        (8, 0.01),  // step size
        (9, 0.5),   // root of the bias correction
        (11, 0.9),  // what weight decay leaves
        (13, 0.5),  // factor of the mean
        (14, 0.8),  // factor of clipping
        (15, 0.3),  // limit
        (16, 0.25), // what averages follow by
    ];
    for (place, number) in numbers {
        words[place] = number.to_bits();
    }
    words
}

#[test]
fn parameters_move_four_values_at_a_time_or_one() {
    let Some(gpu) = emulator() else { return };
    let before = Parameter::new();
    for shift in [0, 1] {
        let (mut parameter, mut shifted) = (Parameter::new(), Vec::new());
        let (mut table, mut parts) = (parameter.addresses(shift, &mut shifted), parts());
        gpu.run(
            "update",
            shape(),
            &mut [
                Bytes(table.as_mut_ptr().cast()),
                Bytes(parts.as_mut_ptr().cast()),
                Whole(&adam()),
                Nothing,
                Count(PER_BLOCK as u64),
            ],
        );
        let mut expected = Parameter::new();
        for i in 0..N {
            let g = (before.gradient[i] * 0.5 * 0.8).clamp(-0.3, 0.3);
            let m = before.state[0][i] + 0.1 * (g - before.state[0][i]);
            let v = 0.99 * before.state[1][i] + 0.01 * g * g;
            let value = before.values[i] * 0.9 - 0.01 * (m / (v.sqrt() / 0.5 + 1e-8));
            expected.state[0][i] = m;
            expected.state[1][i] = v;
            expected.values[i] = value;
            expected.average[i] = before.average[i] + 0.25 * (value - before.average[i]);
        }
        agree("values", &parameter.values, &expected.values, 1e-6);
        agree("exp_avg", &parameter.state[0], &expected.state[0], 1e-6);
        agree("exp_avg_sq", &parameter.state[1], &expected.state[1], 1e-6);
        agree("average", &parameter.average, &expected.average, 1e-6);
    }
}

#[test]
fn squares_of_a_gradient_are_added_block_by_block() {
    let Some(gpu) = emulator() else { return };
    for shift in [0, 3] {
        let (mut parameter, mut shifted) = (Parameter::new(), Vec::new());
        parameter.gradient[700] = f32::INFINITY;
        let (mut table, mut parts) = (parameter.addresses(shift, &mut shifted), parts());
        let mut sums = vec![0.0; N.div_ceil(PER_BLOCK)];
        let per_block = Count(PER_BLOCK as u64);
        let (table_at, parts_at) = (table.as_mut_ptr().cast(), parts.as_mut_ptr().cast());
        let arguments = &mut [Bytes(table_at), Bytes(parts_at), Doubles(&mut sums), per_block];
        gpu.run("squares", shape(), arguments);
        for (found, part) in sums.iter().zip(parameter.gradient.chunks(PER_BLOCK)) {
            let expected: f64 = part.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
            assert!(
                *found == expected || (found / expected - 1.0).abs() < 1e-12,
                "{found} {expected}"
            );
        }
    }
}
