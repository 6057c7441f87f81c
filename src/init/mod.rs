//! `ddprun init PATH`: a file or folder of data -> an experiment to start from, with its choices
//! explained.
//! ```text
//! path ─recognise─▶ RecognisedData { data, task } ─survey─▶ DataFacts ─recipe─▶ TOML, which is planned before it is written
//! ```

mod names;
mod recognised;
mod parts;
mod entries;
mod columns;
mod images;
mod image_table;
mod numbered;
mod table;
mod sequences;
mod speech;
mod recognise;
mod recipe;
mod image_recipes;
mod table_recipes;
mod language_recipes;
mod policy_recipes;
mod speech_recipes;
mod recipes;
mod command;

pub(crate) use command::{WrittenExperiment, init};
pub(crate) use recognised::{InitRequest, TableTask};
