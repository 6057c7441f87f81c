//! `ddprun init PATH`: a file or folder of data -> an experiment to start from, with its choices
//! explained.
//! ```text
//! path ─recognise─▶ Recognised { data, task } ─survey─▶ DataFacts ─recipe─▶ TOML, which is planned before it is written
//! ```

mod formatting;
mod recognised;
mod columns;
mod table;
mod images;
mod recognise;
mod recipe;
mod command;

pub(crate) use command::init;
