//! `environment.json`: the machine and the program of a run. Each start of the run, also a resume,
//! appends an entry.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Error, NewerFormat};
use crate::files;

/// Name of the file in the run's folder.
pub const NAME: &str = "environment.json";

/// Version of the written form.
const FORMAT: u32 = 1;

/// One start of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    pub time: Timestamp,
    /// Version of ddprun.
    pub ddprun: String,
    /// Target that ddprun was built for: `x86_64-linux-gnu`.
    pub target: String,
    /// `debug` if ddprun was built with debug assertions, else `release`.
    pub profile: String,
    /// Commit of the repository that holds the working folder.
    pub git_revision: Option<String>,
    /// Name of the machine.
    pub host: String,
    /// Operating system and its version.
    pub system: String,
    /// Model of the processor.
    pub cpu: Option<String>,
    /// Cores that this process may use.
    pub cores: usize,
    /// Working folder.
    pub folder: PathBuf,
    /// Program and arguments.
    pub command_line: Vec<String>,
    /// CUDA libraries in use: name and file; empty without a GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuda_libraries: Vec<(String, PathBuf)>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    starts: Vec<Environment>,
}

impl Environment {
    /// Describes this machine and process. Anything unknown is left empty.
    pub fn measure() -> Self {
        let folder = std::env::current_dir().unwrap_or_default();
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Self {
            time: Timestamp::now(),
            ddprun: env!("CARGO_PKG_VERSION").to_owned(),
            target: target(),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            git_revision: folder.ancestors().find_map(|above| git_revision(&above.join(".git"))),
            host: text(system.nodename()),
            system: format!("{} {}", text(system.sysname()), text(system.release())),
            cpu: fs::read_to_string("/proc/cpuinfo").ok().and_then(|info| cpu_model(&info)),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            folder,
            command_line: std::env::args_os().map(|arg| arg.to_string_lossy().into()).collect(),
            cuda_libraries: cuda_libraries(),
        }
    }

    /// Adds this start to `environment.json` in the run's folder.
    ///
    /// # Errors
    ///
    /// The file cannot be written. An unreadable file is replaced.
    pub fn write(self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(NAME);
        let old = files::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut written = old.unwrap_or(Written { format: FORMAT, starts: Vec::new() });
        written.starts.push(self);
        let bytes = serde_json::to_vec_pretty(&written)
            .map_err(|reason| Error::Encode { what: NAME, reason })?;
        Ok(files::write_atomic(&path, &bytes)?)
    }
}

/// Reads the starts of the run in `folder`, oldest first; empty if the file is missing.
pub fn read(folder: &Path) -> Result<Vec<Environment>, Error> {
    let path = folder.join(NAME);
    let bytes = match files::read(&path) {
        Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(files::Error::io("read", &path))?,
    };
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    NewerFormat::check(&path, value.get("format").and_then(serde_json::Value::as_u64), FORMAT)?;
    Ok(serde_json::from_value(value).map_or(Vec::new(), |written: Written| written.starts))
}

#[cfg(feature = "cuda")]
fn cuda_libraries() -> Vec<(String, PathBuf)> {
    let opened = crate::cuda_libraries::opened();
    opened.into_iter().map(|(name, file)| (name.to_owned(), file)).collect()
}

#[cfg(not(feature = "cuda"))]
fn cuda_libraries() -> Vec<(String, PathBuf)> {
    Vec::new()
}

fn target() -> String {
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    format!("{}-{}-{libc}", std::env::consts::ARCH, std::env::consts::OS)
}

/// Follows `HEAD` to its commit without running git.
fn git_revision(git: &Path) -> Option<String> {
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let Some(reference) = head.strip_prefix("ref: ").map(str::trim) else {
        return Some(head.trim().to_owned());
    };
    let loose = fs::read_to_string(git.join(reference)).ok();
    loose.map(|commit| commit.trim().to_owned()).or_else(|| {
        let packed = fs::read_to_string(git.join("packed-refs")).ok()?;
        let line = packed.lines().find(|line| line.split(' ').nth(1) == Some(reference))?;
        line.split(' ').next().map(str::to_owned)
    })
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_adds_an_entry() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            Environment::measure().write(folder.path()).unwrap();
        }
        let written: Written =
            serde_json::from_slice(&fs::read(folder.path().join(NAME)).unwrap()).unwrap();
        assert_eq!((written.format, written.starts.len()), (1, 2));
        let start = &written.starts[1];
        assert!(start.cores > 0 && !start.command_line.is_empty() && !start.host.is_empty());
    }

    #[test]
    fn the_commit_is_found_loose_packed_and_detached() {
        let folder = tempfile::tempdir().unwrap();
        let git = folder.path();
        let write = |name: &str, text: &str| files::write_atomic(&git.join(name), text.as_bytes());
        assert_eq!(git_revision(git), None);
        write("HEAD", "0123abcd\n").unwrap();
        assert_eq!(git_revision(git).as_deref(), Some("0123abcd"));
        write("HEAD", "ref: refs/heads/main\n").unwrap();
        write("packed-refs", "# pack-refs\n77aa refs/heads/main\n88bb refs/heads/other\n").unwrap();
        assert_eq!(git_revision(git).as_deref(), Some("77aa"));
        files::create_folder(&git.join("refs/heads")).unwrap();
        write("refs/heads/main", "99cc\n").unwrap();
        assert_eq!(git_revision(git).as_deref(), Some("99cc"));
    }

    #[test]
    fn the_processor_is_read_from_cpuinfo() {
        let info = "processor\t: 0\nmodel name\t: AMD EPYC 9454\nflags\t: sse\n";
        assert_eq!(cpu_model(info).as_deref(), Some("AMD EPYC 9454"));
        assert_eq!(cpu_model("processor : 0"), None);
    }
}
