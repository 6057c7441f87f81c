//! Plays a schedule with the real program, and compares its end with that of an undisturbed run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::data;
use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Ended, Running, pid_of, spawn};
use crate::schedule::{Fault, Launcher, Mode, Reader, Schedule, Target};

/// Longest time that a start, and what reads beside it, may take.
const DEADLINE: Duration = Duration::from_secs(90);
/// Longest time until all processes of a start are gone.
const LEAVING: Duration = Duration::from_secs(10);
/// torchrun ends the other ranks when it has seen that one is gone.
const NOTICED: Duration = Duration::from_millis(300);
/// When it kills them.
const UNMOVED: Duration = Duration::from_secs(5);
/// Processor time in which the system may still be loading the program, in hundredths of a second.
const LOADING: u64 = 10;
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What a run leaves: by name, everything that must not depend on what disturbed it.
pub(crate) type End = BTreeMap<String, Vec<u8>>;

/// What a schedule was, in numbers.
#[derive(Default)]
pub(crate) struct Tally {
    /// Starts that ended with another code than 0.
    pub(crate) broken_off: usize,
    /// Restarts of a group by its parent.
    pub(crate) restarts: usize,
    pub(crate) readers: usize,
}

/// Why a schedule has no end to be compared with.
pub(crate) enum Unplayable {
    /// Its settings exclude each other: `plan` refuses them.
    Refused(String),
    Failed(String),
}

/// The end of the undisturbed run of a schedule's recipe, on one rank.
pub(crate) fn undisturbed(schedule: &Schedule) -> Result<End, Unplayable> {
    let lab = data::lab(schedule.kind, schedule.model);
    let mut args = first_args(schedule, schedule.ranks_of_reference());
    if schedule.settings().iter().any(|setting| setting == "checkpoint.every=never") {
        // So that there is a last checkpoint to compare with.
        args.push("checkpoint.every=1 epoch".to_owned());
    }
    let ended = spawn(lab.ddprun(&as_words(&args))).wait();
    match ended.code {
        0 => {}
        2 => return Err(Unplayable::Refused(ended.stderr)),
        code => {
            let why = format!("undisturbed, it ends with {code}\n{}", ended.stderr);
            return Err(Unplayable::Failed(why));
        }
    }
    let mut end = end(schedule, &lab).map_err(Unplayable::Failed)?;
    if let Some(ranks) = schedule.predicted() {
        end.insert("predictions".to_owned(), predict(schedule, &lab, ranks)?);
    }
    Ok(end)
}

impl From<String> for Unplayable {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Plays `schedule`, whose undisturbed run ends as `expected`.
pub(crate) fn play(schedule: &Schedule, expected: &End) -> Result<Tally, String> {
    let lab = data::lab(schedule.kind, schedule.model);
    let (mut tally, mut story, mut said) = (Tally::default(), String::new(), String::new());
    for at in 0..=schedule.n_disturbed {
        let is_last = at == schedule.n_disturbed;
        let args = args(schedule, &lab, at);
        let (ended, is_early) = start(schedule, &lab, at, &args, &mut tally)
            .map_err(|why| format!("{story}\n  start {at}: {}: {why}", args.join(" ")))?;
        let codes: Vec<i32> = ended.iter().map(|ended| ended.code).collect();
        story += &format!("\n  start {at}: {} -> {codes:?}", args.join(" "));
        let all: String = ended.iter().map(|ended| ended.stderr.as_str()).collect();
        let wrong = |why: &str| format!("{story}: {why}\n{all}");
        if ["panicked at", "this is a bug"].iter().any(|words| all.contains(words)) {
            return Err(wrong("a panic"));
        }
        let mut allowed = allowed(schedule, at);
        if all.contains("already complete: ") && all.contains("none was saved") {
            // The other ranks of a launcher are told that rank 0 has nothing to prepare.
            allowed.push(2);
        }
        // Nothing had begun that could have been saved.
        let is_unborn =
            |ended: &&Ended| is_early && [-2, -15].contains(&ended.code) && ended.stderr.is_empty();
        let mut of_program = ended.iter().filter(|ended| !is_unborn(ended));
        if let Some(Ended { code, .. }) = of_program.find(|ended| !allowed.contains(&ended.code)) {
            return Err(wrong(&format!("exit code {code}; expected one of {allowed:?}")));
        }
        tally.restarts += all.matches(", from the newest checkpoint").count();
        tally.broken_off += usize::from(codes.iter().any(|&code| code != 0));
        all_gone(&lab).map_err(|why| wrong(&why))?;
        said = all;
        // A run that is complete needs no other start, but stands one.
        if codes.iter().all(|&code| code == 0) && (is_last || !schedule.seed.is_multiple_of(3)) {
            break;
        }
    }
    check(schedule, &lab, expected).map_err(|why| format!("{story}\n  {why}\n{said}"))?;
    Ok(tally)
}

fn as_words(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// What starts the experiment.
fn first_args(schedule: &Schedule, ranks: u64) -> Vec<String> {
    let mut args = vec!["small.toml".to_owned()];
    args.extend(schedule.settings());
    match schedule.mode() {
        Mode::Run => args.push(format!("distributed.devices={ranks}")),
        Mode::Sweep(concurrent) => {
            args.push("optimizer.lr=0.01,0.003".to_owned());
            args.push(format!("sweep.concurrent_trials={concurrent}"));
        }
        Mode::Folds => {
            let held = schedule.kind.folds.unwrap_or_default();
            args.extend(held.iter().map(|key| (*key).to_owned()));
            args.extend(["data.folds=2", "data.fold=0,1"].map(str::to_owned));
            args.push("sweep.concurrent_trials=1".to_owned());
        }
    }
    if schedule.mode() != Mode::Run {
        args.insert(0, "sweep".to_owned());
        args.push(format!("sweep.devices_per_trial={ranks}"));
        args.push("sweep.metric=val/loss".to_owned());
        args.push("--retry-failed".to_owned());
    }
    args
}

/// What a start is called with: it begins, or goes on.
fn args(schedule: &Schedule, lab: &Lab, at: usize) -> Vec<String> {
    let ranks = schedule.ranks(at);
    let mut args = if schedule.mode() == Mode::Run && !runs(lab).is_empty() {
        vec!["resume".to_owned(), format!("distributed.devices={ranks}")]
    } else {
        // A sweep with other ranks is another sweep.
        first_args(schedule, if schedule.mode() == Mode::Run { ranks } else { schedule.ranks(0) })
    };
    if schedule.points(at).iter().any(|rule| rule.contains("=stop@")) {
        args.push("fault.stall_timeout=2s".to_owned());
    }
    args
}

/// The runs of a lab: folders that can be resumed.
fn runs(lab: &Lab) -> Vec<PathBuf> {
    let folders = children(&lab.path("logs/small")).into_iter();
    folders.filter(|folder| folder.join("resolved.toml").exists()).collect()
}

/// Whether the run of a lab has a checkpoint.
fn is_saved(lab: &Lab) -> bool {
    let folders = children(&lab.path("checkpoints/small")).into_iter();
    folders.map(|folder| folder.join("latest")).any(|latest| latest.exists())
}

/// Exit codes with which a start may end.
fn allowed(schedule: &Schedule, at: usize) -> Vec<i32> {
    let mut codes = vec![0];
    let launcher = schedule.launcher(at);
    let mut lost = 0;
    for (_, fault, target) in schedule.signals(at) {
        match (fault, target) {
            (Fault::Int, _) => codes.push(130),
            (Fault::Term, _) => codes.push(75),
            (Fault::Kill, Target::Rank(_)) => lost += 1,
            (Fault::Kill, _) => codes.push(-9),
            (Fault::Pause(_), _) => {}
        }
    }
    for rule in schedule.points(at) {
        match rule {
            _ if rule.contains("=kill(parent)") => codes.push(-9),
            _ if rule.contains("=term") => codes.push(75),
            _ if rule.contains("=kill@parent") => codes.push(-9),
            _ if rule.contains("=kill@") || rule.contains("=stop@") => lost += 1,
            _ => {}
        }
    }
    let restarts =
        if schedule.settings().iter().any(|key| key == "fault.max_restarts=0") { 0 } else { 2 };
    let is_ending = codes.len() > 1;
    // Who is asked to end starts no rank again.
    if schedule.mode() != Mode::Run && lost > restarts {
        // All trials may have failed.
        codes.push(9);
    }
    if lost > restarts
        || lost > 0 && is_ending
        || launcher != Launcher::Parent && (is_ending || lost > 0)
    {
        codes.push(5);
    }
    match launcher {
        Launcher::Torchrun if lost > 0 => codes.extend([-9, 75]),
        Launcher::Torchrun => codes.push(75),
        // It has codes of its own.
        Launcher::Mpirun if is_ending || lost > 0 => codes.extend(1..=255),
        Launcher::Parent | Launcher::Mpirun => {}
    }
    codes
}

/// The processes of a start: one, or one for each rank where torchrun is imitated.
fn commands(schedule: &Schedule, lab: &Lab, at: usize, args: &[String]) -> Vec<Command> {
    let (ranks, words) = (schedule.ranks(at), as_words(args));
    let mut commands = match schedule.launcher(at) {
        Launcher::Mpirun if has_mpirun() => {
            let n = ranks.to_string();
            let before = ["-n", &n, "--oversubscribe", "--bind-to", "none", BINARY];
            let mut command = lab.command("mpirun", &[&before[..], &words].concat());
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            vec![command]
        }
        Launcher::Torchrun => {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let rank = |rank: u64| {
                let mut command = lab.ddprun(&words);
                let [world, rank] = [ranks, rank].map(|n| n.to_string());
                let file = format!("/tmp/torchelastic_0/none_{port}/attempt_0/{rank}/error.json");
                command.envs([("RANK", &rank), ("LOCAL_RANK", &rank)]);
                command.envs([("WORLD_SIZE", &world), ("LOCAL_WORLD_SIZE", &world)]);
                command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
                command.env("TORCHELASTIC_RUN_ID", "none").env("TORCHELASTIC_ERROR_FILE", file);
                command.env("TORCHELASTIC_RESTART_COUNT", "0");
                command
            };
            (0..ranks).map(rank).collect()
        }
        _ => vec![lab.ddprun(&words)],
    };
    let points = schedule.points(at).join("; ");
    for command in &mut commands {
        command.env("DDPRUN_FP", &points).env("RUST_BACKTRACE", "0");
    }
    commands
}

/// Whether an Open MPI is here; without one, ddprun starts those ranks itself.
fn has_mpirun() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let asked = Command::new("mpirun").arg("--version").output();
        asked.is_ok_and(|asked| String::from_utf8_lossy(&asked.stdout).contains("Open MPI"))
    })
}

/// What happens at an instant of a start.
enum Act {
    Signal(Fault, Target),
    /// SIGCONT to processes and groups that were stopped.
    Continue(Vec<u32>, bool),
    Read(Reader),
}

/// One start with all that disturbs it.
fn start(
    schedule: &Schedule,
    lab: &Lab,
    at: usize,
    args: &[String],
    tally: &mut Tally,
) -> Result<(Vec<Ended>, bool), String> {
    let mut is_early = false;
    let mut acts: Vec<(Duration, Act)> = Vec::new();
    for (after, fault, target) in schedule.signals(at) {
        acts.push((Duration::from_millis(after), Act::Signal(fault, target)));
    }
    for (after, reader) in schedule.readers(at) {
        acts.push((Duration::from_millis(after), Act::Read(reader)));
    }
    let is_mpirun = schedule.launcher(at) == Launcher::Mpirun;
    let mut all: Vec<Running> = commands(schedule, lab, at, args).into_iter().map(spawn).collect();
    let (began, mut gone, mut n_sent, mut readers) = (Instant::now(), None, 0, Vec::new());
    loop {
        let elapsed = began.elapsed();
        while let Some(next) = acts.iter().position(|(after, _)| *after <= elapsed) {
            match acts.swap_remove(next).1 {
                Act::Signal(..) if is_mpirun => {}
                Act::Signal(fault, target) => {
                    is_early |= all.iter().any(|running| is_loading(running.pid()));
                    if let Some(later) = disturb(&all, fault, target) {
                        acts.push((elapsed + later.0, later.1));
                    }
                }
                Act::Continue(pids, is_group) => send(&pids, is_group, Signal::CONT),
                Act::Read(reader) => readers.push(begin_to_read(schedule, lab, reader)),
            }
        }
        let over: Vec<bool> = all.iter_mut().map(Running::is_over).collect();
        if over.iter().all(|is_over| *is_over) {
            break;
        }
        let has_failed =
            |running: &mut Running| running.status().is_some_and(|status| !status.success());
        if gone.is_none() && all.iter_mut().any(has_failed) {
            gone = Some(elapsed);
        }
        // As torchrun does: it asks the others once, and kills those that do not react.
        let signals = [(NOTICED, Signal::TERM), (UNMOVED, Signal::KILL)];
        let due =
            signals.get(n_sent).filter(|(after, _)| gone.is_some_and(|at| elapsed > at + *after));
        if let Some((_, signal)) = due {
            n_sent += 1;
            let rest = all.iter().zip(&over).filter(|(_, is_over)| !**is_over);
            let rest: Vec<u32> = rest.map(|(running, _)| running.pid()).collect();
            send(&rest, false, *signal);
        }
        if elapsed > DEADLINE {
            let said: String = all.iter().map(Running::stderr).collect();
            return Err(format!("it runs after {DEADLINE:?}\n{said}"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let ended = all.into_iter().map(Running::wait).collect();
    for reader in readers {
        tally.readers += 1;
        finish_reading(reader)?;
    }
    Ok((ended, is_early))
}

/// Whether a process has come no further than to be loaded: it does not listen to SIGTERM yet.
fn is_loading(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let listens = caught.is_some_and(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    !listens && ticks <= LOADING
}

/// Sends a signal; what must follow, and when.
fn disturb(all: &[Running], fault: Fault, target: Target) -> Option<(Duration, Act)> {
    let parents: Vec<u32> = all.iter().map(Running::pid).collect();
    let (pids, is_group) = match target {
        Target::Group => (parents, true),
        Target::Rank(rank) => {
            let ranks = if all.len() > 1 { parents } else { all[0].ranks() };
            (ranks.get(rank as usize).copied().into_iter().collect(), false)
        }
        Target::Parent => (parents[..1].to_vec(), false),
    };
    let signal = match fault {
        Fault::Int => Signal::INT,
        Fault::Term => Signal::TERM,
        Fault::Kill => Signal::KILL,
        Fault::Pause(_) => Signal::STOP,
    };
    send(&pids, is_group, signal);
    match fault {
        Fault::Pause(time) => Some((Duration::from_millis(time), Act::Continue(pids, is_group))),
        _ => None,
    }
}

/// Sends a signal to processes, or their groups, that may be gone.
fn send(pids: &[u32], is_group: bool, signal: Signal) {
    for pid in pids.iter().copied().map(pid_of) {
        let _ = if is_group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
    }
}

/// A command that reads beside a start.
struct Reading {
    reader: Reader,
    running: Running,
    /// Whether there was something for it to read.
    must_succeed: bool,
}

fn begin_to_read(schedule: &Schedule, lab: &Lab, reader: Reader) -> Reading {
    let input = schedule.kind.input.unwrap_or("nothing");
    let words: &[&str] = match reader {
        Reader::Ls => &["ls"],
        Reader::Report => &["report"],
        Reader::Verify => &["checkpoint", "verify"],
        Reader::Show => &["checkpoint", "show"],
        Reader::Predict => &["predict", "--latest", input, "--out", "beside.csv", "--overwrite"],
        Reader::Eval => &["eval"],
        Reader::Logs => &["logs"],
        Reader::Serve => &["serve", "--port", "0"],
    };
    let has_input = reader != Reader::Predict || schedule.kind.input.is_some();
    let must_succeed = schedule.mode() == Mode::Run && is_saved(lab) && has_input;
    Reading { reader, running: spawn(lab.ddprun(words)), must_succeed }
}

fn finish_reading(mut reading: Reading) -> Result<(), String> {
    let reader = reading.reader;
    let began = Instant::now();
    if reader == Reader::Serve {
        let page = page(&mut reading.running);
        send(&[reading.running.pid()], false, Signal::TERM);
        if reading.must_succeed {
            page.map_err(|why| format!("{reader:?} beside it: {why}"))?;
        }
    }
    while !reading.running.is_over() {
        if began.elapsed() > DEADLINE {
            return Err(format!("{reader:?} beside it runs after {DEADLINE:?}"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let ended = reading.running.wait();
    let is_fine = ended.code == 0 || !reading.must_succeed && [2, 7].contains(&ended.code);
    let is_bug = ["panicked at", "this is a bug"].iter().any(|word| ended.stderr.contains(word));
    if !is_fine || is_bug {
        return Err(format!("{reader:?} beside it ends with {}\n{}", ended.code, ended.stderr));
    }
    Ok(())
}

/// The list of runs, as a browser gets it.
fn page(running: &mut Running) -> Result<String, String> {
    let began = Instant::now();
    let address = loop {
        if let Some(line) = running.stdout().lines().next() {
            break line.to_owned();
        }
        if running.is_over() || began.elapsed() > DEADLINE {
            return Err(format!("it gave no address\n{}", running.stderr()));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let rest = address.strip_prefix("http://").ok_or_else(|| format!("`{address}`"))?;
    let (host, path) = rest.split_once('/').ok_or_else(|| format!("`{address}`"))?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let mut exchange = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.write_all(request.as_bytes())?;
        stream.read_to_end(&mut answer)?;
        Ok(())
    };
    exchange().map_err(|error| error.to_string())?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.lines().next().unwrap_or_default();
    let is_fine = ["200", "302", "303"].iter().any(|code| status.contains(code));
    if is_fine { Ok(answer) } else { Err(format!("the page answers `{status}`")) }
}

/// Waits until no process of a lab is left.
fn all_gone(lab: &Lab) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let left = lab.processes();
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > LEAVING {
            return Err(format!("processes are left after {LEAVING:?}: {left:?}"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn predict(schedule: &Schedule, lab: &Lab, ranks: u64) -> Result<Vec<u8>, String> {
    let (input, ranks) = (schedule.kind.input.unwrap_or_default(), ranks.to_string());
    let words =
        ["predict", "--latest", input, "--out", "preds.csv", "--nproc-per-node", ranks.as_str()];
    let ended = spawn(lab.ddprun(&words)).wait();
    if ended.code != 0 {
        return Err(format!("predict ends with {}\n{}", ended.code, ended.stderr));
    }
    fs::read(lab.path("preds.csv")).map_err(|error| error.to_string())
}

/// What all starts together have left.
fn end(schedule: &Schedule, lab: &Lab) -> Result<End, String> {
    let mut end = End::new();
    if schedule.mode() == Mode::Run {
        let runs = runs(lab);
        let [run] = &runs[..] else { return Err(format!("not one run: {runs:?}")) };
        let id = run.file_name().unwrap();
        end_of_run("", run, &lab.path("checkpoints/small").join(id), &mut end)?;
        return Ok(end);
    }
    let sweep = lab.path("logs/small-sweep");
    for trial in ["trial-0001", "trial-0002"] {
        let saved = lab.path("checkpoints/small-sweep").join(trial);
        end_of_run(&format!("{trial} "), &sweep.join(trial), &saved, &mut end)?;
    }
    let journal = fs::read_to_string(sweep.join("journal.jsonl")).map_err(|e| e.to_string())?;
    let lines = journal.lines().map(serde_json::from_str::<Value>);
    let lines = lines.collect::<Result<Vec<_>, _>>().map_err(|e| format!("the journal: {e}"))?;
    for line in lines.iter().filter(|line| line["state"] == "finished") {
        let name = format!("trial {} in the journal", line["trial"]);
        let result = format!("{} {}", line["value"], line["reports"]);
        if end.insert(name.clone(), result.into_bytes()).is_some() {
            return Err(format!("{name} finished twice"));
        }
    }
    Ok(end)
}

/// What one run has left.
fn end_of_run(name: &str, logs: &Path, saved: &Path, end: &mut End) -> Result<(), String> {
    let mut put = |key: &str, bytes: Vec<u8>| drop(end.insert(format!("{name}{key}"), bytes));
    for file in ["model.safetensors", "optimizer.safetensors", "state.json"] {
        if let Ok(bytes) = fs::read(saved.join("latest").join(file)) {
            put(&format!("checkpoint latest/{file}"), bytes);
        }
    }
    if let Ok(bytes) = fs::read(saved.join("best/model.safetensors")) {
        put("checkpoint best/model.safetensors", bytes);
    }
    let read = |file: &str| {
        fs::read(logs.join(file)).map_err(|error| format!("{}: {error}", logs.join(file).display()))
    };
    put("training_history.json", read("training_history.json")?);
    put("epochs.jsonl", epochs(&read("epochs.jsonl")?)?);
    if let Ok(bytes) = read("metrics.csv") {
        put("metrics.csv", without_speed(&String::from_utf8_lossy(&bytes)).into_bytes());
    }
    Ok(())
}

/// `epochs.jsonl` without times, in which each epoch stands once.
fn epochs(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let (mut text, mut before) = (String::new(), 0);
    for line in String::from_utf8_lossy(bytes).lines() {
        let mut line: Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
        line.as_object_mut().map(|object| object.remove("seconds"));
        let epoch = line["epoch"].as_u64().unwrap_or_default();
        if epoch <= before {
            return Err(format!("epoch {epoch} stands after epoch {before} in `epochs.jsonl`"));
        }
        before = epoch;
        text += &format!("{line}\n");
    }
    Ok(text.into_bytes())
}

fn without_speed(text: &str) -> String {
    let mut rows = text.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let Some(head) = rows.next() else { return String::new() };
    let speed = head.iter().position(|name| *name == "samples_per_second");
    let keep = |row: Vec<&str>| {
        let cells = row.iter().enumerate().filter(|(column, _)| Some(*column) != speed);
        cells.map(|(_, cell)| *cell).collect::<Vec<_>>().join(",")
    };
    let all = std::iter::once(head.clone()).chain(rows).map(keep);
    all.collect::<Vec<_>>().join("\n")
}

/// Everything is as if nothing had happened, and nothing is left.
fn check(schedule: &Schedule, lab: &Lab, expected: &End) -> Result<(), String> {
    let mut found = end(schedule, lab)?;
    if let Some(ranks) = schedule.predicted().filter(|_| is_saved(lab)) {
        found.insert("predictions".to_owned(), predict(schedule, lab, ranks)?);
    }
    // An end without a checkpoint has one only if an earlier start was stopped.
    let is_never = schedule.settings().iter().any(|setting| setting == "checkpoint.every=never");
    // Where none is kept as the best, the one that is best of the newest has that name, and which
    // those are depends on how busy the disk was.
    let keeps_none = schedule.settings().iter().any(|setting| setting == "checkpoint.keep_best=0");
    let depends = |name: &str| {
        is_never && (name.contains("checkpoint ") || name == "predictions")
            || keeps_none && name.contains("best/")
    };
    for (name, bytes) in expected {
        match found.get(name) {
            None if depends(name) => {}
            // Which one was saved at all depends on what happened.
            Some(_) if (is_never || keeps_none) && name.contains("best/") => {}
            None => return Err(format!("{name} is missing")),
            Some(other) if other == bytes => {}
            Some(other) => return Err(format!("{name} differs\n{}", difference(bytes, other))),
        }
    }
    if is_saved(lab) && schedule.seed.is_multiple_of(2) {
        succeeds(lab, &["checkpoint", "verify"])?;
    }
    if schedule.mode() == Mode::Run {
        let line = succeeds(lab, &["ls", "--json"])?;
        let newest = line.lines().find(|line| line.contains("\"id\"")).unwrap_or_default();
        let state: Value = serde_json::from_str(newest).map_err(|e| format!("{line}: {e}"))?;
        if state["state"] != "finished" {
            return Err(format!("`ddprun ls` says that it is {}", state["state"]));
        }
    }
    all_gone(lab)?;
    // A start that was killed before it had described its run is swept up a minute later.
    let early = |path: &PathBuf| {
        let folder = path.parent().unwrap();
        folder.parent().is_some_and(|above| above.ends_with("logs/small"))
            && !folder.join("resolved.toml").exists()
    };
    let left: Vec<PathBuf> = lab.temporaries().into_iter().filter(|path| !early(path)).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("temporaries are left: {left:?}")) }
}

/// Where two texts differ first.
fn difference(expected: &[u8], found: &[u8]) -> String {
    let [expected, found] = [expected, found].map(String::from_utf8_lossy);
    let lines = expected.lines().zip(found.lines()).find(|(a, b)| a != b);
    let (a, b) = lines.unwrap_or(("", ""));
    let short = |line: &str| line.chars().take(300).collect::<String>();
    let [n, m] = [&expected, &found].map(|text| text.lines().count());
    format!("undisturbed ({n} lines): {}\ndisturbed   ({m} lines): {}", short(a), short(b))
}

fn succeeds(lab: &Lab, words: &[&str]) -> Result<String, String> {
    let ended = spawn(lab.ddprun(words)).wait();
    if ended.code == 0 {
        Ok(ended.stdout)
    } else {
        let Ended { code, stdout, stderr } = ended;
        Err(format!("`{}` ends with {code}\n{stdout}\n{stderr}", words.join(" ")))
    }
}
