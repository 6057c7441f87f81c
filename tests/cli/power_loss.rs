//! The power goes between any two calls of a run, and of what was not synced any part is lost.
//!
//! A run notes its calls; each crash point of them has as many disks as there are subsets of what
//! had not been synced then: all of them where they are few, a drawn sample where they are many.
//! The real code must find the checkpoint that was promised, or the one that was being made, on
//! every one.

mod disk;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ddprun::internals::checkpoint;
use ddprun::rng::{Key, Purpose};

use crate::harness::bits::{Bits, bits};
use crate::harness::experiments::four_steps;
use crate::harness::lab::{Lab, flip_a_bit};
use crate::harness::running::spawn;
use crate::power_loss::disk::{Content, Disk, Tree};

/// Where the calls of a run are noted.
const NOTED: &str = "calls.jsonl";
/// Open pieces of which every subset is tried.
const MAX_EXHAUSTIVE: usize = 9;
/// Subsets that are drawn where there are more.
const DRAWN: u64 = 40;
/// What of a run's folder decides whether it can go on.
const RECORDS: [&str; 5] =
    ["run.json", "resolved.toml", "events.jsonl", "metrics.csv", "epochs.jsonl"];

/// A run whose calls were noted, and what it wrote.
struct Noted {
    disk: Disk,
    /// Where its checkpoints go, and its records.
    checkpoints: PathBuf,
    logs: PathBuf,
    /// Each checkpoint as it was renamed to its name.
    made: Vec<Made>,
}

#[derive(Clone)]
struct Made {
    step: u64,
    /// The call that gave it its name.
    renamed: usize,
    /// The call after which it must be there for ever.
    promised: usize,
    files: Tree,
}

/// Runs `args` in `lab` and notes what it does to the disk.
fn noted(lab: &Lab, args: &[&str]) -> Noted {
    let start = disk::read(&lab.path(""));
    let mut command = lab.ddprun(args);
    command.env("DDPRUN_FILE_CALLS", lab.path(NOTED));
    // However slow the disk is, each checkpoint is made.
    command.env("DDPRUN_FP", "checkpoint.queued=wait@*,*,*");
    spawn(command).wait().has_code(0);
    let root = lab.path("");
    let below = |path: PathBuf| path.strip_prefix(&root).unwrap().to_owned();
    let disk = Disk::after(&start, disk::calls(&lab.path(NOTED), &root));
    fs::remove_file(lab.path(NOTED)).unwrap();
    Noted::of(disk, below(lab.checkpoints()), below(lab.run_folder()))
}

/// The step of a checkpoint's folder.
fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

/// What is below `folder`, by paths from there on.
fn below(tree: &Tree, folder: &Path) -> Tree {
    let inside = tree.iter().filter(|(path, _)| path.starts_with(folder) && *path != folder);
    inside
        .map(|(path, content)| (path.strip_prefix(folder).unwrap().to_owned(), content.clone()))
        .collect()
}

impl Noted {
    fn of(disk: Disk, checkpoints: PathBuf, logs: PathBuf) -> Self {
        let mut made = Vec::new();
        for (n, call) in disk.calls.iter().enumerate() {
            let to = call.paths.last().unwrap();
            let is_new = matches!(call.name.as_str(), "rename" | "exchange")
                && to.parent() == Some(&checkpoints);
            if let Some(step) = step_of(to).filter(|_| is_new) {
                let files = below(&disk.seen(n + 1), to);
                let is_sync =
                    |call: &disk::Call| call.name == "sync" && call.paths[0] == checkpoints;
                let promised = n + disk.calls[n..].iter().position(is_sync).unwrap() + 1;
                made.push(Made { step, renamed: n, promised, files });
            }
        }
        Self { disk, checkpoints, logs, made }
    }

    /// The checkpoints of which one must be found when the power goes before the call `n`; 0 is the
    /// beginning.
    fn admitted(&self, n: usize, start: u64) -> (u64, u64) {
        let newest = |is: &dyn Fn(&Made) -> bool| {
            self.made.iter().rev().find(|made| is(made)).map_or(start, |made| made.step)
        };
        (newest(&|made| made.promised <= n), newest(&|made| made.renamed < n))
    }

    /// Moments at which the power may go, so that all others are among their subsets: before a call
    /// that makes something durable or gives a checkpoint its name, and after the last.
    fn moments(&self) -> impl Iterator<Item = usize> {
        let is_turn = |(n, call): (usize, &disk::Call)| {
            let gives_name = self.made.iter().any(|made| made.renamed == n);
            (call.name == "sync" || gives_name).then_some(n)
        };
        self.disk.calls.iter().enumerate().filter_map(is_turn).chain([self.disk.calls.len()])
    }

    /// Subsets of what is open before the call `n`. Of what concerns checkpoints all, if they are
    /// few; of the records, some of each.
    fn subsets(&self, n: usize) -> Vec<Vec<usize>> {
        let open = self.disk.open(n, &self.checkpoints);
        let others: Vec<usize> = self.disk.open(n, Path::new(""));
        let count = if open.len() <= MAX_EXHAUSTIVE {
            1 << open.len()
        } else {
            3 * open.len() + DRAWN as usize
        };
        let is_kept =
            |set: usize, index: usize| match (open.len() <= MAX_EXHAUSTIVE, set / 3, set % 3) {
                (true, ..) => set >> index & 1 == 1,
                (false, one, 0) if one < open.len() => index == one,
                (false, one, 1) if one < open.len() => index != one,
                (false, one, 2) if one < open.len() => index < one,
                _ => share(n, set, index) < [0.1, 0.5, 0.9][set % 3],
            };
        let subset = |set: usize| {
            let mut kept: Vec<usize> =
                (0..open.len()).filter(|&index| is_kept(set, index)).map(|i| open[i]).collect();
            let is_lucky = |piece: &usize| {
                share(n, set, *piece) < [0.0, 0.3, 0.7, 1.0][set % 4] && !open.contains(piece)
            };
            kept.extend(others.iter().copied().filter(is_lucky));
            kept.sort_unstable();
            kept
        };
        (0..count.max(4)).map(subset).collect()
    }

    /// Looks at every disk on which a run with the checkpoint `start` can find itself, and says how
    /// many there are; or what is wrong with the first that is not as it must be.
    fn look(&self, start: u64, from: usize) -> Result<(usize, usize), String> {
        let (mut seen, mut disks) = (BTreeSet::new(), 0);
        for n in self.moments().filter(|&n| n >= from) {
            let admitted = self.admitted(n, start);
            for kept in self.subsets(n) {
                disks += 1;
                let relevant = self.relevant(&self.disk.tree(n, &kept));
                if seen.insert((admitted, disk::hash(&relevant))) {
                    self.judge(&relevant, admitted)
                        .map_err(|why| format!("before call {n}, with {kept:?}: {why}"))?;
                }
            }
        }
        Ok((disks, seen.len()))
    }

    /// What a resumed run looks at: no temporaries, which it removes without looking.
    fn relevant(&self, tree: &Tree) -> Tree {
        let is_temporary =
            |path: &Path| path.iter().any(|name| name.to_str().unwrap().ends_with(".ddprun-tmp"));
        let records: BTreeSet<PathBuf> = RECORDS.iter().map(|name| self.logs.join(name)).collect();
        tree.iter()
            .filter(|(path, _)| path.starts_with(&self.checkpoints) || records.contains(*path))
            .filter(|(path, _)| !is_temporary(path))
            .map(|(path, content)| (path.clone(), content.clone()))
            .collect()
    }

    fn judge(&self, tree: &Tree, (promised, newest): (u64, u64)) -> Result<(), String> {
        let found = self.found(tree)?;
        if found != promised && found != newest {
            return Err(format!("checkpoint {found} instead of {promised} or {newest}"));
        }
        if found == 0 {
            return Ok(());
        }
        self.must_lead_somewhere(tree)?;
        for name in &RECORDS[..2] {
            let path = self.logs.join(name);
            let whole = [0, self.disk.calls.len()].map(|n| self.disk.seen(n).remove(&path));
            if !tree.contains_key(&path) || !whole.contains(&tree.get(&path).cloned()) {
                return Err(format!("`{name}` is not whole, so it cannot be resumed"));
            }
        }
        self.must_say(tree, found)
    }

    /// The step of the checkpoint that the real code finds on such a disk; 0 if there is none.
    fn found(&self, tree: &Tree) -> Result<u64, String> {
        let folder = tempfile::tempdir().unwrap();
        disk::put(&below(tree, &self.checkpoints), folder.path());
        let all = checkpoint::all(folder.path()).map_err(|error| error.to_string())?;
        for found in &all {
            let files = below(tree, &self.checkpoints.join(found.path.file_name().unwrap()));
            let was_there = below(&self.disk.seen(0), &self.checkpoints.join(name(found.step)));
            let mut written = self.made.iter().filter(|made| made.step == found.step);
            if files != was_there && !written.any(|made| made.files == files) {
                return Err(format!("`{}` is not what was written", found.path.display()));
            }
        }
        if all.is_empty() {
            return Ok(0);
        }
        let newest = checkpoint::newest(folder.path()).map_err(|error| error.to_string())?;
        Ok(newest.state.step)
    }

    /// `latest` and `best`, where they are there, point at checkpoints.
    fn must_lead_somewhere(&self, tree: &Tree) -> Result<(), String> {
        for (path, content) in tree.iter().filter(|(path, _)| path.starts_with(&self.checkpoints)) {
            if let Content::Link(target) = content
                && !tree.contains_key(&self.checkpoints.join(target))
            {
                return Err(format!("`{}` leads nowhere: {}", path.display(), target.display()));
            }
        }
        Ok(())
    }

    /// The records hold what was said up to the checkpoint of `step`, which a resumed run does not
    /// say again.
    fn must_say(&self, tree: &Tree, step: u64) -> Result<(), String> {
        let text_of = |tree: &Tree, name: &str| match tree.get(&self.logs.join(name)) {
            Some(Content::File(bytes)) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            _ => Err(format!("`{name}` is gone")),
        };
        let epochs = text_of(tree, RECORDS[4])?;
        let whole = text_of(&self.disk.seen(self.disk.calls.len()), RECORDS[4])?;
        let is_over = |line: &&str| {
            let epoch: serde_json::Value = serde_json::from_str(line).unwrap();
            epoch["step"].as_u64().unwrap() <= step
        };
        if let Some(missing) = whole.lines().filter(is_over).find(|line| !epochs.contains(line)) {
            return Err(format!("`{}` does not have {missing}", RECORDS[4]));
        }
        for name in &RECORDS[2..4] {
            let text = text_of(tree, name)?;
            let said: BTreeSet<u64> = text.lines().filter_map(step_in).collect();
            if let Some(missing) = (1..=step).find(|step| !said.contains(step)) {
                return Err(format!("`{name}` does not have step {missing} of {step}"));
            }
        }
        Ok(())
    }
}

/// The step that a line of `events.jsonl` or `metrics.csv` is about.
fn step_in(line: &str) -> Option<u64> {
    if let Ok(event) = serde_json::from_str::<serde_json::Value>(line) {
        let is_step = event["event"] == "step_done";
        return event["step"].as_u64().filter(|_| is_step);
    }
    line.split(',').next()?.parse().ok()
}

fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// A number below 1 that is the same in every run.
fn share(n: usize, set: usize, piece: usize) -> f64 {
    Key::new(1, Purpose::Draw, n as u64, set as u64).uniform(piece as u64)
}

/// A run of six steps with three checkpoints of some sectors each.
fn three_checkpoints(keep_last: usize) -> String {
    let small = four_steps().replace("steps = 4", "steps = 6").replace("[16]", "[2]");
    let small = small.replace("image_size = 16", "image_size = 8");
    format!("{small}keep_last = {keep_last}\nkeep_best = 1\n")
}

/// The undisturbed run: its data, and what all others must end with.
fn undisturbed() -> (Lab, String, Bits) {
    let lab = Lab::with(&three_checkpoints(1));
    let data = format!("data.dir={}", lab.path("data/shapes").display());
    lab.run_to(0, &["small.toml", &data]);
    let expected = bits(&lab);
    (lab, data, expected)
}

#[test]
fn a_power_loss_at_any_moment_leaves_the_old_checkpoint_or_the_new_one() {
    let (_data, data, expected) = undisturbed();
    let lab = Lab::with(&three_checkpoints(1));
    let noted = noted(&lab, &["small.toml", &data]);
    assert_eq!(noted.made.iter().map(|made| made.step).collect::<Vec<_>>(), [2, 4, 6]);
    let (disks, judged) = noted.look(0, 0).unwrap();
    println!("{} calls, {disks} disks, {judged} different ones", noted.disk.calls.len());
    assert!(judged > 50, "{judged}");
    noted.each_sync_is_needed();
    for seed in 0..RESUMED {
        noted.a_resumed_run_ends_with(&expected, &data, seed);
    }
}

/// Disks on which the program itself goes on.
const RESUMED: usize = 3;

impl Noted {
    /// Calls that make something durable of which each group is needed: those of the second
    /// checkpoint one by one, that between the new name of a checkpoint and its removal, that of
    /// the epochs, and for each folder above them all.
    fn needed(&self) -> Vec<Vec<usize>> {
        let calls = || self.disk.calls.iter().enumerate();
        let syncs = |is: &dyn Fn(usize, &Path) -> bool| -> Vec<usize> {
            let found = calls().filter(|(n, call)| call.name == "sync" && is(*n, &call.paths[0]));
            found.map(|(n, _)| n).collect()
        };
        let (named, promised) = (self.made[1].renamed, self.made[1].promised);
        let begun = calls().rfind(|(n, call)| *n < named && call.name == "make folder").unwrap().0;
        let second = begun..promised;
        let records: Vec<PathBuf> = RECORDS[2..4].iter().map(|name| self.logs.join(name)).collect();
        let is_ours =
            |path: &Path| path.starts_with(&self.checkpoints) || records.contains(&path.into());
        let mut groups: Vec<Vec<usize>> = syncs(&|n, path| second.contains(&n) && is_ours(path))
            .into_iter()
            .map(|n| vec![n])
            .collect();
        assert_eq!(groups.len(), 8, "{groups:?}");
        let is_removal = |(_, call): &(usize, &disk::Call)| {
            call.name == "rename" && step_of(&call.paths[0]).is_some()
        };
        let removal =
            calls().rfind(|(n, call)| second.end < *n && is_removal(&(*n, *call))).unwrap().0;
        groups.push(vec![removal + 1]);
        // The epoch ends with the third checkpoint.
        let epochs = self.logs.join(RECORDS[4]);
        let third = syncs(&|n, path| n < self.made[2].renamed && path == epochs);
        groups.push(third.into_iter().rev().take(1).collect());
        let above =
            [&self.checkpoints, &self.logs].into_iter().flat_map(|path| path.ancestors().skip(1));
        let above: BTreeSet<&Path> = above.chain([self.logs.as_path()]).collect();
        groups.extend(above.into_iter().map(|folder| syncs(&|_, path| path == folder)));
        groups
    }

    /// Without any of the calls that make something durable, a power loss costs something.
    fn each_sync_is_needed(&self) {
        for group in self.needed() {
            let mut calls = self.disk.calls.clone();
            for &n in &group {
                calls[n].name = "nothing".into();
            }
            let disk = Disk::after(&self.disk.seen(0), calls);
            let (checkpoints, logs) = (self.checkpoints.clone(), self.logs.clone());
            let without = Self { disk, checkpoints, logs, made: self.made.clone() };
            let path = self.disk.calls[group[0]].paths[0].display();
            assert!(without.look(0, group[0]).is_err(), "without {group:?}, the syncs of `{path}`");
        }
    }

    /// What the program makes of one of the disks after the first checkpoint.
    fn a_resumed_run_ends_with(&self, expected: &Bits, data: &str, seed: usize) {
        let (first, last) = (self.made[0].promised, self.disk.calls.len());
        let n = first + (share(0, seed, 0) * (last - first) as f64) as usize;
        let mut kept = self.disk.open(n, Path::new(""));
        kept.retain(|piece| share(n, seed, *piece) < 0.5);
        let lab = Lab::with("");
        disk::put(&self.disk.tree(n, &kept), &lab.path(""));
        lab.run_to(0, &["resume", data]).says(&["resumed after step "]);
        bits(&lab).must_be(expected);
        lab.is_clean();
    }
}

#[test]
fn a_power_loss_while_a_damaged_checkpoint_is_replaced_leaves_the_one_before_it_or_the_new_one() {
    let (_data, data, _) = undisturbed();
    let lab = Lab::with(&three_checkpoints(2));
    lab.run_to(0, &["small.toml", &data]);
    flip_a_bit(&lab.steps()[1].join("model.safetensors"));
    let noted = noted(&lab, &["resume", &data]);
    assert_eq!(noted.made.iter().map(|made| made.step).collect::<Vec<_>>(), [6]);
    let (disks, judged) = noted.look(4, 0).unwrap();
    println!("{} calls, {disks} disks, {judged} different ones", noted.disk.calls.len());
}
