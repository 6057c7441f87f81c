//! PyTorch's side: where its programs are, and how one is started.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python with torch, the folder of the programs, and a folder in which they may write.
pub(crate) struct Python {
    interpreter: PathBuf,
    programs: PathBuf,
    pub(crate) scratch: PathBuf,
}

impl Python {
    /// The interpreter of `$PYTHON`.
    pub(crate) fn open() -> Self {
        let interpreter = std::env::var_os("PYTHON").map(PathBuf::from);
        let interpreter = interpreter.expect("PYTHON names a Python that has torch");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let shared = root.join("../shared/peers");
        let programs = if shared.is_dir() { shared } else { root.join("benches/peers") };
        let scratch = root.join("target/peers");
        std::fs::create_dir_all(&scratch).expect("a folder to write in");
        Self { interpreter, programs, scratch }
    }

    /// `program` (a file name and its words) in one process, or under torchrun with two ranks of
    /// one thread.
    pub(crate) fn command(&self, program: &str, is_distributed: bool) -> Command {
        let mut words = program.split_whitespace();
        let script = self.programs.join(words.next().expect("a program"));
        let mut command = Command::new(&self.interpreter);
        command.current_dir(&self.scratch).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PEERS_TMP", self.scratch.join("tmp"));
        if is_distributed {
            let torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"];
            command.args(torchrun).env("OMP_NUM_THREADS", "1");
        }
        command.arg(script).args(words);
        command
    }

    /// `torch 2.15.0, Python 3.11.2`
    pub(crate) fn version(&self) -> String {
        let text = "import torch, platform; \
                    print('torch', torch.__version__ + ', Python', platform.python_version())";
        let output = Command::new(&self.interpreter).args(["-c", text]).output();
        String::from_utf8_lossy(&output.expect("PYTHON runs").stdout).trim().to_owned()
    }
}
