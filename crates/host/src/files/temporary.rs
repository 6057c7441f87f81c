//! Names of temporaries: `.<final name>.<host>-<pid>-<random>.ddprun-tmp`, beside the final one, so
//! that the rename does not cross file systems.
//!
//! A folder may be shared by machines, and by containers whose processes have the same numbers: the
//! host, and the namespace of its processes, tell whose number it is, and what is random keeps two
//! apart that agree in all of these.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{Error, fs_calls, parent_of};

/// The end of every temporary's name.
pub(super) const MARK: &str = ".ddprun-tmp";
/// Signs of the host's name that count.
const HOST_SIGNS: usize = 24;

/// A new name for what will be at `path`. Those that killed processes have left beside it go, the
/// first time that this process writes there.
pub(super) fn temporary_beside(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().ok_or_else(|| Error::NoName { path: path.to_owned() })?;
    sweep_up(parent_of(path));
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{}-{:08x}{MARK}", host(), std::process::id(), random() as u32));
    Ok(path.with_file_name(temporary))
}

/// Removes the temporaries in `folder` of processes of this host that have ended, once in the life
/// of this process. What cannot be removed does no harm.
fn sweep_up(folder: &Path) {
    static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if !SWEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned()) {
        return;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if owner(&name.to_string_lossy()).is_none_or(is_alive) {
            continue;
        }
        drop(fs_calls::remove(&entry.path()));
    }
}

/// True if a file or folder of this name is a temporary, of any process.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(MARK)
}

/// True if the process that a temporary of this name belongs to may still be writing it: it runs on
/// this host. A process of another host is not known of, and its temporaries count as left behind.
pub(super) fn is_in_use(name: &str) -> bool {
    owner(name).is_some_and(|pid| pid != std::process::id() && is_alive(pid))
}

/// True if a process of this host runs. One that has ended keeps its number until its parent looks,
/// which the first process of a container may never do.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The process of this host that gave a temporary its name.
fn owner(name: &str) -> Option<u32> {
    let mut parts = name.strip_suffix(MARK)?.rsplitn(3, '-');
    let _random = parts.next()?;
    let pid = parts.next()?;
    let rest = parts.next()?;
    rest.ends_with(&format!(".{}", host())).then(|| pid.parse().ok())?
}

/// The host's name, as far as file names have room for it, and the namespace of its processes.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = name.chars().map(plain).take(HOST_SIGNS).collect();
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
    format!("{name}_{namespace:x}")
}

/// Random bits for names that must differ between processes and machines; no secret. The standard
/// library draws the keys of its hash maps from the system.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_for_one_file_differ_and_lie_beside_it() {
        let path = Path::new("logs/run/state-1.json");
        let (one, other) = (temporary_beside(path).unwrap(), temporary_beside(path).unwrap());
        assert_ne!(one, other);
        assert_eq!(one.parent(), path.parent());
        let name = one.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(".state-1.json.") && name.ends_with(MARK), "{name}");
        assert_eq!(owner(name), Some(std::process::id()));
    }

    #[test]
    fn the_temporary_of_a_process_that_runs_on_this_host_is_in_use() {
        let name = |host: &str, pid: u32| format!(".tags.json.{host}-{pid}-0011aabb{MARK}");
        let here = host();
        assert!(is_in_use(&name(&here, 1)));
        assert!(!is_in_use(&name(&here, std::process::id())), "this process knows its own");
        assert!(!is_in_use(&name(&here, 1 << 30)), "no process has this number");
        assert!(!is_in_use(&name("elsewhere", 1)));
        assert!(!is_in_use(".tags.json.ddprun-tmp"));
    }

    #[test]
    fn the_temporary_of_a_process_that_has_ended_is_not_in_use_though_nobody_has_waited_for_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let name = format!(".tags.json.{}-{}-0011aabb{MARK}", host(), child.id());
        assert!(is_in_use(&name));
        child.kill().unwrap();
        let began = std::time::Instant::now();
        while is_in_use(&name) {
            assert!(began.elapsed() < std::time::Duration::from_mins(1), "{name}");
        }
        assert!(Path::new(&format!("/proc/{}", child.id())).exists(), "its number is not free");
        child.wait().unwrap();
    }

    #[test]
    fn what_a_killed_process_of_this_host_left_goes_with_the_next_write_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |host: &str, pid: u32| {
            folder.path().join(format!(".report.html.{host}-{pid}-0011aabb{MARK}"))
        };
        let (dead, alive, elsewhere) = (at(&host(), 1 << 30), at(&host(), 1), at("elsewhere", 7));
        std::fs::create_dir(&dead).unwrap();
        for path in [&alive, &elsewhere] {
            std::fs::File::create(path).unwrap();
        }
        crate::files::write_atomic(&folder.path().join("model"), b"weights").unwrap();
        assert_eq!([&dead, &alive, &elsewhere].map(|path| path.exists()), [false, true, true]);
    }

    #[test]
    fn random_bits_differ() {
        let all: std::collections::BTreeSet<u64> = (0..1000).map(|_| random()).collect();
        assert_eq!(all.len(), 1000);
    }
}
