//! The functions: their values and slopes at one number.

use crate::ops::math::{self, erf, exp, logistic};

/// A function of one number. Both methods are `#[inline(always)]` and free of branches.
pub(in crate::ops) trait Function: Copy + Send + Sync + 'static {
    /// Name in messages, by which GPUs find their kernel, too.
    const NAME: &'static str;

    fn value(self, x: f32) -> f32;

    /// The derivative at x.
    fn slope(self, x: f32) -> f32;

    /// The gradient of x, given that of the value.
    #[inline(always)]
    fn gradient(self, x: f32, g: f32) -> f32 {
        g * self.slope(x)
    }

    /// Parameter of the function besides x, for kernels of GPUs.
    #[cfg(feature = "cuda")]
    fn parameter(self) -> f32 {
        0.0
    }
}

/// max(x, 0).
#[derive(Clone, Copy)]
pub(in crate::ops) struct Relu;

impl Function for Relu {
    const NAME: &'static str = "relu";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        // Not `max`, which would turn NaN into 0.
        if x < 0.0 { 0.0 } else { x }
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { 0.0 }
    }

    #[inline(always)]
    fn gradient(self, x: f32, g: f32) -> f32 {
        // Not a product, which would turn an infinite gradient into NaN where the unit is closed.
        if x > 0.0 { g } else { 0.0 }
    }
}

/// x where it is positive, else a multiple of x.
#[derive(Clone, Copy)]
pub(super) struct LeakyRelu(pub(super) f32);

impl Function for LeakyRelu {
    const NAME: &'static str = "leaky-relu";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        if x > 0.0 { x } else { x * self.0 }
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { self.0 }
    }

    #[cfg(feature = "cuda")]
    fn parameter(self) -> f32 {
        self.0
    }
}

/// min(max(x, 0), 6); NaN stays NaN.
#[inline(always)]
fn from_0_to_6(x: f32) -> f32 {
    let x = if x < 0.0 { 0.0 } else { x };
    if x > 6.0 { 6.0 } else { x }
}

/// min(max(x, 0), 6).
#[derive(Clone, Copy)]
pub(super) struct Relu6;

impl Function for Relu6 {
    const NAME: &'static str = "relu6";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        from_0_to_6(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > 0.0 && x < 6.0 { 1.0 } else { 0.0 }
    }

    #[inline(always)]
    fn gradient(self, x: f32, g: f32) -> f32 {
        if x > 0.0 && x < 6.0 { g } else { 0.0 }
    }
}

/// relu6(x + 3) / 6.
#[derive(Clone, Copy)]
pub(super) struct Hardsigmoid;

impl Function for Hardsigmoid {
    const NAME: &'static str = "hardsigmoid";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        from_0_to_6(x + 3.0) / 6.0
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        if x > -3.0 && x < 3.0 { 1.0 / 6.0 } else { 0.0 }
    }
}

/// x relu6(x + 3) / 6.
#[derive(Clone, Copy)]
pub(super) struct Hardswish;

impl Function for Hardswish {
    const NAME: &'static str = "hardswish";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * from_0_to_6(x + 3.0) / 6.0
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let inside = x / 3.0 + 0.5;
        let above = if x < 3.0 { inside } else { 1.0 };
        if x > -3.0 { above } else { 0.0 }
    }
}

/// x Φ(x).
#[derive(Clone, Copy)]
pub(in crate::ops) struct Gelu;

impl Gelu {
    /// The normal distribution function.
    #[inline(always)]
    fn distribution(x: f32) -> f32 {
        0.5 + 0.5 * erf(x * std::f32::consts::FRAC_1_SQRT_2)
    }
}

impl Function for Gelu {
    const NAME: &'static str = "gelu";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * Self::distribution(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let density = 0.398_942_3 * exp(-0.5 * x * x);
        x.mul_add(density, Self::distribution(x))
    }
}

/// GELU by the tangent.
#[derive(Clone, Copy)]
pub(in crate::ops) struct GeluTanh;

impl GeluTanh {
    const CUBIC: f32 = 0.044_715;
    /// sqrt(2 / π)
    const SCALE: f32 = 0.797_884_6;

    #[inline(always)]
    fn tangent(x: f32) -> f32 {
        math::tanh(Self::SCALE * x * (Self::CUBIC * x).mul_add(x, 1.0))
    }
}

impl Function for GeluTanh {
    const NAME: &'static str = "gelu-tanh";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        0.5 * x * (1.0 + Self::tangent(x))
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let tangent = Self::tangent(x);
        let inner = Self::SCALE * (3.0 * Self::CUBIC * x).mul_add(x, 1.0);
        0.5 * (1.0 + tangent) + 0.5 * x * (1.0 - tangent * tangent) * inner
    }
}

/// x / (1 + e^-x).
#[derive(Clone, Copy)]
pub(super) struct Silu;

impl Function for Silu {
    const NAME: &'static str = "silu";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * logistic(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let gate = logistic(x);
        gate * x.mul_add(1.0 - gate, 1.0)
    }
}

/// x tanh(ln(1 + e^x)).
#[derive(Clone, Copy)]
pub(super) struct Mish;

impl Mish {
    /// tanh(ln(1 + e^x)) = ((1 + e^x)^2 - 1) / ((1 + e^x)^2 + 1), which is 1 to f32 from x = 10 on.
    #[inline(always)]
    fn gate(x: f32) -> f32 {
        let e = exp(if x > 20.0 { 20.0 } else { x });
        let n = e * (e + 2.0);
        n / (n + 2.0)
    }
}

impl Function for Mish {
    const NAME: &'static str = "mish";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * Self::gate(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let gate = Self::gate(x);
        gate + x * (1.0 - gate * gate) * logistic(x)
    }
}

/// 1 / (1 + e^-x).
#[derive(Clone, Copy)]
pub(super) struct Sigmoid;

impl Function for Sigmoid {
    const NAME: &'static str = "sigmoid";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        logistic(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let y = logistic(x);
        y * (1.0 - y)
    }
}

/// The hyperbolic tangent.
#[derive(Clone, Copy)]
pub(super) struct Tanh;

impl Function for Tanh {
    const NAME: &'static str = "tanh";

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        math::tanh(x)
    }

    #[inline(always)]
    fn slope(self, x: f32) -> f32 {
        let y = math::tanh(x);
        1.0 - y * y
    }
}
