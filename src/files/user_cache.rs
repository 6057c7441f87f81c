//! Where the user keeps what can be found out again.

use std::path::PathBuf;

/// `$DDPRUN_CACHE`, else `$XDG_CACHE_HOME/ddprun`, else `~/.cache/ddprun`; `None` where that is
/// `off` or there is no place for it.
pub(crate) fn user_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match variable("DDPRUN_CACHE") {
        Some(off) if off == "off" => None,
        Some(folder) => Some(PathBuf::from(folder)),
        None => match variable("XDG_CACHE_HOME") {
            Some(folder) => Some(PathBuf::from(folder).join("ddprun")),
            None => Some(PathBuf::from(variable("HOME")?).join(".cache/ddprun")),
        },
    }
}
