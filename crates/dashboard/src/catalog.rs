//! The runs and sweeps below a folder, kept up to date from their files. Only files that have
//! changed since the last look are read again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::event::Event;
use crate::files::lock_holder;
use crate::metrics_file::Metrics;
use crate::overview::{Listed, Overview, RunView};
use crate::record::{
    DESCRIPTION, ENVIRONMENT, EPOCHS, EVENTS, METRICS, Milestones, RESOLVED, RunTime, Stamped,
    newest_of,
};
use crate::report;
use crate::runs::{self, State, TAGS};
use crate::sweep::JOURNAL;
use crate::sweeps::SweepView;

/// Version of the answers' forms.
pub(crate) const FORMAT: u32 = 1;
/// Removed runs and sweeps that are remembered for pages that ask for changes.
const MAX_REMOVED: usize = 10_000;

/// Runs and sweeps below a folder.
pub(crate) struct RunCatalog {
    root: PathBuf,
    runs: BTreeMap<String, Run>,
    sweeps: BTreeMap<String, Sweep>,
    looked: Option<Instant>,
    /// Rises with each change. It begins with the time, so that what a page has read from an earlier
    /// server is older.
    version: u64,
    /// Changes up to this version are not known one by one.
    base: u64,
    removed: VecDeque<(u64, String)>,
    next_key: u32,
}

/// The runs as they were last read, without a copy of them.
pub(crate) struct Census<'a> {
    /// Each run, with a state that knows of pruned trials.
    pub(crate) runs: Vec<(&'a RunView, State)>,
    /// Number of runs that cannot be read.
    pub(crate) unreadable: usize,
    /// Number of runs that are still to be read.
    pub(crate) unread: usize,
}

struct Run {
    folder: PathBuf,
    sweep: Option<String>,
    key: u32,
    /// Version of its last change.
    version: u64,
    /// True if its sweep has stopped it early, as last told.
    is_pruned: bool,
    stamp: Stamp,
    /// `None` until it is read.
    view: Option<Result<RunView, String>>,
    metrics: Metrics,
    events: Milestones,
    /// Steps with the seconds until then.
    timeline: Vec<(u64, f64)>,
}

struct Sweep {
    folder: PathBuf,
    stamp: Stamp,
    version: u64,
    view: Result<SweepView, String>,
}

/// Runs that a request names by their keys, `1-3,7`; all without names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys(Option<Vec<(u32, u32)>>);

impl Keys {
    /// Every run.
    pub(crate) const ALL: Self = Self(None);

    /// The runs of `text`; what names none is skipped.
    pub(crate) fn parse(text: &str) -> Self {
        let range = |part: &str| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            Some((from.parse().ok()?, to.parse().ok()?))
        };
        Self(Some(text.split(',').filter_map(range).collect()))
    }

    fn contains(&self, key: u32) -> bool {
        let is_in =
            |ranges: &Vec<(u32, u32)>| ranges.iter().any(|&(from, to)| (from..=to).contains(&key));
        self.0.as_ref().is_none_or(is_in)
    }
}

/// Detects changes: size and time of each file, and the process that writes them.
type Stamp = (Vec<Option<(u64, SystemTime)>>, Option<String>);

impl RunCatalog {
    /// An empty catalog of the runs below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        let runs = BTreeMap::new();
        let sweeps = BTreeMap::new();
        let base = Timestamp::now().as_millisecond().unsigned_abs();
        let removed = VecDeque::new();
        let root = root.to_owned();
        Self { root, runs, sweeps, looked: None, version: base, base, removed, next_key: 0 }
    }

    /// As [`Self::look`], but not sooner than `pause` after the last look.
    pub(crate) fn look_after(&mut self, pause: Duration) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= pause) && self.look()
    }

    /// Finds runs, and updates those that were read. Returns true if anything has changed.
    pub(crate) fn look(&mut self) -> bool {
        self.looked = Some(Instant::now());
        let found = runs::find(&self.root);
        let is_sweep = found.sweeps.first().is_some_and(|sweep| *sweep == self.root);
        let alone = if is_sweep { Vec::new() } else { found.runs };
        let mut folders: BTreeMap<String, (PathBuf, Option<String>)> =
            alone.into_iter().map(|folder| (self.id(&folder), (folder, None))).collect();
        let sweeps: BTreeMap<String, PathBuf> =
            found.sweeps.into_iter().map(|folder| (self.id(&folder), folder)).collect();
        for (id, folder) in &sweeps {
            for trial in runs::trials(folder) {
                folders.insert(self.id(&trial), (trial, Some(id.clone())));
            }
        }
        let now = self.version + 1;
        let gone = self.runs.keys().filter(|id| !folders.contains_key(*id));
        let gone = gone.chain(self.sweeps.keys().filter(|id| !sweeps.contains_key(*id)));
        let gone: Vec<String> = gone.cloned().collect();
        let mut has_changed = !gone.is_empty();
        self.runs.retain(|id, _| folders.contains_key(id));
        self.sweeps.retain(|id, _| sweeps.contains_key(id));
        self.forget(gone, now);
        for (id, (folder, sweep)) in folders {
            self.runs.entry(id).or_insert_with(|| {
                self.next_key += 1;
                Run::new(folder, sweep, self.next_key)
            });
        }
        for (id, folder) in sweeps {
            has_changed |= !self.sweeps.contains_key(&id);
            self.sweeps.entry(id).or_insert_with(|| Sweep::new(folder));
        }
        has_changed |= self.refresh_sweeps(now);
        let known = self.runs.iter_mut().filter(|(_, run)| run.view.is_some());
        has_changed |= refresh(known.collect(), now);
        has_changed |= self.note_pruned(now);
        if has_changed {
            self.version = now;
        }
        has_changed
    }

    /// Remembers what was removed, so that pages which ask for changes hear of it.
    fn forget(&mut self, gone: Vec<String>, now: u64) {
        self.removed.extend(gone.into_iter().map(|id| (now, id)));
        while self.removed.len() > MAX_REMOVED {
            self.base = self.removed.pop_front().map_or(self.base, |(version, _)| version);
        }
    }

    /// Notes which runs are pruned trials. Returns true if any was not known to be.
    fn note_pruned(&mut self, now: u64) -> bool {
        let sweeps = self.sweeps.values().filter_map(|sweep| sweep.view.as_ref().ok());
        let pruned: BTreeSet<String> = sweeps.flat_map(SweepView::pruned).collect();
        let mut has_changed = false;
        for (id, run) in &mut self.runs {
            if run.is_pruned != pruned.contains(id) {
                run.is_pruned = !run.is_pruned;
                run.version = now;
                has_changed = true;
            }
        }
        has_changed
    }

    /// Id of a run or sweep on the page.
    fn id(&self, folder: &Path) -> String {
        let below = folder.strip_prefix(&self.root).unwrap_or(folder);
        let text = below.to_string_lossy().into_owned();
        if text.is_empty() { ".".to_owned() } else { text }
    }

    fn refresh_sweeps(&mut self, now: u64) -> bool {
        let mut has_changed = false;
        for (id, sweep) in &mut self.sweeps {
            let files = [JOURNAL].map(|name| sweep.folder.join(name));
            let stamp = stamp(&sweep.folder, &files);
            // Trials that go on report between two lines of the journal.
            if stamp != sweep.stamp || stamp.1.is_some() {
                let view = SweepView::read(&sweep.folder, id);
                let view = view.map_err(|error| in_words(&sweep.folder, &error));
                if view != sweep.view {
                    (sweep.view, sweep.version) = (view, now);
                    has_changed = true;
                }
                sweep.stamp = stamp;
            }
        }
        has_changed
    }

    /// Reads up to `most` runs that were not yet read, the newest first; `None` if there are none.
    pub(crate) fn read_some(&mut self, most: usize) -> Option<()> {
        let mut unread: Vec<_> = self.runs.iter_mut().filter(|it| it.1.view.is_none()).collect();
        unread.sort_by(|a, b| b.1.folder.file_name().cmp(&a.1.folder.file_name()));
        unread.truncate(most);
        if unread.is_empty() {
            return None;
        }
        self.version += 1;
        refresh(unread, self.version);
        Some(())
    }

    /// Reads the long files of one run that were only glanced at; `None` if there are none left.
    pub(crate) fn read_one_long(&mut self) -> Option<()> {
        let mut runs = self.runs.iter_mut();
        let (id, run) = runs.find(|(_, run)| run.is_glanced_at())?;
        self.version += 1;
        run.version = self.version;
        let read = run.metrics.read().map(drop);
        let read = read.and_then(|()| Ok(run.events.read()?)).and_then(|()| run.read(id));
        run.view = Some(read.map_err(|error| in_words(&run.folder, &error)));
        Some(())
    }

    /// All runs with their states.
    pub(crate) fn census(&self) -> Census<'_> {
        let views = || self.runs.values().map(|run| run.view.as_ref());
        Census {
            runs: self.runs.values().filter_map(Run::with_state).collect(),
            unreadable: views().flatten().filter(|view| view.is_err()).count(),
            unread: views().filter(Option::is_none).count(),
        }
    }

    /// The answer to `api/overview`: what has changed after version `since`, or everything.
    pub(crate) fn overview(&self, since: u64) -> Overview<'_> {
        let whole = since < self.base || since > self.version;
        let is_new = |version: u64| whole || version > since;
        let mut runs: Vec<Listed<'_>> = Vec::new();
        for run in self.runs.values().filter(|run| is_new(run.version)) {
            let Some((view, state)) = run.with_state() else { continue };
            let mut view = Cow::Borrowed(view);
            if state != view.state {
                let own = view.to_mut();
                (own.state, own.reason) = (state, None);
            }
            runs.push(Listed { key: run.key, version: run.version, run: view });
        }
        runs.sort_by(|a, b| (b.run.started, &b.run.id).cmp(&(a.run.started, &a.run.id)));
        // What has come back is there; what can be read no more is not.
        let removed = self
            .removed
            .iter()
            .filter(|(version, id)| !whole && *version > since && !self.is_there(id));
        let unreadable = self
            .runs
            .iter()
            .filter(|(_, run)| !whole && run.version > since && matches!(run.view, Some(Err(_))));
        let unreadable = unreadable.map(|(id, _)| id.as_str());
        let sweeps = self.sweeps.values().filter(|sweep| is_new(sweep.version));
        let of_runs = self.runs.values().filter_map(|run| run.view.as_ref()?.as_ref().err());
        let of_sweeps = self.sweeps.values().filter_map(|sweep| sweep.view.as_ref().err());
        Overview {
            format: FORMAT,
            folder: self.root.display().to_string(),
            version: self.version,
            whole,
            now: Timestamp::now().as_millisecond(),
            runs,
            sweeps: sweeps.filter_map(|sweep| sweep.view.as_ref().ok()).collect(),
            removed: removed.map(|(_, id)| id.as_str()).chain(unreadable).collect(),
            unread: self.runs.values().filter(|run| run.view.is_none()).count(),
            problems: of_runs.chain(of_sweeps).cloned().collect(),
        }
    }

    fn is_there(&self, id: &str) -> bool {
        self.runs.contains_key(id) || self.sweeps.contains_key(id)
    }

    /// The answer to `api/series` about some runs.
    pub(crate) fn series(
        &self,
        metric: &str,
        points: usize,
        range: (u64, u64),
        keys: &Keys,
    ) -> Value {
        let mut runs = serde_json::Map::new();
        for (id, run) in self.runs.iter().filter(|(_, run)| keys.contains(run.key)) {
            if let Some(columns) = run.metrics.columns(metric, points, range) {
                runs.insert(id.clone(), serde_json::to_value(columns).unwrap_or_default());
            }
        }
        json!({ "runs": runs })
    }

    /// The answer to `api/timelines` about some runs.
    pub(crate) fn timelines(&self, keys: &Keys) -> BTreeMap<&String, &[(u64, f64)]> {
        let runs = self.runs.iter().filter(|(_, run)| keys.contains(run.key));
        runs.map(|(id, run)| (id, run.timeline.as_slice())).collect()
    }

    /// The folder of a run by its id; nothing of other folders is served.
    pub(crate) fn folder(&self, id: &str) -> Option<&Path> {
        self.runs.get(id).map(|run| run.folder.as_path())
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &String> {
        self.runs.iter().filter(|(_, run)| matches!(run.view, Some(Ok(_)))).map(|(id, _)| id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.sweeps.is_empty()
    }
}

impl Run {
    fn new(folder: PathBuf, sweep: Option<String>, key: u32) -> Self {
        let metrics = Metrics::new(&folder);
        let events = Milestones::new(&folder.join(EVENTS));
        let stamp = Stamp::default();
        let view = None;
        let timeline = Vec::new();
        let (version, is_pruned) = (0, false);
        Self { folder, sweep, key, version, is_pruned, stamp, view, metrics, events, timeline }
    }

    /// What can be read of it, with a state that knows of pruned trials.
    fn with_state(&self) -> Option<(&RunView, State)> {
        let view = self.view.as_ref()?.as_ref().ok()?;
        let is_pruned = self.is_pruned && view.state != State::Running;
        Some((view, if is_pruned { State::Pruned } else { view.state }))
    }

    /// True if long files have been read only in part.
    fn is_glanced_at(&self) -> bool {
        let is_part = self.metrics.is_sketch() || !self.events.is_whole();
        is_part && matches!(self.view, Some(Ok(_)))
    }

    /// Reads the files that have changed. Returns true if any has.
    fn refresh(&mut self, id: &str, now: u64) -> bool {
        let names = [EVENTS, METRICS, EPOCHS, ENVIRONMENT, TAGS, "failure.json", "eval.json"];
        let mut files: Vec<PathBuf> = names.iter().map(|name| self.folder.join(name)).collect();
        files.extend([DESCRIPTION, RESOLVED].map(|name| newest_of(&self.folder, name)));
        let stamp = stamp(&self.folder, &files);
        if stamp == self.stamp && self.view.is_some() {
            return false;
        }
        (self.stamp, self.version) = (stamp, now);
        let read = self.glance().and_then(|()| self.read(id));
        self.view = Some(read.map_err(|error| in_words(&self.folder, &error)));
        true
    }

    /// Reads on; long files that were not yet read, in part.
    fn glance(&mut self) -> Result<(), runs::Error> {
        if self.metrics.is_sketch() {
            self.metrics.glance()?;
        } else {
            self.metrics.read()?;
        }
        Ok(self.events.glance()?)
    }

    /// Builds the view from the files as read so far.
    fn read(&mut self, id: &str) -> Result<RunView, runs::Error> {
        self.timeline = timeline(&self.events.log().events);
        let records = report::with_log(&self.folder, self.events.log().clone())?;
        let mut summary = runs::summary_of(&self.folder, &records)?;
        if summary.state != State::Running && self.events.is_whole() {
            self.events.forget();
        }
        summary.sweep.clone_from(&self.sweep);
        let config = runs::config(&self.folder).unwrap_or_default();
        let config = runs::leaves(&config).into_iter();
        let config =
            config.map(|(key, value)| (key, serde_json::to_value(value).unwrap_or_default()));
        let extents = self.metrics.extents();
        Ok(RunView::of(id.to_owned(), summary, extents, config.collect()))
    }
}

/// Refreshes runs on several threads: at the start there may be hundreds. Returns true if any has
/// changed.
fn refresh(mut runs: Vec<(&String, &mut Run)>, now: u64) -> bool {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = runs.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let part = |part: &mut [(&String, &mut Run)]| {
            part.iter_mut().fold(false, |any, (id, run)| run.refresh(id, now) | any)
        };
        let threads: Vec<_> =
            runs.chunks_mut(share).map(|chunk| scope.spawn(move || part(chunk))).collect();
        // A reader that panics must not take the page with it.
        threads.into_iter().fold(false, |any, thread| thread.join().unwrap_or(true) | any)
    })
}

impl Sweep {
    fn new(folder: PathBuf) -> Self {
        Self { folder, stamp: Stamp::default(), version: 0, view: Err(String::new()) }
    }
}

fn stamp(folder: &Path, files: &[PathBuf]) -> Stamp {
    let of = |path: &PathBuf| {
        let found = path.metadata().ok()?;
        Some((found.len(), found.modified().ok()?))
    };
    (files.iter().map(of).collect(), lock_holder(folder))
}

fn in_words(folder: &Path, error: &dyn std::error::Error) -> String {
    let text = runs::in_words(error);
    let place = folder.display().to_string();
    if text.contains(&place) { text } else { format!("{place}: {text}") }
}

/// Places of a timeline.
const MAX_PLACES: usize = 64;

/// Steps with the seconds until then, both rising.
fn timeline(events: &[Stamped]) -> Vec<(u64, f64)> {
    let mut places: Vec<(u64, f64)> = Vec::new();
    let mut run_time = RunTime::default();
    for Stamped { time, step, event } in events {
        if let Event::Started(started) = event {
            run_time.restart();
            // What is done again counts where it is done the last time.
            places.retain(|(known, _)| *known < started.resumed_from);
        }
        let seconds = run_time.advance(*time);
        // A checkpoint is said some steps after its own.
        if !matches!(event, Event::Saved(_)) && places.last().is_none_or(|last| last.0 < *step) {
            places.push((*step, seconds));
        }
    }
    let stride = places.len().div_ceil(MAX_PLACES).max(1);
    let last = places.len().saturating_sub(1);
    let kept = places.into_iter().enumerate();
    kept.filter(|(at, _)| at % stride == 0 || *at == last).map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example_events;

    fn write(folder: &Path, name: &str, text: &str) {
        crate::files::write_atomic(&folder.join(name), text.as_bytes()).unwrap();
    }

    /// A run that has just begun.
    fn begin(root: &Path, name: &str) -> PathBuf {
        let folder = root.join(name).join("20261120-130000-0001");
        std::fs::create_dir_all(&folder).unwrap();
        let started = json!({
            "time": "2026-11-20T13:00:00Z", "step": 0, "event": "started", "format": 1,
            "version": "0.1.0", "name": name, "run": "20261120-130000-0001", "arithmetic": [],
            "devices": ["cpu"], "steps_per_epoch": 10, "total_steps": 100, "resumed_from": 0,
        });
        write(&folder, EVENTS, &format!("{started}\n"));
        write(&folder, METRICS, "step,epoch,train/loss\n");
        write(&folder, RESOLVED, "[experiment]\n");
        folder
    }

    fn ids<'a>(overview: &'a Overview<'_>) -> Vec<&'a str> {
        overview.runs.iter().map(|listed| listed.run.id.as_str()).collect()
    }

    #[test]
    fn a_page_is_told_what_has_changed_since_it_asked() {
        let root = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| begin(root.path(), name));
        let mut catalog = RunCatalog::new(root.path());
        catalog.look();
        while catalog.read_some(1).is_some() {}
        let first = catalog.overview(0);
        assert!(first.problems.is_empty(), "{:?}", first.problems);
        assert!(first.whole && first.removed.is_empty());
        assert_eq!(ids(&first), ["b/20261120-130000-0001", "a/20261120-130000-0001"]);
        assert_ne!(first.runs[0].key, first.runs[1].key);
        let version = first.version;
        let nothing = catalog.overview(version);
        assert!(!nothing.whole && nothing.runs.is_empty());
        assert!(!catalog.look() && catalog.version == version, "nothing has changed");
        write(&a, METRICS, "step,epoch,train/loss\n1,1,0.5\n");
        assert!(catalog.look());
        assert_eq!(ids(&catalog.overview(version)), ["a/20261120-130000-0001"]);
        // Tags that cannot be read hide nothing else of a run.
        write(&a, TAGS, "{");
        assert!(catalog.look());
        let found = catalog.overview(version);
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        assert!(found.runs[0].run.problem.as_ref().unwrap().contains("tags.json"));
        std::fs::remove_dir_all(&b).unwrap();
        assert!(catalog.look());
        assert_eq!(catalog.overview(version).removed, ["b/20261120-130000-0001"]);
        assert!(catalog.overview(0).removed.is_empty(), "who asks for all knows none of them");
        begin(root.path(), "b");
        catalog.look();
        while catalog.read_some(1).is_some() {}
        let back = catalog.overview(version);
        assert!(back.removed.is_empty() && back.runs.len() == 2);
        // What another server has told is not known here.
        assert!(catalog.overview(catalog.base - 1).whole && catalog.overview(u64::MAX).whole);
    }

    #[test]
    fn runs_are_named_by_ranges_of_keys() {
        let keys = Keys::parse("1-3,7,x,9-");
        let named: Vec<u32> = (0..12).filter(|&key| keys.contains(key)).collect();
        assert_eq!(named, [1, 2, 3, 7]);
        assert!(Keys::ALL.contains(5) && !Keys::parse("").contains(5));
    }

    #[test]
    fn pauses_and_what_was_done_again_do_not_count() {
        let at = |second: i64, event: Event| {
            let time = Timestamp::from_second(1_700_000_000 + second).unwrap();
            Stamped { time, step: event.step().unwrap_or(0), event }
        };
        let step = |step| Event::StepDone(example_events::step_done(step));
        let start = |step| Event::Started(example_events::started(step));
        let events = [
            at(0, start(0)),
            at(5, step(20)),
            at(9, step(30)),
            at(1000, start(20)),
            at(1004, step(30)),
        ];
        assert_eq!(timeline(&events), [(0, 0.0), (20, 9.0), (30, 13.0)]);
        assert!(timeline(&[]).is_empty());
    }
}
