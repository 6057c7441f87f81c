//! Verbs that look after runs: `ls`, `compare`, `tag`, `logs`, `rm`.

mod table;
mod remove;
mod list;
mod compare;
mod tag;
mod logs;

pub(crate) use compare::compare;
pub(crate) use list::ls;
pub(crate) use logs::{POLL_INTERVAL, logs, print, print_lines, stop_flag};
pub(crate) use remove::rm;
pub(crate) use table::aligned;
pub(crate) use tag::tag;
