//! The runs and sweeps below a folder, kept up to date from their files. Only files that have
//! changed since the last look are read again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::event::Event;
use crate::files::lock_holder;
use crate::metrics_file::Metrics;
use crate::overview::{Overview, RunView};
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

/// Runs and sweeps below a folder.
pub(crate) struct RunCatalog {
    root: PathBuf,
    runs: BTreeMap<String, Run>,
    sweeps: BTreeMap<String, Sweep>,
    looked: Option<Instant>,
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
    view: Result<SweepView, String>,
}

/// Detects changes: size and time of each file, and the process that writes them.
type Stamp = (Vec<Option<(u64, SystemTime)>>, Option<String>);

impl RunCatalog {
    /// An empty catalog of the runs below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        let runs = BTreeMap::new();
        let sweeps = BTreeMap::new();
        Self { root: root.to_owned(), runs, sweeps, looked: None }
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
        let before = (self.runs.len(), self.sweeps.len());
        self.runs.retain(|id, _| folders.contains_key(id));
        self.sweeps.retain(|id, _| sweeps.contains_key(id));
        let mut has_changed = before != (self.runs.len(), self.sweeps.len());
        for (id, (folder, sweep)) in folders {
            self.runs.entry(id).or_insert_with(|| Run::new(folder, sweep));
        }
        for (id, folder) in sweeps {
            self.sweeps.entry(id).or_insert_with(|| Sweep::new(folder));
        }
        has_changed |= self.refresh_sweeps();
        let known = self.runs.iter_mut().filter(|(_, run)| run.view.is_some());
        has_changed | refresh(known.collect())
    }

    /// Id of a run or sweep on the page.
    fn id(&self, folder: &Path) -> String {
        let below = folder.strip_prefix(&self.root).unwrap_or(folder);
        let text = below.to_string_lossy().into_owned();
        if text.is_empty() { ".".to_owned() } else { text }
    }

    fn refresh_sweeps(&mut self) -> bool {
        let mut has_changed = false;
        for (id, sweep) in &mut self.sweeps {
            let files = [JOURNAL].map(|name| sweep.folder.join(name));
            let stamp = stamp(&sweep.folder, &files);
            // Trials that go on report between two lines of the journal.
            if stamp != sweep.stamp || stamp.1.is_some() {
                let view = SweepView::read(&sweep.folder, id);
                sweep.view = view.map_err(|error| in_words(&sweep.folder, &error));
                has_changed |= stamp != sweep.stamp;
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
        refresh(unread);
        Some(())
    }

    /// Reads the long files of one run that were only glanced at; `None` if there are none left.
    pub(crate) fn read_one_long(&mut self) -> Option<()> {
        let mut runs = self.runs.iter_mut();
        let (id, run) = runs.find(|(_, run)| run.is_glanced_at())?;
        let read = run.metrics.read().map(drop);
        let read = read.and_then(|()| Ok(run.events.read()?)).and_then(|()| run.read(id));
        run.view = Some(read.map_err(|error| in_words(&run.folder, &error)));
        Some(())
    }

    /// All runs with their states.
    pub(crate) fn census(&self) -> Census<'_> {
        let sweeps = self.sweeps.values().filter_map(|sweep| sweep.view.as_ref().ok());
        let pruned: BTreeSet<String> = sweeps.flat_map(SweepView::pruned).collect();
        let with_state = |view: &'_ RunView| {
            let is_pruned = view.state != State::Running && pruned.contains(&view.id);
            if is_pruned { State::Pruned } else { view.state }
        };
        let views = || self.runs.values().map(|run| run.view.as_ref());
        Census {
            runs: views().flatten().flatten().map(|view| (view, with_state(view))).collect(),
            unreadable: views().flatten().filter(|view| view.is_err()).count(),
            unread: views().filter(Option::is_none).count(),
        }
    }

    /// The answer to `api/overview`.
    pub(crate) fn overview(&self) -> Overview {
        let mut views: Vec<RunView> = Vec::new();
        for (view, state) in self.census().runs {
            let mut view = view.clone();
            if state != view.state {
                (view.state, view.reason) = (state, None);
            }
            views.push(view);
        }
        views.sort_by(|a, b| (b.started, &b.id).cmp(&(a.started, &a.id)));
        let of_runs = self.runs.values().filter_map(|run| run.view.as_ref()?.as_ref().err());
        let of_sweeps = self.sweeps.values().filter_map(|sweep| sweep.view.as_ref().err());
        Overview {
            format: FORMAT,
            folder: self.root.display().to_string(),
            now: Timestamp::now().as_millisecond(),
            runs: views,
            sweeps: self.sweeps.values().filter_map(|sweep| sweep.view.clone().ok()).collect(),
            unread: self.runs.values().filter(|run| run.view.is_none()).count(),
            problems: of_runs.chain(of_sweeps).cloned().collect(),
        }
    }

    /// The answer to `api/series`.
    pub(crate) fn series(&self, metric: &str, points: usize, range: (u64, u64)) -> Value {
        let mut runs = serde_json::Map::new();
        for (id, run) in &self.runs {
            if let Some(columns) = run.metrics.columns(metric, points, range) {
                runs.insert(id.clone(), serde_json::to_value(columns).unwrap_or_default());
            }
        }
        json!({ "runs": runs })
    }

    /// The answer to `api/timelines`.
    pub(crate) fn timelines(&self) -> BTreeMap<&String, &[(u64, f64)]> {
        self.runs.iter().map(|(id, run)| (id, run.timeline.as_slice())).collect()
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
    fn new(folder: PathBuf, sweep: Option<String>) -> Self {
        let metrics = Metrics::new(&folder);
        let events = Milestones::new(&folder.join(EVENTS));
        let stamp = Stamp::default();
        let view = None;
        let timeline = Vec::new();
        Self { folder, sweep, stamp, view, metrics, events, timeline }
    }

    /// True if long files have been read only in part.
    fn is_glanced_at(&self) -> bool {
        let is_part = self.metrics.is_sketch() || !self.events.is_whole();
        is_part && matches!(self.view, Some(Ok(_)))
    }

    /// Reads the files that have changed. Returns true if any has.
    fn refresh(&mut self, id: &str) -> bool {
        let names = [EVENTS, METRICS, EPOCHS, ENVIRONMENT, TAGS, "failure.json", "eval.json"];
        let mut files: Vec<PathBuf> = names.iter().map(|name| self.folder.join(name)).collect();
        files.extend([DESCRIPTION, RESOLVED].map(|name| newest_of(&self.folder, name)));
        let stamp = stamp(&self.folder, &files);
        if stamp == self.stamp && self.view.is_some() {
            return false;
        }
        self.stamp = stamp;
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
fn refresh(mut runs: Vec<(&String, &mut Run)>) -> bool {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = runs.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let part = |part: &mut [(&String, &mut Run)]| {
            part.iter_mut().fold(false, |any, (id, run)| run.refresh(id) | any)
        };
        let threads: Vec<_> =
            runs.chunks_mut(share).map(|chunk| scope.spawn(move || part(chunk))).collect();
        // A reader that panics must not take the page with it.
        threads.into_iter().fold(false, |any, thread| thread.join().unwrap_or(true) | any)
    })
}

impl Sweep {
    fn new(folder: PathBuf) -> Self {
        Self { folder, stamp: Stamp::default(), view: Err(String::new()) }
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
