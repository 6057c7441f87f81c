//! Clocks that differ from machine to machine, and a time of day that is set while a run trains.

use std::process::Command;

use jiff::Timestamp;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::harness::bits::{bits, must_be_whole};
use crate::harness::experiments::BASE;
use crate::harness::lab::Lab;
use crate::harness::running::{Running, pid_of, spawn, until};
use crate::machines::{Machines, end, state};
use crate::skipped::skipped;
use crate::sweeps;

/// Moves the time of day of the processes that load it by as many seconds as the file `CLOCK_SHIFT`
/// holds at the moment. The machine's own clock stays as it is.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
    if (clock == CLOCK_REALTIME) {
        char text[32] = {0};
        int before = errno, file = open(getenv("CLOCK_SHIFT"), O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0) now->tv_sec += atoll(text);
            close(file);
        }
        errno = before;
    }
    return 0;
}
"#;

/// What no time of day can be set without.
const COMPILER: &str = "no C compiler `cc`";

const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 24 * HOUR;

/// A time of day for the processes of a lab, which can be set.
struct Clock<'a>(&'a Lab);

impl<'a> Clock<'a> {
    /// Shows the machine's time; `None` where nothing can be compiled.
    fn new(lab: &'a Lab) -> Option<Self> {
        let clock = Self(lab);
        clock.set(0);
        let source = lab.write("clock.c", SHIM);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).args([lab.path("clock.so"), source]);
        cc.status().is_ok_and(|status| status.success()).then_some(clock)
    }

    /// Sets it to so many seconds after the machine's, for all of its processes at once.
    fn set(&self, seconds: i64) {
        let next = self.0.write("shift.next", seconds.to_string());
        std::fs::rename(next, self.0.path("shift")).unwrap();
    }

    fn on(&self, mut command: Command) -> Command {
        command.env("LD_PRELOAD", self.0.path("clock.so"));
        command.env("CLOCK_SHIFT", self.0.path("shift"));
        command
    }
}

/// By how many hours the recorded time of day jumped from line to line, where it did.
fn jumps(lines: &[Value]) -> Vec<i64> {
    let time = |line: &Value| line["time"].as_str().unwrap().parse::<Timestamp>().unwrap();
    let times: Vec<i64> = lines.iter().map(|line| time(line).as_second()).collect();
    let hours = times.windows(2).map(|pair| (pair[1] - pair[0] + HOUR / 2).div_euclid(HOUR));
    hours.filter(|&hours| hours != 0).collect()
}

#[test]
fn a_time_of_day_that_is_set_in_the_middle_of_a_run_changes_nothing() {
    let changes = [
        "small.toml",
        "validation.every=never",
        "checkpoint.every=20 steps",
        "logging.every=5 steps",
        "fault.stall_timeout=1s",
        "fault.max_restarts=1",
    ];
    let lab = Lab::new();
    let Some(clock) = Clock::new(&lab) else {
        skipped(COMPILER);
        return;
    };
    let endless = [&changes[..], &["train.epochs=1000000"]].concat();
    let mut running = spawn(clock.on(lab.ddprun(&endless)));
    lab.wait_for_step_and_save(&mut running, 20);
    for shift in [HOUR, -YEAR] {
        clock.set(shift);
        let step = lab.last_step();
        lab.wait_for_step(&mut running, step + 20);
    }
    assert!(!running.is_over(), "{}", running.stderr());
    for word in ["warning", "restart", "error"] {
        assert!(!running.stderr().contains(word), "{}", running.stderr());
    }
    // Patience is not measured with it either.
    kill_process(pid_of(running.ranks()[1]), Signal::STOP).unwrap();
    until("the restart", || running.stderr().contains("restart 1 of 1, from the newest"));
    let step = lab.last_step();
    lab.wait_for_step(&mut running, step + 20);
    running.signal(Signal::TERM);
    running.wait().has_code(75);
    assert_eq!(jumps(&lab.events()), [1, -1 - YEAR / HOUR], "rank 0 saw another time of day");
    must_be_whole(&lab);
    let epochs = format!("train.epochs={}", lab.last_step() / 6 + 2);
    let resumed = spawn(clock.on(lab.ddprun(&["resume", &epochs]))).wait();
    resumed.has_code(0);
    let undisturbed = Lab::new();
    undisturbed.run_to(0, &[&changes[..], &[&epochs]].concat());
    bits(&lab).must_be(&bits(&undisturbed));
    lab.is_clean();
}

#[test]
fn a_time_of_day_that_is_set_in_the_middle_of_a_sweep_changes_nothing() {
    let lab = sweeps::lab(BASE, sweeps::GRID);
    let Some(clock) = Clock::new(&lab) else {
        skipped(COMPILER);
        return;
    };
    let command = || clock.on(lab.ddprun(&["sweep", "tune.toml"]));
    let mut running = spawn(command());
    for (trials, shift) in [(1, HOUR), (2, -YEAR)] {
        until("a trial", || running.is_over() || sweeps::ended(&lab).len() >= trials);
        clock.set(shift);
    }
    until("a trial", || running.is_over() || sweeps::journal(&lab).len() >= 7);
    assert!(!running.is_over(), "{}", running.stderr());
    running.signal(Signal::KILL);
    running.wait();
    until("the end of all ranks", || lab.processes().is_empty());
    spawn(command()).wait().has_code(0);
    assert_eq!(jumps(&sweeps::journal(&lab)), [1, -1 - YEAR / HOUR]);
    let undisturbed = sweeps::lab(BASE, sweeps::GRID);
    undisturbed.run_to(0, &["sweep", "tune.toml"]);
    assert_eq!(sweeps::told(&lab), sweeps::told(&undisturbed));
    lab.is_clean();
}

/// Both machines end as one of as many ranks does.
fn have_the_bits_of_one(machines: &Machines, all: Vec<Running>) {
    for ended in end(all) {
        ended.has_code(0);
    }
    let one = Lab::with(BASE);
    one.run_to(0, &["small.toml"]);
    assert!(state(&machines.labs[0]) == state(&one));
    machines.are_clean();
}

/// The small experiment, as the second of two machines runs it.
fn on_the_second(machines: &Machines) -> Command {
    machines.command(&machines.labs[1], 1, &["small.toml", "--nproc-per-node", "1"], &[])
}

#[test]
fn machines_whose_times_of_day_differ_by_a_year_have_the_bits_of_one() {
    let machines = Machines::new(2);
    let Some(clock) = Clock::new(&machines.labs[1]) else {
        skipped(COMPILER);
        return;
    };
    clock.set(-YEAR);
    let first = machines.start(0, &[]);
    let second = spawn(clock.on(on_the_second(&machines)));
    have_the_bits_of_one(&machines, vec![first, second]);
}

#[test]
fn monotonic_clocks_that_differ_by_an_hour_change_nothing() {
    let machines = Machines::new(2);
    let clocks = ["-UrT", "--monotonic=3600", "--boottime=3600", "--fork"];
    let can = Command::new("unshare").args(clocks).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        skipped("no clocks of its own (`unshare -UrT`)");
        return;
    }
    let first = machines.start(0, &[]);
    let ours = on_the_second(&machines);
    let mut command = machines.labs[1].command("unshare", &clocks);
    command.arg(ours.get_program()).args(ours.get_args());
    have_the_bits_of_one(&machines, vec![first, spawn(command)]);
}
