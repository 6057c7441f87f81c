//! MPI in this process: one library, found beside the launcher or by the loader, opened once,
//! initialised once, and left at the end.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::collective::mpi::launcher::{Family, Launcher, StartError};
use crate::collective::mpi::library::Library;
use crate::units::{Rank, WorldSize};

/// The first version of the standard with all that is called here.
const NEEDED: i32 = 3;

static LIBRARY: OnceLock<Result<Mutex<Library>, String>> = OnceLock::new();
static WORLD: OnceLock<World> = OnceLock::new();

/// This process among the launcher's.
pub(super) struct World {
    library: &'static Mutex<Library>,
    pub(super) rank: Rank,
    pub(super) size: WorldSize,
    /// True once the others have been told that the group has ended.
    pub(super) has_notified: AtomicBool,
}

impl World {
    /// The library, which one thread at a time may call.
    pub(super) fn library(&self) -> MutexGuard<'_, Library> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that the library of this launcher can be used.
pub fn check(launcher: &Launcher) -> Result<(), StartError> {
    open(launcher).map(|_| ()).map_err(StartError::Unusable)
}

fn open(launcher: &Launcher) -> Result<&'static Mutex<Library>, String> {
    let open = || search(launcher, &candidates(launcher)).map(Mutex::new);
    let opened = LIBRARY.get_or_init(open);
    opened.as_ref().map_err(Clone::clone)
}

/// The first of these files that can be opened, and is no older than is needed.
fn search(launcher: &Launcher, files: &[PathBuf]) -> Result<Library, String> {
    let mut damaged = Vec::new();
    for file in files {
        match Library::open(file) {
            Ok(Library { version, standard: (major, minor), .. }) if major < NEEDED => {
                return Err(format!(
                    "{version} implements MPI {major}.{minor}, and MPI {NEEDED}.0 is needed"
                ));
            }
            Ok(library) => return Ok(library),
            Err(why) if file.is_absolute() => {
                damaged.push(format!("; {} cannot be used: {why}", file.display()));
            }
            Err(_) => {}
        }
    }
    let beside: Vec<String> =
        folders(launcher).iter().map(|folder| folder.display().to_string()).collect();
    let beside =
        if beside.is_empty() { String::new() } else { format!("{}, and ", beside.join(", ")) };
    Err(format!(
        "no MPI library was found: looked for {} in {beside}where the loader looks{}",
        names(launcher.family).join(", "),
        damaged.concat()
    ))
}

/// Initialises MPI in this process, which is `rank` of `world` for its launcher. To be called once,
/// by the main thread.
pub fn start(launcher: &Launcher, rank: Rank, world: WorldSize) -> Result<(), StartError> {
    let library = open(launcher).map_err(StartError::Unusable)?;
    let (version, file, seen) = {
        let library = library.lock().unwrap_or_else(PoisonError::into_inner);
        (library.version.clone(), library.file.display().to_string(), library.initialise())
    };
    let (own, size) = seen.map_err(|why| StartError::Refused { version: version.clone(), why })?;
    WORLD.get_or_init(|| World {
        library,
        rank,
        size: world,
        has_notified: AtomicBool::new(false),
    });
    if size != world.get() as i32 {
        return Err(StartError::OtherLauncher { launched: world, seen: size, version, file });
    }
    if own != rank.0 as i32 {
        return Err(StartError::OtherRank { launched: rank, seen: own });
    }
    Ok(())
}

/// This process among the launcher's, after [`start`].
pub(super) fn world() -> Option<&'static World> {
    WORLD.get()
}

/// Leaves MPI together with the other ranks, where this process has started it: the last thing that
/// it does. Waits for them.
pub fn leave() {
    if let Some(world) = world() {
        world.library().finalise();
    }
}

const OPEN_MPI: [&str; 1] = ["libmpi.so.40"];
/// Debian calls MPICH's library by another name.
const MPICH: [&str; 2] = ["libmpi.so.12", "libmpich.so.12"];
/// Version 0 was that of drafts.
const STANDARD: [&str; 2] = ["libmpi_abi.so.1", "libmpi_abi.so.0"];

/// Names of libraries that may belong to a launcher, the likeliest first.
fn names(family: Family) -> Vec<&'static str> {
    match family {
        Family::OpenMpi => OPEN_MPI.into_iter().chain(STANDARD).collect(),
        Family::Pmi => MPICH.into_iter().chain(STANDARD).collect(),
        Family::Pmix => OPEN_MPI.into_iter().chain(MPICH).chain(STANDARD).collect(),
    }
}

/// Folders beside that of the launcher.
fn folders(launcher: &Launcher) -> Vec<PathBuf> {
    let prefix = launcher.program.as_deref().and_then(Path::parent).and_then(Path::parent);
    let folders = ["lib", "lib64", "lib/release"];
    prefix.map_or(Vec::new(), |prefix| folders.map(|folder| prefix.join(folder)).into())
}

/// Files to open, in this order: a name without a folder is looked up by the loader.
fn candidates(launcher: &Launcher) -> Vec<PathBuf> {
    let names = names(launcher.family);
    let beside = folders(launcher);
    let beside = beside.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
    beside.filter(|file| file.exists()).chain(names.iter().map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_or_damaged_is_told_with_what_was_looked_for() {
        let place = tempfile::tempdir().unwrap();
        let program = Some(place.path().join("bin/mpirun"));
        let launcher = Launcher { family: Family::OpenMpi, program };
        let told = |files: &[PathBuf]| search(&launcher, files).map(|_| ()).unwrap_err();
        let (lib, none) = (place.path().join("lib"), told(&[]));
        let looked = "no MPI library was found: looked for libmpi.so.40, libmpi_abi.so.1";
        assert!(none.starts_with(looked) && none.ends_with("where the loader looks"), "{none}");
        assert!(none.contains(&format!("in {}", lib.display())), "{none}");
        let file = place.path().join("libmpi.so.40");
        std::fs::copy("/proc/self/status", &file).unwrap();
        let damaged = told(&[PathBuf::from("libmpi.so.none"), file.clone()]);
        assert!(damaged.contains(&format!("{} cannot be used: ", file.display())), "{damaged}");
    }

    #[test]
    fn a_library_beside_its_launcher_comes_before_those_of_the_loader() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("lib")).unwrap();
        let file = place.path().join("lib/libmpi.so.12");
        std::fs::File::create(&file).unwrap();
        let program = Some(place.path().join("bin/hydra_pmi_proxy"));
        let found = candidates(&Launcher { family: Family::Pmi, program: program.clone() });
        assert_eq!(found[0], file);
        assert_eq!(found[1], Path::new("libmpi.so.12"));
        let other = candidates(&Launcher { family: Family::OpenMpi, program });
        assert_eq!(other[0], Path::new("libmpi.so.40"));
        let unknown = candidates(&Launcher { family: Family::Pmix, program: None });
        assert_eq!(unknown.len(), 5);
    }
}
