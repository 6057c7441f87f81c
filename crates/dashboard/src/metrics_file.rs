//! A curve per metric from `metrics.csv`, as the file grows. For a long file that was not yet read,
//! samples of its lines give a sketch at once.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::curve::{Columns, Curve, Extent};
use crate::files::{self, Follower};
use crate::record::METRICS;
use crate::runs::{self, Scalars};

/// Size from which a file is sketched first.
const LONG: u64 = 512 << 10;
/// Samples of a sketch, and bytes of each.
const N_SAMPLES: u64 = 240;
const SAMPLE: usize = 1280;
/// Lines between two marks.
const MARK_LINES: u64 = 2048;

/// The curves of one run.
#[derive(Debug)]
pub(crate) struct Metrics {
    folder: PathBuf,
    follower: Follower,
    parser: Parser,
    /// Steps and byte offsets of some lines, for a closer look.
    marks: Vec<(u64, u64)>,
    offset: u64,
    lines: u64,
    sketch: Option<Parser>,
    /// True once the file has been read to its end.
    is_read: bool,
}

/// Lines of a CSV file -> curves.
#[derive(Clone, Debug, Default)]
struct Parser {
    /// Name of each column.
    names: Vec<String>,
    curves: Vec<Curve>,
}

impl Parser {
    fn header(&mut self, line: &str) {
        self.names = line.split(',').map(str::to_owned).collect();
        self.curves = vec![Curve::default(); self.names.len()];
    }

    /// The step of a line that is whole.
    fn line(&mut self, line: &str) -> Option<u64> {
        let mut fields = line.split(',');
        let step: u64 = fields.next()?.parse().ok()?;
        for (column, field) in fields.enumerate().filter(|(_, field)| !field.is_empty()) {
            if let (Some(curve), Ok(value)) = (self.curves.get_mut(column + 1), field.parse()) {
                curve.push(step, value);
            }
        }
        Some(step)
    }

    fn by_name(&self) -> impl Iterator<Item = (&str, &Curve)> {
        let named = self.names.iter().map(String::as_str).zip(&self.curves);
        // The epoch is another way to count steps.
        named.filter(|(name, curve)| *name != "epoch" && *curve != &Curve::default())
    }

    fn curve(&self, metric: &str) -> Option<&Curve> {
        self.by_name().find(|(name, _)| *name == metric).map(|(_, curve)| curve)
    }
}

impl Metrics {
    /// Curves of the run in `folder`. Reads nothing yet.
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            follower: Follower::new(&folder.join(METRICS)),
            parser: Parser::default(),
            marks: Vec::new(),
            offset: 0,
            lines: 0,
            sketch: None,
            is_read: false,
        }
    }

    /// Reads enough to draw something: all of a short file, samples of a long one.
    pub(crate) fn glance(&mut self) -> Result<(), runs::Error> {
        if self.is_read || self.sketch.is_some() {
            return Ok(());
        }
        let length = self.follower.path().metadata().map_or(0, |found| found.len());
        if length < LONG {
            return self.read().map(drop);
        }
        self.sketch = sketch(self.follower.path(), length).ok();
        Ok(())
    }

    /// True if there is only a sketch.
    pub(crate) fn is_sketch(&self) -> bool {
        !self.is_read
    }

    /// Reads on to the end of the file. Returns true if there was anything new.
    pub(crate) fn read(&mut self) -> Result<bool, runs::Error> {
        if !self.follower.path().exists() {
            return self.read_events();
        }
        let news = self.follower.poll()?;
        // What its other records said before there was a file is in the file, too.
        if news.is_anew || self.offset == 0 {
            (self.parser, self.offset, self.lines) = (Parser::default(), 0, 0);
            self.marks.clear();
        }
        for line in news.lines.split_inclusive('\n') {
            self.take(line);
        }
        (self.sketch, self.is_read) = (None, true);
        Ok(news.is_anew || !news.lines.is_empty())
    }

    fn take(&mut self, line: &str) {
        let text = line.trim_end();
        if self.parser.names.is_empty() {
            self.parser.header(text);
        } else if let Some(step) = self.parser.line(text) {
            if self.lines.is_multiple_of(MARK_LINES) {
                self.marks.push((step, self.offset));
            }
            self.lines += 1;
        }
        self.offset += line.len() as u64;
    }

    /// Reads the run's other records, for a run without the file.
    fn read_events(&mut self) -> Result<bool, runs::Error> {
        let mut parser = Parser::default();
        for (name, series) in &Scalars::read(&self.folder)?.series {
            let mut curve = Curve::default();
            for point in series {
                curve.push(point.step, point.value);
            }
            parser.names.push(name.clone());
            parser.curves.push(curve);
        }
        let extents =
            |parser: &Parser| parser.curves.iter().map(|it| it.extent).collect::<Vec<_>>();
        let has_changed = extents(&parser) != extents(&self.parser);
        (self.parser, self.is_read) = (parser, true);
        Ok(has_changed)
    }

    fn known(&self) -> &Parser {
        self.sketch.as_ref().unwrap_or(&self.parser)
    }

    /// The metrics that have a value.
    pub(crate) fn extents(&self) -> BTreeMap<String, Extent> {
        self.known().by_name().map(|(name, curve)| (name.to_owned(), curve.extent)).collect()
    }

    /// A metric between two steps in about `points` columns; `None` if it has no values.
    pub(crate) fn columns(
        &self,
        metric: &str,
        points: usize,
        range: (u64, u64),
    ) -> Option<Columns> {
        let (from, to) = range;
        let curve = self.known().curve(metric)?;
        let is_part = to != u64::MAX && curve.is_reduced();
        let closer = if is_part { self.closer(metric, from, to) } else { None };
        Some(closer.as_ref().unwrap_or(curve).columns(points, from, to))
    }

    /// The curve between two steps, from the file again.
    fn closer(&self, metric: &str, from: u64, to: u64) -> Option<Curve> {
        let first = self.marks.partition_point(|(step, _)| *step < from).saturating_sub(1);
        let last = self.marks.partition_point(|(step, _)| *step <= to);
        let start = self.marks.get(first)?.1;
        let end = self.marks.get(last).map_or(self.offset, |mark| mark.1);
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        files::open(self.follower.path()).ok()?.read_exact_at(&mut bytes, start).ok()?;
        let mut parser = Parser::default();
        parser.header(&self.parser.names.join(","));
        // A little more, so that lines lead out of the picture.
        let margin = to.saturating_sub(from) / 8 + 1;
        let wanted = from.saturating_sub(margin)..=to.saturating_add(margin);
        for line in String::from_utf8_lossy(&bytes).lines() {
            let step = line.split(',').next().and_then(|step| step.parse().ok());
            if step.is_some_and(|step| wanted.contains(&step)) {
                parser.line(line);
            }
        }
        parser.curve(metric).cloned()
    }
}

/// Curves from a few lines at regular places, the first and the last among them.
fn sketch(path: &Path, length: u64) -> std::io::Result<Parser> {
    let file = files::open(path)?;
    let mut parser = Parser::default();
    let mut bytes = [0; SAMPLE];
    for sample in 0..N_SAMPLES {
        let at = (length - SAMPLE as u64) * sample / (N_SAMPLES - 1);
        let n = file.read_at(&mut bytes, at)?;
        let text = String::from_utf8_lossy(&bytes[..n]);
        // Without the beginning and the end of lines that were cut.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.split('\n');
        match lines.next() {
            Some(header) if sample == 0 => parser.header(header),
            _ => {}
        }
        for line in lines {
            parser.line(line);
        }
    }
    Ok(parser)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs::File;
    use std::io::Write as _;

    use super::*;
    use crate::files;

    const HEADER: &str = "step,epoch,train/loss,lr\n";

    fn rows(steps: std::ops::RangeInclusive<u64>) -> String {
        steps.fold(String::new(), |mut text, step| {
            let _ = writeln!(text, "{step},1,{},0.1", 1.0 / step as f64);
            text
        })
    }

    fn drawn(metrics: &Metrics, range: (u64, u64)) -> serde_json::Value {
        serde_json::to_value(metrics.columns("train/loss", 500, range)).unwrap()
    }

    #[test]
    fn a_file_is_read_on_as_it_grows_and_half_a_line_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS);
        let mut metrics = Metrics::new(folder.path());
        metrics.glance().unwrap();
        assert!(metrics.extents().is_empty());
        let mut file = File::create(&path).unwrap();
        write!(file, "{HEADER}{}3,1,0.", rows(1..=2)).unwrap();
        assert!(metrics.read().unwrap());
        assert_eq!(metrics.extents()["train/loss"].last, Some(0.5));
        writeln!(file, "25,0.1").unwrap();
        assert!(metrics.read().unwrap() && !metrics.read().unwrap());
        assert_eq!(metrics.extents()["train/loss"].last, Some(0.25));
        assert_eq!(metrics.extents().keys().collect::<Vec<_>>(), ["lr", "train/loss"]);
        // A resumed run replaces it.
        files::write_atomic(&path, format!("{HEADER}{}", rows(1..=1)).as_bytes()).unwrap();
        assert!(metrics.read().unwrap());
        assert_eq!(drawn(&metrics, (0, u64::MAX))["step"], serde_json::json!([1]));
    }

    #[test]
    fn a_long_file_has_a_sketch_at_once_and_details_where_one_looks_closely() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS);
        files::write_atomic(&path, format!("{HEADER}{}", rows(1..=100_000)).as_bytes()).unwrap();
        let mut metrics = Metrics::new(folder.path());
        metrics.glance().unwrap();
        assert!(metrics.is_sketch());
        let steps = |value: &serde_json::Value| -> Vec<u64> {
            value["step"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect()
        };
        let shown = steps(&drawn(&metrics, (0, u64::MAX)));
        assert!(shown[0] < 600 && *shown.last().unwrap() > 99_000 && shown.len() > 100);
        metrics.read().unwrap();
        assert!(!metrics.is_sketch());
        let closer = drawn(&metrics, (50_000, 50_100));
        assert_eq!(steps(&closer), (49_999..=50_101).collect::<Vec<_>>());
        assert!(closer.get("low").is_none());
    }
}
