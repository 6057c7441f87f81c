//! Files that describe a run, of each start that changed something: `run.json` of the first,
//! `run.2.json` of the second ... What an earlier start wrote is never replaced.

use std::path::{Path, PathBuf};

use super::HISTORY;

/// Name of the resolved experiment of a run, which can be run as it is. It is written last: a start
/// without it is none.
pub const RESOLVED: &str = "resolved.toml";
/// Says in a run's folder what the run is: its folders and its plan.
pub const DESCRIPTION: &str = "run.json";
/// Version of `run.json`.
pub const DESCRIPTION_FORMAT: u32 = 1;
/// Says in a run's folder what its data are.
pub const DATA: &str = "data.json";
/// Lists in a run's folder which samples are held out.
pub const SPLIT: &str = "split.csv";

/// A run has a history as soon as its ranks speak; its parent may have died before.
pub fn is_run(folder: &Path) -> bool {
    [HISTORY, RESOLVED].iter().any(|name| folder.join(name).is_file())
}

/// The number of the newest start in `folder` that changed something; 0 if there is none.
pub fn newest_start(folder: &Path) -> u32 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &str| match name.strip_prefix("resolved.")?.strip_suffix("toml")? {
        "" => Some(1),
        number => number.strip_suffix('.')?.parse().ok(),
    };
    let names = entries.map(|entry| entry.file_name());
    names.filter_map(|name| number(name.to_str()?)).max().unwrap_or(0)
}

/// The file `name` of a start: `run.json`, `run.2.json` ...
pub fn of_start(folder: &Path, name: &str, start: u32) -> PathBuf {
    match name.rsplit_once('.') {
        Some((stem, ending)) if start > 1 => folder.join(format!("{stem}.{start}.{ending}")),
        _ => folder.join(name),
    }
}

/// The file `name` as the newest start that wrote one left it; that of the first start if none did.
pub fn newest_of(folder: &Path, name: &str) -> PathBuf {
    let starts = (1..=newest_start(folder)).rev();
    let mut files = starts.map(|start| of_start(folder, name, start));
    files.find(|file| file.is_file()).unwrap_or_else(|| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn the_newest_start_that_wrote_a_file_is_the_one_that_counts() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(newest_start(folder.path()), 0);
        assert_eq!(newest_of(folder.path(), DATA), at("data.json"));
        for name in ["run.json", "data.json", "resolved.toml", "run.2.json", "resolved.2.toml"] {
            files::write_atomic(&at(name), b"").unwrap();
        }
        assert_eq!(newest_start(folder.path()), 2);
        assert_eq!(newest_of(folder.path(), DESCRIPTION), at("run.2.json"));
        assert_eq!(newest_of(folder.path(), DATA), at("data.json"));
        // A start that was killed before it was described.
        files::write_atomic(&at("run.3.json"), b"").unwrap();
        files::write_atomic(&at("resolved.x.toml"), b"").unwrap();
        assert_eq!(newest_of(folder.path(), DESCRIPTION), at("run.2.json"));
        assert_eq!(of_start(folder.path(), RESOLVED, 12), at("resolved.12.toml"));
    }
}
