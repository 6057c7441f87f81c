//! Recognised data -> the tables of an experiment, with the reasons for their values.

use crate::init::image_recipes::{digits, images, listed};
use crate::init::images::Photos;
use crate::init::language_recipes::{answers, text};
use crate::init::names::count;
use crate::init::policy_recipes::behaviour;
use crate::init::recipe::Recipe;
use crate::init::recognised::{RecognisedData, Task};
use crate::init::speech_recipes::speech;
use crate::init::table_recipes::{series, table};
use crate::plan::DataFacts;

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
