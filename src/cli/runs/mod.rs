//! Verbs that look after runs: `ls`, `compare`, `tag`, `logs`, `rm`.

mod table;
mod list;
mod change;
mod compare;
mod logs;

pub(crate) use change::{rm, tag};
pub(crate) use compare::compare;
pub(crate) use list::ls;
pub(crate) use logs::logs;
#[cfg(feature = "clusters")]
pub(crate) use logs::{POLL_INTERVAL, print, print_lines, stop_flag};
#[cfg(feature = "clusters")]
pub(crate) use table::aligned;
