//! What every recipe has: its texts, batch size, epochs and optimizer.

/// An experiment without its `[data]` table.
pub(super) struct Recipe {
    /// The data in words.
    pub(super) about: String,
    /// Tables before `[data]`.
    pub(super) model: String,
    /// Text after the options of `[data]`.
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

/// The optimizer of networks that are trained from scratch for some epochs. Its warm-up is a share
/// of the run, so that `train.epochs=1` runs, too.
pub(super) const ADAMW: &str = "[optimizer]
name = \"adamw\"
lr = 1e-3
weight_decay = 0.05

[scheduler]
name = \"cosine\"
interval = \"step\"
warmup = \"5 %\"                # of the run
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_power_of_two_of_which_an_epoch_has_eight() {
        for (n_train, batch) in [(3, 2), (16, 2), (100, 8), (256, 32), (1_000_000, 32)] {
            assert_eq!(batch_size(n_train, 32), batch, "{n_train} samples");
        }
    }
}
