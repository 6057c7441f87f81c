//! Recognised data -> the tables of an experiment, with the reasons for their values.

use crate::init::image_recipes::{digits, images, listed};
use crate::init::images::Photos;
use crate::init::language_recipes::{answers, text};
use crate::init::names::count;
use crate::init::policy_recipes::behaviour;
use crate::init::recognised::{RecognisedData, Task};
use crate::init::speech_recipes::speech;
use crate::init::table_recipes::{series, table};
use crate::plan::DataFacts;

/// An experiment without its `[data]` table.
pub(super) struct Recipe {
    /// The data in words.
    pub(super) about: String,
    /// Tables before `[data]`.
    pub(super) model: String,
    /// Text after the options of `[data]`.
    pub(super) rest: String,
}

/// The recipe for `found`.
pub(super) fn recipe(found: &RecognisedData, facts: &DataFacts) -> Recipe {
    let n = format!(
        "{} samples to train on, {} to validate on",
        count(facts.n_train),
        count(facts.n_val)
    );
    match &found.task {
        Task::Images(train) => images(&Photos::of(train), facts),
        Task::ImageTable { answer, side } => listed(*answer, *side, &n, facts),
        Task::Digits => digits(&n),
        Task::Table { classify, is_usual } => table(*classify, *is_usual, &n, facts),
        Task::Series { rows, frequency } => {
            let frequency = frequency.as_ref().map(|it| format!(", frequency {it}"));
            let frequency = frequency.unwrap_or_default();
            series(&format!("{} rows in time{frequency}", count(*rows)), facts)
        }
        Task::Text => text(&format!("a text: {n}"), facts),
        Task::Tokens { largest } => {
            text(&format!("tokens: {n}; the largest is {}", count(*largest)), facts)
        }
        Task::Instructions { base } => answers(&format!("instructions: {n}"), facts, base.as_ref()),
        Task::Chats { base } => answers(&format!("conversations: {n}"), facts, base.as_ref()),
        Task::Behaviour => behaviour(&n, facts),
        Task::Speech { by_name } => speech(&n, *by_name, facts),
    }
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
