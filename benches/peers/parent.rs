//! Our side: plans the work and starts its ranks as `ddprun` does.

use std::process::ExitCode;

use ddprun::internals::launch::{self, Console, Ended, Program, Start};
use ddprun::kinds::Kinds;
use ddprun::plan::RunFolders;

use crate::rank::Task;
use crate::work::{Shape, Work};

/// Runs `task` in `shape`; rank 0 prints its line to our standard output.
pub(crate) fn train(work: &'static Work, shape: &Shape, task: Task) -> ExitCode {
    let plan = work.plan(shape, &Kinds::default());
    let folder = std::env::temp_dir().join(format!("ddprun-peers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let (id, checkpoints) = ("peers".to_owned(), folder.clone());
    let folders = RunFolders { id, logs: folder.clone(), checkpoints };
    let (repetitions, seconds) = (task.repetitions.to_string(), task.seconds.to_string());
    let words =
        ["worker", work.name, "--repetitions", &repetitions, "--seconds", &seconds].map(Into::into);
    let path = std::env::current_exe().expect("a path");
    let program = Program { path, args: words.into(), env: vec![] };
    let start =
        Start { resume: false, program, console: Console::Terminal, smaller: vec![], waker: None };
    let ended = launch::run(&plan, &folders, &start, &mut |_| ());
    if let Err(failure) = &ended {
        eprintln!("{failure}; see {}", folder.display());
        return ExitCode::FAILURE;
    }
    // A folder that stays is no failure of the measurement.
    drop(std::fs::remove_dir_all(&folder));
    if matches!(ended, Ok(Ended::Completed)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
