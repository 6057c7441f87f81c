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

#[test]
fn mixup_is_checked() {
    good(
        GOOD,
        &["data.mixup.mixup_alpha=0.8", "data.mixup.cutmix_alpha=1", "data.mixup.mode=pair"],
    );
    check(
        &["data.mixup.mixup_alpha=-1", "data.mixup.prob=2"],
        &[
            "`data.mixup.mixup_alpha`: must be at least 0 and finite, not -1.0",
            "`data.mixup.prob`: must be from 0 to 1, not 2.0",
        ],
    );
    check(&["data.mixup.mode=elem"], &["`data.mixup.mode`: must be `batch` or `pair`, not `elem`"]);
}
