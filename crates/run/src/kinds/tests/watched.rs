//! What watches a metric, and when that is looked at.

use super::{GOOD, check, good};

#[test]
fn what_waits_for_evaluations_that_never_come_is_refused() {
    let never = "validation.every=never";
    let what =
        "`train/loss` is checked when the model is validated, but `validation.every` is \"never\"";
    check(
        &[never, "early_stopping.patience=3", "early_stopping.monitor=train/loss"],
        &[&format!("`early_stopping.monitor`: {what}")],
    );
    check(
        &[never, "scheduler.name=plateau", "scheduler.monitor=train/loss"],
        &[&format!("`scheduler.monitor`: {what}")],
    );
    check(&[never, "expect.train/loss.at_most=1"], &[&format!("`expect.\"train/loss\"`: {what}")]);
    // What the plan itself asks for, so that a resumed run has it.
    good(GOOD, &[never, "checkpoint.monitor=train/loss"]);
}
