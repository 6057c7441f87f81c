//! Worker processes: Python that runs the user's code, and what is sent to it and comes back.
//!
//! A worker's stdin is a socket to us, for requests and answers. Its stdout is a pipe into which
//! nothing is written: when we are gone, however that came, the kernel ends the worker.

use std::fmt;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Traceback;

/// The program of a worker.
const PROGRAM: &str = include_str!("worker.py");
/// Runs what comes first through the socket.
const BOOTSTRAP: &str = "\
import os, sys
source = b''
while len(source) < int(sys.argv[1]):
    part = os.read(0, int(sys.argv[1]) - len(source))
    if not part:
        sys.exit()
    source += part
exec(compile(source, '<ddprun>', 'exec'))
";
/// What a frame begins with.
const MAGIC: &[u8; 4] = b"ddpr";
/// Magic, bytes of JSON, bytes behind it.
const HEADER: usize = 12;
/// Times as long as for a sample that a worker may take to start: it imports libraries.
const START_FACTOR: u32 = 10;
/// Longest wait for a worker that is asked where it is, or that has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Longest wait for workers to end by themselves.
const GRACE: Duration = Duration::from_secs(1);
/// Time between two looks for the end of a worker.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What a worker runs.
#[derive(Debug)]
pub(super) struct Program {
    /// Python.
    pub(super) python: String,
    /// The user's file.
    pub(super) file: PathBuf,
    /// The request by which it is opened.
    pub(super) open: Value,
    /// Longest time for a sample.
    pub(super) timeout: Duration,
}

/// Workers that run the same program, as many as have been needed at once.
pub(super) struct WorkerPool {
    program: Program,
    /// Lengths of the parts, which are the same in all of them.
    lengths: Vec<u64>,
    idle: Mutex<Vec<Worker>>,
}

/// A data set as its worker describes it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Opened {
    /// Python's version.
    pub(super) version: String,
    /// Path of Python.
    pub(super) program: PathBuf,
    /// The user's file, and what it imports from its folder.
    pub(super) modules: Vec<PathBuf>,
    pub(super) parts: Vec<OpenedPart>,
}

/// A part of a data set.
#[derive(Debug, Deserialize)]
pub(super) struct OpenedPart {
    pub(super) len: u64,
    /// Names of its classes.
    pub(super) classes: Option<Vec<String>>,
    /// Number of labels, which follow as i64: one for each sample, or none.
    labels: usize,
    /// What it says of its contents.
    pub(super) fingerprint: Option<String>,
    #[serde(skip)]
    pub(super) label_values: Vec<i64>,
}

/// What stands before the numbers of a sample.
#[derive(Debug, Deserialize)]
pub(super) struct SampleHeader {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    pub(super) target: TargetHeader,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TargetHeader {
    Class(i64),
    /// Numbers, which follow those of the input.
    Numbers {
        dtype: String,
        n: usize,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Opened(Opened),
    Sample(SampleHeader),
    Failed(Failed),
}

/// Something that did not work in the user's code.
#[derive(Debug, Deserialize)]
pub(super) struct Failed {
    pub(super) stage: Stage,
    /// Number of the part that was opened.
    pub(super) part: usize,
    pub(super) what: String,
    /// True if it is an exception.
    pub(super) raised: bool,
    pub(super) traceback: Option<String>,
    /// What the file defines, if the object is not in it.
    pub(super) names: Vec<String>,
}

/// What a worker was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    File,
    Object,
    Options,
    Sample,
}

/// Why there is no answer, or none that helps.
#[derive(Debug)]
pub(super) enum Fault {
    /// The user's code did not do it; the worker goes on.
    Failed(Failed),
    /// The worker cannot be started.
    Start(io::Error),
    /// The worker is gone, or of no use any more.
    Lost {
        what: String,
        is_late: bool,
        /// Where it was, if it said so.
        stack: Option<Traceback>,
    },
}

impl WorkerPool {
    /// Starts the first worker.
    pub(super) fn start(program: Program) -> Result<(Self, Opened), Fault> {
        let (worker, opened) = Worker::start(&program)?;
        let lengths = opened.parts.iter().map(|part| part.len).collect();
        Ok((Self { program, lengths, idle: Mutex::new(vec![worker]) }, opened))
    }

    /// Asks a worker for the sample `index` of a part, and has `read` read the answer.
    pub(super) fn sample<T>(
        &self,
        part: usize,
        index: u32,
        seed: u64,
        read: impl FnOnce(&SampleHeader, &[u8]) -> T,
    ) -> Result<T, Fault> {
        let mut worker = match self.idle().pop() {
            Some(worker) => worker,
            None => self.start_another()?,
        };
        let request = json!({ "load": { "part": part, "index": index, "seed": seed } });
        match worker.ask(&request, self.program.timeout) {
            Ok(Answer::Sample(header)) => {
                let sample = read(&header, &worker.body);
                self.idle().push(worker);
                Ok(sample)
            }
            Ok(Answer::Failed(failed)) => {
                self.idle().push(worker);
                Err(Fault::Failed(failed))
            }
            Ok(Answer::Opened(_)) => Err(garbled()),
            Err(fault) => Err(fault),
        }
    }

    fn start_another(&self) -> Result<Worker, Fault> {
        let (worker, opened) = Worker::start(&self.program)?;
        let lengths: Vec<u64> = opened.parts.iter().map(|part| part.len).collect();
        if lengths == self.lengths {
            return Ok(worker);
        }
        let what = format!(
            "has parts of {lengths:?} samples in one process, but of {:?} in another",
            self.lengths
        );
        Err(Fault::Lost { what, is_late: false, stack: None })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WorkerPool {
    /// Asks all of them to end before it waits for the first one.
    fn drop(&mut self) {
        let idle = self.idle.get_mut().unwrap_or_else(PoisonError::into_inner);
        idle.iter().for_each(Worker::hang_up);
    }
}

/// A process that runs the user's code. Ended and reaped when dropped.
struct Worker {
    child: Child,
    channel: UnixStream,
    /// The worker ends with it.
    _lifeline: PipeWriter,
    json: Vec<u8>,
    body: Vec<u8>,
}

impl Worker {
    fn start(program: &Program) -> Result<(Self, Opened), Fault> {
        let mut worker = Self::spawn(program).map_err(Fault::Start)?;
        let sent = worker.channel.write_all(PROGRAM.as_bytes());
        let time = program.timeout.saturating_mul(START_FACTOR);
        let asked = match sent {
            Ok(()) => worker.ask(&program.open, time),
            Err(error) => Err(worker.lost(&error, time)),
        };
        let mut opened = match asked? {
            Answer::Opened(opened) => opened,
            Answer::Failed(failed) => return Err(Fault::Failed(failed)),
            Answer::Sample(_) => return Err(garbled()),
        };
        let mut labels = worker.body.as_chunks::<8>().0.iter().map(|it| i64::from_ne_bytes(*it));
        for part in &mut opened.parts {
            part.label_values = labels.by_ref().take(part.labels).collect();
        }
        Ok((worker, opened))
    }

    fn spawn(program: &Program) -> io::Result<Self> {
        let (channel, theirs) = UnixStream::pair()?;
        let (their_lifeline, lifeline) = io::pipe()?;
        let mut command = Command::new(&program.python);
        command.args(["-c", BOOTSTRAP, &PROGRAM.len().to_string()]).arg(&program.file);
        // What follows from the order of a set is the same in all workers.
        command.env("PYTHONHASHSEED", "0");
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::from(their_lifeline));
        // Ctrl-C is for the rank alone.
        command.process_group(0);
        let child = command.spawn()?;
        let (json, body) = (Vec::new(), Vec::new());
        Ok(Self { child, channel, _lifeline: lifeline, json, body })
    }

    /// Sends a request and reads the answer, whose bytes are then in `body`.
    fn ask(&mut self, request: &Value, timeout: Duration) -> Result<Answer, Fault> {
        match self.exchange(request, timeout) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(garbled()),
            Err(error) => Err(self.lost(&error, timeout)),
        }
    }

    /// `None` if what comes is no answer.
    fn exchange(&mut self, request: &Value, timeout: Duration) -> io::Result<Option<Answer>> {
        self.channel.set_write_timeout(Some(timeout))?;
        self.channel.set_read_timeout(Some(timeout))?;
        let text = request.to_string();
        let length = text.len() as u32;
        let frame = [MAGIC, &length.to_ne_bytes()[..], &[0; 4], text.as_bytes()].concat();
        self.channel.write_all(&frame)?;
        let mut header = [0; HEADER];
        self.channel.read_exact(&mut header)?;
        let [magic, json, body] = [0, 4, 8].map(|at| [0, 1, 2, 3].map(|i| header[at + i]));
        if magic != *MAGIC {
            return Ok(None);
        }
        read_all(&self.channel, u32::from_ne_bytes(json), &mut self.json)?;
        read_all(&self.channel, u32::from_ne_bytes(body), &mut self.body)?;
        Ok(serde_json::from_slice(&self.json).ok())
    }

    /// What became of a worker whose socket failed.
    fn lost(&mut self, error: &io::Error, timeout: Duration) -> Fault {
        let pid = self.child.id();
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            let time = crate::config::values::Duration(timeout);
            let what = format!("has kept Python (process {pid}) busy for {time}");
            return Fault::Lost { what, is_late: true, stack: self.stack() };
        }
        let what = match self.end_within(LAST_WORDS) {
            Some(status) => format!("was lost: Python (process {pid}) ended by {status}"),
            None => format!("was lost: the socket to Python (process {pid}) failed: {error}"),
        };
        Fault::Lost { what, is_late: false, stack: None }
    }

    /// Where the main thread is, innermost call first.
    fn stack(&mut self) -> Option<Traceback> {
        const LONGEST: u64 = 16 << 10;
        kill_process(Pid::from_child(&self.child), Signal::USR2).ok()?;
        self.channel.set_read_timeout(Some(LAST_WORDS)).ok()?;
        let mut said = Vec::new();
        // It ends by a timeout.
        let _ = (&self.channel).take(LONGEST).read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        let calls: Vec<&str> =
            said.lines().filter(|line| line.starts_with("  File ")).filter(is_users).collect();
        let text = format!("it is here (most recent call first):\n{}", calls.join("\n"));
        (!calls.is_empty()).then_some(Traceback(text))
    }

    /// Lets the worker see that nothing will be asked any more.
    fn hang_up(&self) {
        // It fails if the worker is gone.
        let _ = self.channel.shutdown(std::net::Shutdown::Both);
    }

    /// How the process ended, if it does within this time.
    fn end_within(&mut self, time: Duration) -> Option<String> {
        let until = Instant::now() + time;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status.to_string()),
                Ok(None) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.hang_up();
        if self.end_within(GRACE).is_none() {
            // A process that is gone is not an error.
            let _ = self.child.kill();
            let _ = self.end_within(GRACE);
        }
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool").field("program", &self.program).finish_non_exhaustive()
    }
}

/// True for a call in the user's code.
fn is_users(line: &&str) -> bool {
    !line.contains("\"<ddprun>\"") && !line.contains("\"<string>\"")
}

fn garbled() -> Fault {
    let what = "was lost: something in the code has written into the socket between Python and \
                ddprun"
        .to_owned();
    Fault::Lost { what, is_late: false, stack: None }
}

/// Reads as many bytes into `buffer`, in the place of what it held.
fn read_all(channel: &UnixStream, bytes: u32, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    channel.take(bytes.into()).read_to_end(buffer)?;
    let is_whole = buffer.len() == bytes as usize;
    if is_whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
