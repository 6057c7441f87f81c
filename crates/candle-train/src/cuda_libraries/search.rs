//! Search for CUDA's libraries: pure, but for the folders that it lists.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Locations of libraries, as the environment gives them.
#[derive(Default)]
pub(super) struct SearchEnvironment {
    /// Python's environments: `VIRTUAL_ENV`, `CONDA_PREFIX`, and those whose `python3` is on
    /// `PATH`.
    pub(super) python: Vec<PathBuf>,
    /// Toolkits: `CUDA_HOME`, `CUDA_PATH`.
    pub(super) toolkits: Vec<PathBuf>,
    /// Folder of packages of the system, and of toolkits without a name in the environment: `/usr/local`.
    pub(super) system: PathBuf,
}

impl SearchEnvironment {
    /// Environment of this process.
    pub(super) fn of_process() -> Self {
        let named = |names: &[&str]| {
            let values = names.iter().filter_map(std::env::var_os);
            values.filter(|value: &OsString| !value.is_empty()).map(PathBuf::from).collect()
        };
        let mut python: Vec<PathBuf> = named(&["VIRTUAL_ENV", "CONDA_PREFIX"]);
        python.extend(prefixes_of_python(&std::env::var_os("PATH").unwrap_or_default()));
        Self {
            python,
            toolkits: named(&["CUDA_HOME", "CUDA_PATH"]),
            system: PathBuf::from("/usr/local"),
        }
    }

    /// Folders in which libraries are looked for, in order, after those of the system's loader
    /// (`LD_LIBRARY_PATH` and its cache): wheels of Python's environments, toolkits, those of the
    /// system, and where WSL and containers put drivers.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        for prefix in self.python.iter().chain([&self.system]) {
            for python in beginning_with(&prefix.join("lib"), "python3") {
                for packages in ["site-packages", "dist-packages"] {
                    let wheels = beginning_with(&python.join(packages).join("nvidia"), "");
                    folders.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
                }
            }
            folders.push(prefix.join("lib"));
        }
        folders.extend(self.toolkits.iter().map(|toolkit| toolkit.join("lib64")));
        let newest_first = beginning_with(&self.system, "cuda").into_iter().rev();
        folders.extend(newest_first.map(|toolkit| toolkit.join("lib64")));
        folders.push(self.system.join("nvidia/lib64"));
        folders.push(PathBuf::from("/usr/lib/wsl/lib"));
        folders.retain(|folder| folder.is_dir());
        folders
    }
}

/// The `sys.prefix` of each `python3` on a search path.
pub(super) fn prefixes_of_python(path: &OsStr) -> Vec<PathBuf> {
    let programs = std::env::split_paths(path).filter(|bin| bin.join("python3").exists());
    programs.filter_map(|bin| Some(bin.parent()?.to_owned())).collect()
}

/// Paths under which to look for `file`: wherever the system's loader looks, then in `folders`. An older
/// version of a library is looked for only where a newer one is nowhere.
pub(super) fn candidates(file: &str, folders: &[PathBuf]) -> Vec<PathBuf> {
    let existing = folders.iter().map(|folder| folder.join(file)).filter(|path| path.exists());
    std::iter::once(PathBuf::from(file)).chain(existing).collect()
}

/// Entries of `folder` whose names begin with `prefix`, by name.
pub(super) fn beginning_with(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let fits = |name: OsString| name.to_string_lossy().starts_with(prefix);
    let mut paths: Vec<PathBuf> =
        entries.filter(|entry| fits(entry.file_name())).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Message that none of `files` was found: where it was looked for, and where it comes from.
pub(super) fn missing(
    files: &[&str],
    folders: &[PathBuf],
    damaged: &[String],
    source: &str,
) -> String {
    let files = files.join(" or ");
    if let Some(why) = damaged.first() {
        return format!("{files} is there and cannot be opened: {why}");
    }
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let beyond =
        if folders.is_empty() { String::new() } else { format!(", {}", folders.join(", ")) };
    format!("{files} not found in LD_LIBRARY_PATH, the system's folders{beyond}; {source}")
}
