//! What all recipes have: three parts of an experiment, and numbers that follow from its samples.

/// An experiment without its `[data]` table.
pub(super) struct Recipe {
    /// What the data are, in words.
    pub(super) about: String,
    /// Tables before `[data]`.
    pub(super) model: String,
    /// What follows the options of `[data]`.
    pub(super) rest: String,
}

/// A power of two of which an epoch has at least eight.
pub(super) fn batch_size(n_train: usize, most: usize) -> usize {
    let fits = (n_train / 8).clamp(2, most);
    1 << fits.ilog2()
}

/// Epochs that see some 60,000 samples in all.
pub(super) fn epochs(n_train: usize) -> usize {
    (60_000 / n_train.max(1)).clamp(10, 100)
}

/// The optimizer of networks that are trained from scratch for some epochs. Its warm-up is a third
/// of an epoch at most, so that `train.epochs=1` runs on two ranks, too.
pub(super) fn adamw(n_train: usize, batch_size: usize) -> String {
    let warmup = (n_train / batch_size.max(1) / 3).clamp(1, 500);
    let steps = if warmup == 1 { "step" } else { "steps" };
    format!(
        "[optimizer]
name = \"adamw\"
lr = 1e-3
weight_decay = 0.05

[scheduler]
name = \"cosine\"
interval = \"step\"
warmup = \"{warmup} {steps}\"
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_power_of_two_of_which_an_epoch_has_eight() {
        for (n_train, batch) in [(3, 2), (16, 2), (100, 8), (256, 32), (1_000_000, 32)] {
            assert_eq!(batch_size(n_train, 32), batch, "{n_train} samples");
        }
    }

    #[test]
    fn a_warm_up_ends_within_the_first_epoch() {
        for (n_train, warmup) in [(16, "2 steps"), (10, "1 step"), (320, "3 steps")] {
            let text = adamw(n_train, batch_size(n_train, 32));
            assert!(text.contains(&format!("warmup = \"{warmup}\"")), "{n_train}: {text}");
        }
        assert!(adamw(10_000_000, 32).contains("\"500 steps\""));
    }
}
