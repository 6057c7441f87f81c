//! How the learning rate follows the global batch size.

use crate::plan::ScalingRule;
use train_numbers::units::GlobalBatchSize;

/// `base_lr (global / base)^e`, e = 0, 1/2 or 1 (Goyal et al. 2017: linear for SGD; square root
/// suits Adam).
pub fn scale_lr(
    rule: ScalingRule,
    base_lr: f64,
    tuned_for: GlobalBatchSize,
    in_use: GlobalBatchSize,
) -> f64 {
    let ratio = f64::from(in_use.get()) / f64::from(tuned_for.get());
    match rule {
        ScalingRule::None => base_lr,
        ScalingRule::Sqrt => base_lr * ratio.sqrt(),
        ScalingRule::Linear => base_lr * ratio,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_global_batch_and_not_the_number_of_ranks() {
        let size = |n| GlobalBatchSize::new(n).unwrap();
        let check = |rule, in_use, expected: f64| {
            let lr = scale_lr(rule, 0.1, size(256), size(in_use));
            assert!((lr - expected).abs() < 1e-15, "{rule:?} {in_use}: {lr}");
        };
        check(ScalingRule::None, 1024, 0.1);
        check(ScalingRule::Linear, 1024, 0.4);
        check(ScalingRule::Linear, 128, 0.05);
        check(ScalingRule::Sqrt, 1024, 0.2);
        check(ScalingRule::Sqrt, 64, 0.05);
        check(ScalingRule::Linear, 256, 0.1);
    }
}
