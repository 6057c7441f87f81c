//! Verbs that look after runs: `ls`, `compare`, `tag`, `logs`, `rm`.

mod table;
mod list;
mod compare;
mod tag;
mod logs;
mod remove;

pub(crate) use compare::compare;
pub(crate) use list::ls;
pub(crate) use logs::logs;
pub(crate) use remove::rm;
pub(crate) use tag::tag;
