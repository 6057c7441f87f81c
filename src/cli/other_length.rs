//! A run that goes on with another length: not shorter than it is already, and what that does to
//! its learning rate.

use crate::checkpoint;
use crate::cli::Refusal;
use crate::config::Change;
use crate::config::schema::Train;
use crate::kinds::Kinds;
use crate::launch::exit_code as exit;
use crate::optim::{Plateau, Schedule};
use crate::plan::{Plan, RunFolders, shown};
use crate::runs::StoredRun;

/// Keys that end a run after a number of steps.
const LENGTHS: [&str; 2] = ["train.epochs", "train.steps"];

/// Refuses a length that the run is past already: nothing is left to train, and the run would not
/// go on from where it stopped any more.
pub(crate) fn refuse_shorter(
    run: &RunFolders,
    changed: &[Change],
    train: &Train,
    steps_per_epoch: u64,
) -> Result<(), Refusal> {
    let asked: Vec<&str> = lengths(changed).collect();
    if asked.is_empty() {
        return Ok(());
    }
    let least = |done: u64| least(&asked, train, steps_per_epoch, done);
    let found = checkpoint::all(&run.checkpoints)
        .map_err(|error| Refusal::of(exit::CHECKPOINT, &error, None))?;
    if !found.iter().any(|found| least(found.step).is_some()) {
        return Ok(());
    }
    // Where no checkpoint is whole, the ranks say what is wrong with each.
    let Ok(newest) = checkpoint::newest(&run.checkpoints) else { return Ok(()) };
    let done = newest.state.step;
    least(done).map_or(Ok(()), |(key, least)| Err(too_short(key, least, done, steps_per_epoch)))
}

/// Those of the changed keys that end a run after a number of steps.
fn lengths(changed: &[Change]) -> impl Iterator<Item = &str> {
    let keys = changed.iter().map(|change| change.key.as_str());
    keys.filter(|key| LENGTHS.contains(key))
}

/// The key among those `asked` for that would end the run before `done` steps, and its least value
/// that would not.
fn least(
    asked: &[&str],
    train: &Train,
    steps_per_epoch: u64,
    done: u64,
) -> Option<(&'static str, u64)> {
    let limits = [train.epochs.zip(Some(steps_per_epoch)), train.steps.zip(Some(1))];
    let mut limits = LENGTHS.into_iter().zip(limits).filter(|(key, _)| asked.contains(key));
    limits.find_map(|(key, limit)| {
        let (_, steps) = limit.filter(|(count, steps)| count.saturating_mul(*steps) < done)?;
        Some((key, done.div_ceil(steps)))
    })
}

fn too_short(key: &str, least: u64, done: u64, steps_per_epoch: u64) -> Refusal {
    // Rounded down: what is not done is not said to be.
    let epochs = (done * 10 / steps_per_epoch) as f64 / 10.0;
    let page = format!(
        "error: this run is past `{key}` already: {done} steps ({epochs} epochs) are done\n  \
         do: set `{key}` to at least {least}, or leave it out"
    );
    Refusal::new(exit::REFUSED, page)
}

/// Says how another length moves the learning rate of a run that has a past, if it does.
pub(crate) fn moved_lr(
    description: &StoredRun,
    changed: &[Change],
    now: &Plan,
    kinds: &Kinds,
) -> Option<String> {
    lengths(changed).next()?;
    let before = &description.plan;
    let newest = checkpoint::all(&description.run.checkpoints).ok()?.pop()?;
    let state = checkpoint::open(&newest.path).ok()?.state;
    let is_own = before.swa.is_none() && now.swa.is_none();
    let done = Some(state.step).filter(|step| *step > 0 && is_own)?;
    let lr = |plan: &Plan| lr_of_step(plan, done, &state.plateau, kinds);
    let (then, lr) = (shown(lr(before)?), shown(lr(now)?));
    (then != lr).then(|| {
        let (rule, total) = (&now.schedule.rule.name, now.length.total_steps);
        format!(
            "changed: the learning rate at step {done}: {then} -> {lr}, since `{rule}` now spans \
             {total} steps"
        )
    })
}

/// The learning rate of the step `number`, from 1.
fn lr_of_step(plan: &Plan, number: u64, plateau: &Plateau, kinds: &Kinds) -> Option<f64> {
    let scheduler = kinds.schedulers.build(&plan.schedule.rule).ok()?;
    let schedule = Schedule::new(scheduler.as_ref(), &plan.schedule, plan.optimizer.lr);
    Some(schedule.rates(number - 1, plateau).lr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Experiment;

    fn train(epochs: Option<u64>, steps: Option<u64>) -> Train {
        let text = "schema = 1\n[model]\nname = \"mlp\"\n[data]\nname = \"shapes\"\n\
                    [train]\nepochs = 2\nbatch_size = 4\n";
        let path = std::path::Path::new("x.toml");
        let loaded = crate::config::load_text(path, text, &[], &Kinds::default().vocabulary());
        let Experiment { train, .. } = loaded.unwrap().experiment;
        Train { epochs, steps, ..train }
    }

    #[test]
    fn a_run_may_end_where_it_is_and_not_before() {
        let least = |epochs, steps, done| least(&LENGTHS, &train(epochs, steps), 10, done);
        assert_eq!(least(Some(2), None, 43), Some(("train.epochs", 5)));
        assert_eq!(least(Some(4), None, 40), None);
        assert_eq!(least(Some(4), None, 41), Some(("train.epochs", 5)));
        assert_eq!(least(Some(9), Some(42), 43), Some(("train.steps", 43)));
        assert_eq!(least(None, Some(43), 43), None);
        assert_eq!(super::least(&["train.steps"], &train(Some(2), None), 10, 43), None);
    }

    #[test]
    fn what_is_said_of_a_length_names_the_least_one() {
        let page = too_short("train.epochs", 5, 43, 10).to_string();
        assert!(page.contains("43 steps (4.3 epochs) are done"), "{page}");
        assert!(page.contains("set `train.epochs` to at least 5, or leave it out"), "{page}");
    }
}
