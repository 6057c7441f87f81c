//! Where the library of a launcher may be: beside the launcher, or where the loader looks.

use std::path::{Path, PathBuf};

/// Whose variables the launcher sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Those of PMI: MPICH, Intel MPI, Cray MPICH, and srun with `--mpi=pmi2`.
    Pmi,
    /// Those of `PMIx`, which any library may use: srun with `--mpi=pmix`.
    Pmix,
}

/// The program that started this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Whose variables it sets.
    pub family: Family,
    /// Its file, if that can be found out.
    pub program: Option<PathBuf>,
}

const OPEN_MPI: [&str; 1] = ["libmpi.so.40"];
/// Debian calls MPICH's library by another name.
const MPICH: [&str; 2] = ["libmpi.so.12", "libmpich.so.12"];
/// Version 0 was that of drafts.
const STANDARD: [&str; 2] = ["libmpi_abi.so.1", "libmpi_abi.so.0"];

/// Names of libraries that may belong to a launcher, the likeliest first.
pub(super) fn names(family: Family) -> Vec<&'static str> {
    match family {
        Family::OpenMpi => OPEN_MPI.into_iter().chain(STANDARD).collect(),
        Family::Pmi => MPICH.into_iter().chain(STANDARD).collect(),
        Family::Pmix => OPEN_MPI.into_iter().chain(MPICH).chain(STANDARD).collect(),
    }
}

/// Folders beside that of the launcher.
pub(super) fn folders(launcher: &Launcher) -> Vec<PathBuf> {
    let prefix = launcher.program.as_deref().and_then(Path::parent).and_then(Path::parent);
    let folders = ["lib", "lib64", "lib/release"];
    prefix.map_or(Vec::new(), |prefix| folders.map(|folder| prefix.join(folder)).into())
}

/// Files to open, in this order: a name without a folder is looked up by the loader.
pub(super) fn candidates(launcher: &Launcher) -> Vec<PathBuf> {
    let names = names(launcher.family);
    let beside = folders(launcher);
    let beside = beside.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
    beside.filter(|file| file.exists()).chain(names.iter().map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
