//! Your own collective backend under ddprun's engine: each rank writes its gradients into a file,
//! reads those of all ranks, and adds them up.
//!
//! ```text
//! cargo run --release --example custom_backend -- examples/custom_backend.toml
//! ```
//!
//! All else, which is small, goes through a group of ddprun's in shared memory. That one also knows
//! who is late, and why the group has ended, if it has.
#![expect(clippy::disallowed_methods, reason = "files that nobody reads after a crash")]

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ddprun::collective::{Backend, Collective, Error, GradientBuffer, JoiningRank, tree_sum};
use ddprun::config::kind::Kind;
use ddprun::kinds::Kinds;
use ddprun::plan::{BackendFacts, SharedMemory};
use ddprun::units::{Rank, WorldSize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// Files of one machine.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FilesBackend {}

impl Kind for FilesBackend {
    const NAME: &'static str = "files";
}

impl Backend for FilesBackend {
    fn facts(&self) -> BackendFacts {
        BackendFacts { one_machine: Some(SharedMemory::Staging), ..BackendFacts::named(Self::NAME) }
    }

    fn open(&self, rank: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error> {
        let control = rank.through_shared_memory()?;
        // Rank 0 makes the folder, and tells the others where it is.
        let own = control
            .rank()
            .is_first()
            .then(TempDir::new)
            .transpose()
            .map_err(|error| failed(&error))?;
        let path = own.as_ref().map_or_else(String::new, |own| own.path().display().to_string());
        let paths = control.all_gather(path.as_bytes())?;
        let folder = PathBuf::from(String::from_utf8_lossy(&paths[0]).into_owned());
        Ok(Arc::new(Files { control, folder, _own: own }))
    }
}

fn failed(error: &io::Error) -> Error {
    Error::Connections { what: error.to_string() }
}

struct Files {
    control: Arc<dyn Collective>,
    folder: PathBuf,
    /// The folder that rank 0 removes in the end.
    _own: Option<TempDir>,
}

impl Collective for Files {
    fn rank(&self) -> Rank {
        self.control.rank()
    }

    fn world_size(&self) -> WorldSize {
        self.control.world_size()
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        Ok(lengths.iter().enumerate().map(|(index, &n)| GradientBuffer::new(index, n)).collect())
    }

    fn all_reduce(&self, segment: &mut GradientBuffer) -> Result<(), Error> {
        let file = |rank: u32| self.folder.join(rank.to_string());
        let bytes: Vec<u8> = segment.iter().flat_map(|value| value.to_le_bytes()).collect();
        fs::write(file(self.rank().0), bytes).map_err(|error| failed(&error))?;
        self.barrier()?; // All have written.
        let read = |rank| Ok(fs::read(file(rank))?.chunks_exact(4).map(value).collect());
        let all = (0..self.world_size().get()).map(read).collect::<io::Result<Vec<Vec<f32>>>>();
        let mut all = all.map_err(|error| failed(&error))?;
        // As ddprun's own backends add: the bits are the same.
        tree_sum(&mut all.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        segment.copy_from_slice(&all[0]);
        self.barrier() // All have read: the files can be written again.
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.control.broadcast(bytes)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.control.all_gather(mine)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.control.barrier()
    }

    fn abort(&self, reason: &str) {
        self.control.abort(reason);
    }

    fn give_up(&self) {
        self.control.give_up();
    }
}

fn value(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// ddprun's kinds, and this one.
pub(crate) fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.backends.add::<FilesBackend>();
    kinds
}

fn main() -> ExitCode {
    ddprun::cli::run(std::env::args_os(), &kinds())
}
