//! `command` in `logging.sinks`

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::jsonl::encode;
use crate::child_process;
use crate::config::kind::Kind;
use crate::event::Finished;
use crate::record::Error;
use crate::record::sink::{Delivery, OpenSink, Sink, SinkStart, Stamped};

/// Time for the program to end after the last event.
const TIME_TO_END: Duration = Duration::from_secs(4);
/// Time for a program that has nothing left to read to be gone.
const SOON: Duration = Duration::from_millis(200);

/// a program of yours that gets the events of the run on its standard input, as the lines of
/// `events.jsonl`. The first line has `"event": "run"` and the run's id, name, folders, tags and
/// configuration. The end of the input is the end of the run; a program that is too slow loses
/// events, but costs no step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// command line for `sh`, run where ddprun is started. Its output goes to stderr.
    #[schemars(length(min = 1), example = &"python tracker.py")]
    pub run: String,
}

impl Kind for Command {
    const NAME: &'static str = "command";
}

impl Sink for Command {
    fn open(&self, start: &SinkStart) -> Result<Box<dyn OpenSink>, Error> {
        // Ctrl-C ends the run, whose last events the program is to get.
        let mut command = child_process::shell(&self.run);
        command.stdin(Stdio::piped()).stdout(io::stderr());
        let child = command.spawn().map_err(|reason| failed("start", &self.run, reason))?;
        let mut program = Program { command: self.run.clone(), child, stdin: None };
        program.stdin = program.child.stdin.take();
        let SinkStart { run, name, tags, config, resumed_from, total_steps, .. } = start;
        let first = json!({
            "event": "run",
            "run": run.id,
            "name": name,
            "logs": run.logs,
            "checkpoints": run.checkpoints,
            "tags": tags,
            "resumed_from": resumed_from,
            "total_steps": total_steps,
            "config": config,
        });
        program.send(&first.to_string())?;
        Ok(Box::new(program))
    }

    fn delivery(&self) -> Delivery {
        Delivery::BestEffort
    }
}

/// A program that reads events.
struct Program {
    command: String,
    child: Child,
    /// `None` once the input has ended.
    stdin: Option<ChildStdin>,
}

impl Program {
    fn send(&mut self, line: &str) -> Result<(), Error> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        let sent = stdin.write_all(format!("{line}\n").as_bytes());
        sent.map_err(|reason| {
            // It ends before its input does.
            let status = wait_within(&mut self.child, SOON);
            let reason =
                status.map_or(reason, |status| io::Error::other(format!("it ended with {status}")));
            failed("write to", &self.command, reason)
        })
    }
}

impl OpenSink for Program {
    fn record(&mut self, stamped: &Stamped) -> Result<(), Error> {
        let line =
            encode(stamped).map_err(|reason| Error::Encode { what: Command::NAME, reason })?;
        self.send(&line)
    }

    fn finish(&mut self) -> Result<(), Error> {
        drop(self.stdin.take());
        let why = match wait_within(&mut self.child, TIME_TO_END) {
            Some(status) if status.success() => return Ok(()),
            Some(status) => format!("it ended with {status}"),
            None => format!("it did not end within {} s of the last event", TIME_TO_END.as_secs()),
        };
        Err(failed("finish", &self.command, io::Error::other(why)))
    }

    fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
        None
    }
}

impl Drop for Program {
    /// Leaves no program behind.
    fn drop(&mut self) {
        drop(self.stdin.take());
        if wait_within(&mut self.child, SOON).is_none() {
            child_process::end(&mut self.child);
        }
    }
}

/// Waits for the end of the process, but no longer than `time`.
fn wait_within(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + time;
    child_process::wait_until(child, || Instant::now() >= deadline)
}

fn failed(action: &'static str, command: &str, reason: io::Error) -> Error {
    Error::io(action, Path::new(command), reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::plan::RunFolders;
    use crate::record::example_events;

    fn start(folder: &Path) -> SinkStart {
        let run = RunFolders {
            id: "r".into(),
            logs: folder.to_owned(),
            checkpoints: folder.join("none"),
        };
        SinkStart { run, name: "small".into(), total_steps: 20, ..SinkStart::default() }
    }

    fn stamped(step: u64) -> Stamped {
        let event = Event::StepDone(example_events::step_done(step));
        Stamped { time: jiff::Timestamp::UNIX_EPOCH, step, event }
    }

    fn open(folder: &Path, run: &str) -> Result<Box<dyn OpenSink>, Error> {
        Command { run: run.to_owned() }.open(&start(folder))
    }

    #[test]
    fn a_program_gets_the_run_and_each_event_as_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("got");
        let mut sink = open(folder.path(), &format!("cat > {}", file.display())).unwrap();
        (1..=3).for_each(|step| sink.record(&stamped(step)).unwrap());
        sink.finish().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!((&lines[0]["event"], &lines[0]["run"]), (&json!("run"), &json!("r")));
        assert_eq!((&lines[3]["event"], &lines[3]["step"]), (&json!("step_done"), &json!(3)));
    }

    #[test]
    fn a_program_that_fails_ends_early_or_hangs_is_an_error_in_words_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let words = |error: Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", cause.unwrap_or_default())
        };
        let mut sink = open(folder.path(), "cat > /dev/null; exit 3").unwrap();
        let error = words(sink.finish().unwrap_err());
        assert_eq!(error, "cannot finish `cat > /dev/null; exit 3`: it ended with exit status: 3");
        // The first write may still find it alive.
        let refused = open(folder.path(), "exit 4").err().or_else(|| {
            let mut sink = open(folder.path(), "exit 4").ok()?;
            std::thread::sleep(SOON);
            sink.record(&stamped(1)).err()
        });
        assert!(refused.is_none_or(|error| words(error).contains("it ended with exit status: 4")));
        let pid = folder.path().join("pid");
        let hangs = format!("echo $$ > {}; cat > /dev/null; sleep 100", pid.display());
        let mut sink = open(folder.path(), &hangs).unwrap();
        assert!(words(sink.finish().unwrap_err()).contains("did not end within 4 s"));
        drop(sink);
        let pid: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        assert!(rustix::process::test_kill_process(pid).is_err(), "it is gone");
    }
}
