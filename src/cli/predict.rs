//! `ddprun predict [RUN | CHECKPOINT] INPUT...`: predictions of a run's best checkpoint for
//! unlabelled files.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::cli::answer;
use crate::cli::args::PredictArgs;
use crate::cli::node_args::role;
use crate::kinds::Kinds;
use crate::launch::Role;
use crate::launch::rank_env::ExternalRank;
use crate::predict::{self, Format, Job, Progress};
use crate::record::{is_json, json_line, progress_bar, to_stderr};
use crate::runs::{choose_checkpoint, split_inputs};
use crate::terminal::escape_lines;
use crate::units::BatchSize;
use crate::user_error::{ErrorPage, ExitCode};

/// Predicts, and prints or writes the rows; exit 3 if every one has an error.
pub(crate) fn predict(args: &PredictArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let launched = launched(args)?;
    let here = std::env::current_dir().unwrap_or_default();
    let (run, inputs) = split_inputs(&args.words)?;
    let chosen = choose_checkpoint(run, args.model.latest, args.model.strict)?;
    let mut plan = chosen.run()?.plan.clone();
    if let Some(size) = args.model.batch_size.and_then(BatchSize::new) {
        plan.val_batch_size = size;
    }
    // Looking for the run may have led elsewhere.
    let is_here = std::env::current_dir().is_ok_and(|now| now == here);
    let seen = |path: PathBuf| if is_here { path } else { here.join(path) };
    let paths: Vec<PathBuf> = inputs.into_iter().map(seen).collect();
    let out = args.out.clone().map(seen);
    let job = Job {
        plan: &plan,
        opened: &chosen.opened,
        kinds,
        paths: &paths,
        ranks: args.nproc_per_node as usize,
        launched: launched.as_ref(),
        top: args.model.top.map(|k| k as usize),
        out: out.as_deref().map(|path| (path, args.overwrite)),
        form: if is_json() { Format::Jsonl } else { Format::Csv },
    };
    // One rank of a launcher speaks for all; which one writes the file is not known before.
    let is_heard = launched.as_ref().is_none_or(|place| place.rank.is_first());
    // Rows on a terminal show by themselves how far it is, and a bar would stand among them.
    let hides_bar = out.is_none() && io::stdout().is_terminal();
    let line = "{bar:30} {human_pos}/{human_len}  {per_sec}  {eta} left";
    let bar = if is_heard && !hides_bar { progress_bar(line) } else { ProgressBar::hidden() };
    let mut stdout = Stdout::default();
    let summary = predict::run(&job, &mut stdout, &|progress| show(&bar, progress, is_heard));
    bar.finish_and_clear();
    if stdout.is_closed {
        return Ok(ExitCode::Ok);
    }
    let Some(summary) = summary? else { return Ok(ExitCode::Ok) };
    print_end(&summary, out.as_deref());
    let predict::JobSummary { rows, failed, .. } = &summary;
    answer("predicted", || json!({ "rows": rows, "failed": failed, "file": out }), String::new)?;
    Ok(if summary.rows > 0 && summary.failed == summary.rows {
        ExitCode::Data
    } else {
        ExitCode::Ok
    })
}

/// The rank of this process, if another launcher has started it.
fn launched(args: &PredictArgs) -> Result<Option<ExternalRank>, ErrorPage> {
    let Role::Foreign(place) = role()? else { return Ok(None) };
    let refuse = |what: &str, help: &str| Err(ErrorPage::refused(what, help));
    if args.out.is_none() {
        return refuse(
            "another launcher has started this rank, but its rows have no common file",
            "name one with `--out FILE`, in a folder that all ranks see",
        );
    }
    if args.nproc_per_node > 1 {
        return refuse(
            "another launcher has started this rank, and `--nproc-per-node` asks for more",
            "leave one of them out",
        );
    }
    Ok(Some(place))
}

/// Rows on stdout; a reader that has seen enough (`| head`) is no failure, but the end.
#[derive(Default)]
struct Stdout {
    is_closed: bool,
    /// The begun row that is to be an object for `--json`.
    begun: Vec<u8>,
}

impl Stdout {
    /// The complete rows, as objects or escaped for a terminal: they hold names from others.
    fn shown(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if !is_json() && !io::stdout().is_terminal() {
            return None;
        }
        self.begun.extend_from_slice(bytes);
        let end = self.begun.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let whole: Vec<u8> = self.begun.drain(..end).collect();
        let whole = String::from_utf8_lossy(&whole);
        if !is_json() {
            return Some(escape_lines(&whole).into_owned().into_bytes());
        }
        let object = |row: &str| {
            let row: Value = serde_json::from_str(row).unwrap_or_default();
            json_line("prediction", json!({ "prediction": row }))
        };
        Some(whole.lines().map(object).collect::<String>().into_bytes())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.shown(bytes) {
            Some(shown) => io::stdout().write_all(&shown).map(|()| bytes.len()),
            None => io::stdout().write(bytes),
        };
        written.inspect_err(|error| self.is_closed |= error.kind() == ErrorKind::BrokenPipe)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = io::stdout().flush();
        flushed.inspect_err(|error| self.is_closed |= error.kind() == ErrorKind::BrokenPipe)
    }
}

/// Shows the progress of the predictions.
fn show(bar: &ProgressBar, progress: Progress<'_>, is_heard: bool) {
    match progress {
        Progress::Began { items, done } => {
            if done > 0 && is_heard {
                to_stderr(&format!("continuing: {done} of {items} inputs are done"));
            }
            bar.set_length(items as u64);
            bar.set_position(done as u64);
        }
        Progress::Done(n) => bar.inc(n as u64),
        Progress::Noted(note) if is_heard => to_stderr(&format!("warning: {note}")),
        Progress::Noted(_) => {}
    }
}

/// Prints inputs that could not be read, and the file that was written.
fn print_end(summary: &predict::JobSummary, out: Option<&Path>) {
    let predict::JobSummary { rows, failed, first, .. } = summary;
    if *failed > 0 {
        let noun = if *rows == 1 { "row" } else { "rows" };
        let have = if *failed == 1 { "has" } else { "have" };
        to_stderr(&format!("warning: {failed} of {rows} {noun} {have} an error:"));
        for line in first {
            to_stderr(&format!("  {line}"));
        }
        if *failed > first.len() {
            to_stderr(&format!("  ... and {} more", failed - first.len()));
        }
    }
    if let Some(out) = out {
        let noun = if *rows == 1 { "row" } else { "rows" };
        to_stderr(&format!("wrote `{}`: {rows} {noun}", out.display()));
    }
}
