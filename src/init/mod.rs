//! `ddprun init PATH`: a file or folder of data -> an experiment to start from, with its choices
//! explained.
//! ```text
//! path ─recognise─▶ Recognised { data, task } ─survey─▶ DataFacts ─recipe─▶ TOML, which is planned before it is written
//! ```

mod listing;
mod formatting;
mod recognised;
mod parts;
mod entries;
mod columns;
mod images;
mod image_table;
mod numbered;
mod table;
mod tokens;
mod language;
mod speech;
mod behaviour;
mod recognise;
mod recipe;
mod image_recipes;
mod table_recipes;
mod language_recipes;
mod policy_recipes;
mod speech_recipes;
mod recipes;
mod quickstart;
mod command;

pub(crate) use command::{Written, init};
pub(crate) use recognised::{Asked, TableTask};
