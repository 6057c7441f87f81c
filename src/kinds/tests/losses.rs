//! What `[loss]` may say.

use super::*;

#[test]
fn options_are_those_of_the_loss_in_their_ranges() {
    good(GOOD, &["loss.label_smoothing=0"]);
    good(GOOD, &["loss.label_smoothing=1"]);
    good(GOOD, &["loss.name=time_frequency", "loss.alpha=0"]);
    good(GOOD, &["loss.name=huber"]);
    check(
        &["loss.name=mse", "loss.label_smoothing=0.1"],
        &["`loss.label_smoothing`: belongs to `cross_entropy`, but `name` is `mse`"],
    );
    check(
        &["loss.name=huber", "loss.delta=0"],
        &["`loss.delta`: must be greater than 0 and finite, not 0.0"],
    );
    check(&["loss.name=time_frequency"], &["`loss.alpha`: `time_frequency` needs `alpha`"]);
    check(
        &["checkpoint.monitor=val/top5_accuracy"],
        &["`checkpoint.mode`: would keep the worst `val/top5_accuracy`"],
    );
    check(
        &["loss.name=hubre"],
        &["`loss.name`: must be `cross_entropy`, `mse`, `mae`, `huber` or `time_frequency`, not \
            `hubre`"],
    );
}
