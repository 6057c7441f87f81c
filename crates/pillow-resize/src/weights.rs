//! Weights of the input values in each output value: Pillow's `precompute_coeffs`.

use crate::Filter;

/// A filter as a function, and where it ends.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    function: fn(f64) -> f64,
    support: f64,
}

impl Filter {
    /// `None` for nearest neighbours, which are not combined.
    pub(crate) fn kernel(self) -> Option<Kernel> {
        let (function, support): (fn(f64) -> f64, f64) = match self {
            Self::Nearest => return None,
            Self::Bilinear => (bilinear, 1.0),
            Self::Bicubic => (bicubic, 2.0),
            Self::Lanczos => (lanczos, 3.0),
        };
        Some(Kernel { function, support })
    }
}

fn bilinear(x: f64) -> f64 {
    (1.0 - x.abs()).max(0.0)
}

fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    match x {
        _ if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        _ if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    }
}

fn lanczos(x: f64) -> f64 {
    if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { x.sin() / x }
}

/// The weights of each output along one side.
pub(crate) struct Weights {
    /// Weights that are kept of an output; those after its own are none.
    pub(crate) window: usize,
    /// First input of each output, and how many it takes.
    pub(crate) spans: Vec<(usize, usize)>,
    /// `window` of each output.
    pub(crate) values: Vec<f64>,
}

impl Weights {
    /// Computes the weights of `to` outputs from `from` inputs.
    pub(crate) fn new(from: usize, to: usize, kernel: Kernel) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = kernel.support * stretch;
        let shrink = 1.0 / stretch;
        let window = support.ceil() as usize * 2 + 1;
        let mut spans = Vec::with_capacity(to);
        let mut values = vec![0.0; window * to];
        for (output, values) in values.chunks_exact_mut(window).enumerate() {
            let center = (output as f64 + 0.5) * scale;
            // Casts cut towards 0, as those of C.
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let inputs = first..end;
            for (value, input) in values.iter_mut().zip(inputs.clone()) {
                *value = (kernel.function)((input as f64 - center + 0.5) * shrink);
            }
            let sum: f64 = values.iter().sum();
            if sum != 0.0 {
                for value in values.iter_mut() {
                    *value /= sum;
                }
            }
            spans.push((first, inputs.len()));
        }
        Self { window, spans, values }
    }

    /// First input that counts, and how many do.
    pub(crate) fn extent(&self) -> (usize, usize) {
        let first = self.spans.first().map_or(0, |span| span.0);
        let end = self.spans.last().map_or(0, |(first, n)| first + n);
        (first, end - first)
    }
}
