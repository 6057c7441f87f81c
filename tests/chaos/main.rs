//! Crossings of features and faults, drawn by a seed: data, model, settings, launchers, numbers of
//! ranks, sweeps and folds, kills, stops and signals at any point, and commands that read meanwhile.
//! Each ends as if nothing had happened.
//!
//! ```sh
//! just chaos 50            # schedules 1 to 50
//! just chaos 50 1000       # from 1000 on
//! just chaos 1 17          # schedule 17 again
//! just chaos 1 17 0,3,8    # of schedule 17 these parts only, as a failed one is made smaller
//! ```
//!
//! `CHAOS_SECONDS` plays as many as that time has room for, `CHAOS_JOBS` several at a time.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test binary: a failed helper is a failed test"
)]

mod data;
#[expect(dead_code, reason = "the tests of `cli` use the rest")]
#[path = "../support/harness/mod.rs"]
mod harness;
mod play;
mod schedule;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use play::{End, Tally, Unplayable};
use schedule::{Launcher, Mode, Part, Schedule};

/// Schedules of `cargo test`: of several kinds of data, with kills, signals, restarts, a sweep and
/// readers.
const OF_EACH_TEST: [u64; 6] = [6, 20, 24, 34, 49, 60];
/// Times that a smaller schedule is tried before it counts as one that does not fail.
const TRIES: usize = 3;
/// Longest time in which a failed schedule is made smaller.
const MINIMIZING: Duration = Duration::from_mins(2);
/// Recipes whose ends are remembered.
const REMEMBERED: usize = 16;

/// How the undisturbed runs of recipes end.
#[derive(Default)]
struct Ends(Mutex<Vec<(String, Arc<End>)>>);

impl Ends {
    fn of(&self, schedule: &Schedule) -> Result<Arc<End>, Unplayable> {
        let key = format!(
            "{} {:?} {:?} {:?} {} {:?}",
            schedule.kind.name,
            schedule.model,
            schedule.settings(),
            schedule.mode(),
            schedule.ranks_of_reference(),
            schedule.predicted()
        );
        let known = |ends: &Vec<(String, Arc<End>)>| {
            ends.iter().find(|(other, _)| *other == key).map(|(_, end)| end.clone())
        };
        if let Some(end) = known(&self.0.lock().unwrap()) {
            return Ok(end);
        }
        let end = Arc::new(play::undisturbed(schedule)?);
        let mut ends = self.0.lock().unwrap();
        if ends.len() >= REMEMBERED {
            ends.remove(0);
        }
        ends.push((key, end.clone()));
        Ok(end)
    }
}

/// How a schedule went.
enum Outcome {
    Played(Tally),
    /// Its settings exclude each other.
    Refused(String),
    Failed(String),
}

fn outcome(schedule: &Schedule, ends: &Ends) -> Outcome {
    let played = catch_unwind(AssertUnwindSafe(|| {
        let expected = ends.of(schedule)?;
        play::play(schedule, &expected).map_err(Unplayable::Failed)
    }));
    match played {
        Ok(Ok(tally)) => Outcome::Played(tally),
        Ok(Err(Unplayable::Refused(why))) => Outcome::Refused(why),
        Ok(Err(Unplayable::Failed(why))) => Outcome::Failed(why),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(|&word| word.to_owned()));
            Outcome::Failed(words.unwrap_or_default())
        }
    }
}

/// The fewest parts of a failed schedule with which it still fails.
fn minimized(failed: &Schedule, ends: &Ends) -> Schedule {
    let began = Instant::now();
    let mut smallest = failed.clone();
    // Whole groups first: what cannot matter goes at once.
    let mut size = smallest.parts.len().div_ceil(2);
    while size > 0 {
        let numbers: Vec<usize> = smallest.parts.iter().map(|(n, _)| *n).collect();
        for group in numbers.chunks(size) {
            let smaller = smallest.without(group);
            let fails = |_| matches!(outcome(&smaller, ends), Outcome::Failed(_));
            if began.elapsed() < MINIMIZING && (0..TRIES).any(fails) {
                smallest = smaller;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    smallest
}

/// What was played.
#[derive(Default)]
struct Total {
    played: usize,
    refused: Vec<u64>,
    failed: Vec<u64>,
    broken_off: usize,
    restarts: usize,
    readers: usize,
    /// How often each kind of data, model, launcher ... was in it.
    by: BTreeMap<String, usize>,
}

impl Total {
    fn count(&mut self, schedule: &Schedule, tally: &Tally) {
        self.played += 1;
        self.broken_off += tally.broken_off;
        self.restarts += tally.restarts;
        self.readers += tally.readers;
        let mut count = |what: String| *self.by.entry(what).or_default() += 1;
        count(format!("data {}", schedule.kind.name));
        count(format!("model {}", schedule.model.0));
        match schedule.mode() {
            Mode::Run => count("one run".to_owned()),
            Mode::Sweep(_) => count("a sweep".to_owned()),
            Mode::Folds => count("folds".to_owned()),
        }
        for part in schedule.all() {
            match part {
                Part::Launcher { launcher: Launcher::Torchrun, .. } => {
                    count("starts by torchrun".to_owned());
                }
                Part::Launcher { .. } => count("starts by mpirun".to_owned()),
                Part::Point { .. } => count("fail points".to_owned()),
                Part::Signal { .. } => count("signals".to_owned()),
                _ => {}
            }
        }
    }

    fn show(&self, time: Duration) {
        let Self { played, refused, failed, broken_off, restarts, readers, .. } = self;
        let by: Vec<String> = self.by.iter().map(|(what, n)| format!("{what} {n}")).collect();
        eprintln!(
            "chaos: {played} schedules in {} s: {broken_off} starts broken off, {restarts} \
             restarts, {readers} commands beside; {} wrong {failed:?}; {} refused by their \
             settings {refused:?}\n  {}",
            time.as_secs(),
            failed.len(),
            refused.len(),
            by.join(", ")
        );
    }
}

/// What is to be played, by the environment.
struct Request {
    seeds: Box<dyn Fn(u64) -> Option<u64> + Sync>,
    only: Option<Vec<usize>>,
    until: Option<Duration>,
    jobs: u64,
    is_asked: bool,
}

fn request() -> Request {
    let number = |name: &str| -> Option<u64> {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some(value.parse().unwrap_or_else(|_| panic!("{name} is no number: `{value}`")))
    };
    let (n, first) = (number("CHAOS"), number("CHAOS_SEED").unwrap_or(1));
    let until = number("CHAOS_SECONDS").map(Duration::from_secs);
    let only = std::env::var("CHAOS_ONLY").ok().filter(|text| !text.is_empty());
    let seeds: Box<dyn Fn(u64) -> Option<u64> + Sync> = match (n, until) {
        (Some(n), _) => Box::new(move |index| (index < n).then_some(first + index)),
        (None, Some(_)) => Box::new(move |index| Some(first + index)),
        (None, None) => Box::new(|index| OF_EACH_TEST.get(index as usize).copied()),
    };
    Request {
        seeds,
        only: only
            .map(|text| text.split(',').map(|number| number.trim().parse().unwrap()).collect()),
        until,
        jobs: number("CHAOS_JOBS").unwrap_or(1).max(1),
        is_asked: n.is_some() || until.is_some(),
    }
}

/// Plays schedules until there are no more.
fn play_all(request: &Request, next: &AtomicU64, ends: &Ends, total: &Mutex<Total>) {
    let began = Instant::now();
    while request.until.is_none_or(|until| began.elapsed() < until) {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(seed) = (request.seeds)(index) else { break };
        let schedule = Schedule::of(seed, request.only.as_deref());
        let start = Instant::now();
        match outcome(&schedule, ends) {
            Outcome::Played(tally) => {
                if request.is_asked {
                    let seconds = start.elapsed().as_secs_f64();
                    let Tally { broken_off, restarts, readers } = tally;
                    eprintln!(
                        "schedule {seed}: {}, {}: {broken_off} broken off, {restarts} restarts, \
                         {readers} beside; as undisturbed ({seconds:.1} s)",
                        schedule.kind.name, schedule.model.0
                    );
                }
                total.lock().unwrap().count(&schedule, &tally);
            }
            Outcome::Refused(why) => {
                eprintln!("schedule {seed} is refused: {schedule}\n{why}");
                total.lock().unwrap().refused.push(seed);
            }
            Outcome::Failed(why) => {
                eprintln!("FAILED {schedule}\n{why}\n  again: just chaos 1 {seed}");
                total.lock().unwrap().failed.push(seed);
                let smallest = minimized(&schedule, ends);
                let (few, all) = (smallest.parts.len(), schedule.parts.len());
                eprintln!(
                    "SMALLER ({few} of {all} parts): {smallest}\n  again: just chaos 1 {seed} {}",
                    smallest.numbers()
                );
            }
        }
    }
}

#[test]
fn drawn_schedules_end_as_if_nothing_had_happened() {
    let request = request();
    let began = Instant::now();
    let (next, ends, total) = (AtomicU64::new(0), Ends::default(), Mutex::default());
    // What goes wrong is part of the schedule's page.
    std::panic::set_hook(Box::new(|_| ()));
    std::thread::scope(|scope| {
        for _ in 0..request.jobs {
            scope.spawn(|| play_all(&request, &next, &ends, &total));
        }
    });
    drop(std::panic::take_hook());
    let total = total.into_inner().unwrap();
    total.show(began.elapsed());
    assert!(total.failed.is_empty() && total.refused.is_empty(), "{:?}", total.failed);
    assert!(total.played > 0, "nothing was played");
}
