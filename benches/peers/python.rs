//! PyTorch's side: where its programs are, and how one is started.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python with torch, the folder of the programs, and a folder in which they may write.
pub(crate) struct Python {
    interpreter: PathBuf,
    programs: PathBuf,
    pub(crate) scratch: PathBuf,
    /// An allocator that keeps pages, if the machine has one.
    allocator: Option<PathBuf>,
}

/// Folders in which distributions put libraries.
const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];
/// PyTorch's guide for CPUs recommends them.
const ALLOCATORS: [&str; 4] =
    ["libtcmalloc.so.4", "libtcmalloc_minimal.so.4", "libtcmalloc.so", "libjemalloc.so.2"];

/// The first of [`ALLOCATORS`] that is there; `$PEERS_ALLOCATOR` names another file.
fn allocator() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PEERS_ALLOCATOR") {
        return Some(path.into());
    }
    let places = ALLOCATORS.iter().flat_map(|name| LIBRARIES.map(|at| Path::new(at).join(name)));
    places.into_iter().find(|path| path.is_file())
}

impl Python {
    /// The interpreter of `$PYTHON`.
    pub(crate) fn open() -> Self {
        let interpreter = std::env::var_os("PYTHON").map(PathBuf::from);
        let interpreter = interpreter.expect("PYTHON names a Python that has torch");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let programs = root.join("peers");
        let scratch = root.join("../target/peers");
        std::fs::create_dir_all(&scratch).expect("a folder to write in");
        Self { interpreter, programs, scratch, allocator: allocator() }
    }

    /// `program` (a file name and its words) in one process, or under torchrun with two ranks of
    /// one thread.
    pub(crate) fn command(&self, program: &str, is_distributed: bool) -> Command {
        let mut words = program.split_whitespace();
        let script = self.programs.join(words.next().expect("a program"));
        let mut command = Command::new(&self.interpreter);
        command.current_dir(&self.scratch).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PEERS_TMP", self.scratch.join("tmp"));
        if let Some(library) = &self.allocator {
            command.env("LD_PRELOAD", library);
        }
        if is_distributed {
            let torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"];
            command.args(torchrun).env("OMP_NUM_THREADS", "1");
        }
        command.arg(script).args(words);
        command
    }

    /// `torch 2.15.0, Python 3.11.2, with libtcmalloc.so.4`
    pub(crate) fn version(&self) -> String {
        let text = "import torch, platform; \
                    print('torch', torch.__version__ + ', Python', platform.python_version())";
        let output = Command::new(&self.interpreter).args(["-c", text]).output();
        let version = String::from_utf8_lossy(&output.expect("PYTHON runs").stdout).into_owned();
        let library = self.allocator.as_ref().and_then(|path| path.file_name());
        let allocator = library.map_or_else(
            || "without tcmalloc or jemalloc (none found)".to_owned(),
            |name| format!("with {}", name.to_string_lossy()),
        );
        format!("{}, {allocator}", version.trim())
    }
}
