//! The rare events of `events.jsonl`: all but the steps and the ranks' reports in between, which
//! are nearly all lines of a long run. Reads on as the file grows; the beginning and the end of a
//! long file are available before the whole of it is read.

use std::io::{BufReader, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::event::Event;
use crate::files;
use crate::record::Error;
use crate::record::sink::jsonl::{Log, Stamped, parse};

/// Size of the read buffer in bytes.
const CAPACITY: usize = 256 << 10;
/// Size from which a file is first read in part, and bytes of its beginning and of its end.
const LONG: u64 = 512 << 10;
const PART: usize = 48 << 10;
/// Bytes of a line that contain the kind of its event.
const HEAD: usize = 96;
/// Bytes of ranks' reports to parse, but at least [`MIN_POINTS`] reports.
const MAX_REPORTS: usize = 1 << 20;
const MIN_POINTS: usize = 60;
const MAX_POINTS: usize = 300;

/// True if the beginning of a line contains `kind`.
fn says(line: &[u8], kind: &[u8]) -> bool {
    line[..line.len().min(HEAD)].windows(kind.len()).any(|window| window == kind)
}

/// True for recorded steps and the ranks' reports about themselves.
fn is_frequent(line: &[u8]) -> bool {
    says(line, br#""event":"step_done""#) || says(line, br#""event":"rank_stats""#)
}

/// Reads the events of a run; of frequent ones only the last before each rare one and at the end.
pub fn read_milestones(path: &Path) -> Result<Log, Error> {
    let mut milestones = Milestones::new(path);
    milestones.read()?;
    milestones.end()?;
    Ok(milestones.log)
}

/// The milestones of one file.
#[derive(Debug)]
pub struct Milestones {
    path: PathBuf,
    /// Bytes of whole lines that have been read.
    offset: u64,
    /// Device and inode of the file that they were read from.
    file: Option<(u64, u64)>,
    log: Log,
    /// True if the last event of `log` is a frequent one, which the next one may replace.
    is_last_frequent: bool,
    /// True once the file has been read to its end.
    is_whole: bool,
}

impl Milestones {
    /// Milestones of the file at `path`, which may not exist yet. Reads nothing.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            offset: 0,
            file: None,
            log: Log::default(),
            is_last_frequent: false,
            is_whole: false,
        }
    }

    /// The events read so far.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// True if the file has been read to its end.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Reads enough for the state of a run: all of a short file, the beginning and the end of a
    /// long one.
    pub fn glance(&mut self) -> Result<(), Error> {
        let length = self.path.metadata().map_or(0, |found| found.len());
        if self.is_whole || length < LONG {
            return self.read();
        }
        let failed = |reason| files::Error::io("read", &self.path)(reason);
        let file = files::open(&self.path).map_err(failed)?;
        let mut first = vec![0; PART];
        let mut last = vec![0; PART];
        file.read_exact_at(&mut first, 0).map_err(failed)?;
        file.read_exact_at(&mut last, length - PART as u64).map_err(failed)?;
        self.forget();
        // Without the end and the beginning of lines that were cut.
        let cut = |line: &&[u8]| line.ends_with(b"\n");
        first.split_inclusive(|&byte| byte == b'\n').filter(cut).try_for_each(|l| self.take(l))?;
        let lines = last.split_inclusive(|&byte| byte == b'\n').skip(1);
        lines.filter(cut).try_for_each(|line| self.take(line))
    }

    /// Reads on to the end of the file. An incomplete line is left for the next call.
    pub fn read(&mut self) -> Result<(), Error> {
        let path = self.path.clone();
        let failed = |reason| files::Error::io("read", &path)(reason);
        let file = match files::open(&path) {
            Err(reason) if reason.kind() == ErrorKind::NotFound => {
                self.forget();
                self.is_whole = true;
                return Ok(());
            }
            other => other.map_err(failed)?,
        };
        let found = file.metadata().map_err(failed)?;
        let number = Some((found.dev(), found.ino()));
        if !self.is_whole || self.file != number || found.len() < self.offset {
            self.forget();
        }
        let mut file = BufReader::with_capacity(CAPACITY, file);
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        let mut line = Vec::new();
        let mut passed = Vec::new();
        while files::read_line(&mut file, &mut line).map_err(failed)? > 0 && line.ends_with(b"\n") {
            self.offset += line.len() as u64;
            if is_frequent(&line) {
                std::mem::swap(&mut line, &mut passed);
            } else {
                self.take(&passed)?;
                self.take(&line)?;
                passed.clear();
            }
            line.clear();
        }
        self.take(&passed)?;
        (self.file, self.is_whole) = (number, true);
        Ok(())
    }

    /// Adds an incomplete last line: nothing more will be written.
    fn end(&mut self) -> Result<(), Error> {
        let rest = || -> std::io::Result<Vec<u8>> {
            let file = files::open(&self.path)?;
            let length = file.metadata()?.len().saturating_sub(self.offset);
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, self.offset)?;
            Ok(bytes)
        };
        let rest = rest().map_err(files::Error::io("read", &self.path))?;
        self.take(rest.split(|&byte| byte == b'\n').next().unwrap_or_default())
    }

    fn take(&mut self, line: &[u8]) -> Result<(), Error> {
        if line.is_empty() {
            return Ok(());
        }
        let before = self.log.events.len();
        let is_frequent = is_frequent(line);
        self.log.add(&self.path, line)?;
        if self.log.events.len() > before {
            if is_frequent && self.is_last_frequent {
                self.log.events.swap_remove(before - 1);
            }
            self.is_last_frequent = is_frequent;
        }
        Ok(())
    }

    /// Frees the memory; the next call reads the file again.
    pub fn forget(&mut self) {
        (self.log, self.offset, self.file, self.is_last_frequent) =
            (Log::default(), 0, None, false);
    }
}

/// Reads the starts of a run and its ranks' reports about themselves, in file order; of many
/// reports about as many as a chart can show.
pub fn read_rank_stats(path: &Path) -> Result<Vec<Stamped>, Error> {
    let failed = |reason| files::Error::io("read", path)(reason);
    let Ok(file) = files::open(path) else { return Ok(Vec::new()) };
    let mut file = BufReader::with_capacity(CAPACITY, file);
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut line = Vec::new();
    while files::read_line(&mut file, &mut line).map_err(failed)? > 0 {
        if says(&line, br#""event":"rank_stats""#) || says(&line, br#""event":"started""#) {
            lines.push(std::mem::take(&mut line));
        }
        line.clear();
    }
    let size: usize = lines.iter().map(Vec::len).sum();
    let most = (MAX_REPORTS * lines.len() / size.max(1)).clamp(MIN_POINTS, MAX_POINTS);
    let stride = lines.len().div_ceil(most).max(1);
    let is_start = |at: usize| lines.get(at).is_none_or(|line| says(line, br#""event":"started""#));
    // The totals of a start are in its last report.
    let kept = (0..lines.len()).filter(|&at| at % stride == 0 || is_start(at) || is_start(at + 1));
    Ok(kept.filter_map(|at| parse(path, &lines[at]).ok()?).filter(is_of_ranks).collect())
}

fn is_of_ranks(stamped: &Stamped) -> bool {
    matches!(stamped.event, Event::Started(_) | Event::RankStats(_))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;
    use crate::event::RankStats;
    use crate::record::EVENTS;
    use crate::record::example_events;
    use crate::record::sink::jsonl::{encode, read};

    fn stamped(step: u64, event: Event) -> Stamped {
        Stamped { time: "2026-11-20T13:25:56.125Z".parse().unwrap(), step, event }
    }

    fn step(step: u64) -> Stamped {
        stamped(step, Event::StepDone(example_events::step_done(step)))
    }

    fn warned(at: u64) -> Stamped {
        stamped(at, Event::Warned { message: "slow disk".into() })
    }

    fn stats(at: u64) -> Stamped {
        let cpu_seconds = vec![at as f64, 1.0];
        stamped(at, Event::RankStats(RankStats { step: at, cpu_seconds, ..RankStats::default() }))
    }

    fn lines(events: &[Stamped]) -> String {
        events.iter().map(|event| encode(event).unwrap() + "\n").collect()
    }

    #[test]
    fn milestones_are_all_but_the_steps_in_between() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS);
        let events = [step(1), stats(2), step(3), warned(3), step(4), step(5)];
        let text = lines(&events) + &encode(&step(1)).unwrap()[..120];
        files::write_atomic(&path, text.as_bytes()).unwrap();
        let whole = read(&path).unwrap();
        assert_eq!((whole.events.len(), whole.n_unreadable), (6, 1));
        let log = read_milestones(&path).unwrap();
        assert_eq!(log, Log { events: vec![step(3), warned(3), step(5)], n_unreadable: 1 });
    }

    #[test]
    fn a_growing_file_is_read_on_and_a_replaced_one_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS);
        let mut milestones = Milestones::new(&path);
        milestones.glance().unwrap();
        assert!(milestones.log().events.is_empty() && milestones.is_whole());
        let mut file = File::create(&path).unwrap();
        let half = lines(&[step(3)]);
        file.write_all((lines(&[step(1), step(2)]) + &half[..50]).as_bytes()).unwrap();
        milestones.read().unwrap();
        assert_eq!(milestones.log().events, [step(2)]);
        file.write_all((half[50..].to_owned() + &lines(&[warned(3), step(4)])).as_bytes()).unwrap();
        milestones.read().unwrap();
        assert_eq!(milestones.log().events, [step(3), warned(3), step(4)]);
        milestones.forget();
        milestones.read().unwrap();
        assert_eq!(milestones.log().events, [step(3), warned(3), step(4)]);
        files::write_atomic(&path, lines(&[warned(7), step(8)]).as_bytes()).unwrap();
        milestones.read().unwrap();
        assert_eq!(milestones.log().events, [warned(7), step(8)]);
    }

    #[test]
    fn of_a_long_file_the_beginning_and_the_end_are_there_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS);
        let start = stamped(0, Event::Started(example_events::started(0)));
        let mut events = vec![start];
        events.extend((1..=4000).map(step));
        events.push(warned(4000));
        events.extend((4001..=8000).map(step));
        events.push(stamped(8000, Event::Finished(example_events::finished())));
        files::write_atomic(&path, lines(&events).as_bytes()).unwrap();
        let mut milestones = Milestones::new(&path);
        milestones.glance().unwrap();
        assert!(!milestones.is_whole());
        let log = &milestones.log().events;
        assert!(matches!(log[0].event, Event::Started(_)) && log.len() == 3, "{}", log.len());
        assert!(matches!(log[2].event, Event::Finished(_)) && log[1].step == 8000);
        milestones.read().unwrap();
        assert!(milestones.is_whole() && milestones.log().events.contains(&warned(4000)));
        assert_eq!(milestones.log(), &read_milestones(&path).unwrap());
    }

    #[test]
    fn of_many_reports_of_ranks_some_are_read_and_the_last_of_each_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS);
        let start = |at| stamped(at, Event::Started(example_events::started(at)));
        let mut events = vec![start(0)];
        events.extend((1..=999).flat_map(|at| [step(at), stats(at)]));
        events.extend([start(500), warned(500), stats(501)]);
        files::write_atomic(&path, lines(&events).as_bytes()).unwrap();
        let found = read_rank_stats(&path).unwrap();
        assert!((200..320).contains(&found.len()), "{}", found.len());
        let steps: Vec<u64> = found.iter().map(|at| at.step).collect();
        assert_eq!(steps[steps.len() - 3..], [999, 500, 501]);
        assert_eq!(read_rank_stats(&folder.path().join("none")).unwrap(), []);
    }
}
