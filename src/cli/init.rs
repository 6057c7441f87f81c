//! `ddprun init [PATH] [FILE]`

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::json;

use crate::cli::answer;
use crate::init::{self, Asked, TableTask, Written};
use crate::kinds::Kinds;
use crate::user_error::{ErrorPage, ExitCode};

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  ddprun init data/photos\n  \
    ddprun init houses.csv --target price\n  ddprun init")]
pub(crate) struct InitArgs {
    /// Your data: class folders of images or recordings, csv or JSON lines (tables, time series,
    /// lists of images), MNIST's files, NeMo manifests, conversations, instructions, a text, token
    /// files, or demonstrations (npz, parquet, LeRobot); also split into `train` and `val`. Without
    /// it the quickstart is written, which needs no data.
    pub(crate) path: Option<PathBuf>,
    /// File to write; by default the data's name with `.toml`, in this folder.
    pub(crate) file: Option<PathBuf>,
    /// Column or key of a table to predict. Default: one with a usual name (target, label, price
    /// ...), else the last one that varies and is no date.
    #[arg(long, value_name = "COLUMN", requires = "path")]
    pub(crate) target: Option<String>,
    /// Whether the target of a table is a class or a number. Default: words, and few different
    /// whole numbers, are classes.
    #[arg(long, value_name = "TASK", requires = "path")]
    pub(crate) task: Option<TableTask>,
}

/// Writes an experiment, and says what it does and what to do with it.
pub(crate) fn init(args: &InitArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let asked = Asked { target: args.target.as_deref(), task: args.task };
    let Written { file, about } =
        init::init(args.path.as_deref(), args.file.clone(), asked, kinds)?;
    answer(
        "experiment",
        || json!({ "file": file, "about": about }),
        || {
            let file = file.display();
            format!(
                "{file} {about}\nlook at it, then: ddprun plan {file}\n                 ddprun {file}\n"
            )
        },
    )
}
