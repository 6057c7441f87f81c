//! Trajectories in parquet files, as those of `LeRobot` are: a row is a step, with lists of numbers
//! for what was seen and done, and the number of its episode.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::data::parquet::Table;
use crate::data::{Error, files_below, open_file};
use crate::episodes::{Camera, Episodes, FILE, TrajectoryReader};
use crate::parquet_images::{Numbers, images, listed as listed_images, seen};

/// Names of the columns, the first that is there counts.
const OBSERVATIONS: [&str; 6] =
    ["observation.state", "observation", "obs", "observations", "state", "states"];
const ACTIONS: [&str; 2] = ["action", "actions"];
const EPISODE: &str = "episode_index";
const FRAME: &str = "frame_index";

/// Expected contents of a file.
const EXPECTED: &str =
    "columns `observation.state` and `action` (lists of numbers), and `episode_index`";

/// Most files of a folder, and how deep it is searched.
const MAX_FILES: usize = 1 << 20;
const MAX_DEPTH: usize = 8;

/// Columns of a parquet file, or of a folder of such, as `LeRobot` writes them.
pub(crate) struct ParquetReader;

impl TrajectoryReader for ParquetReader {
    /// By the name of a file, or its first bytes.
    fn reads(&self, path: &Path) -> bool {
        let begins = || -> io::Result<bool> {
            let mut first = [0; 4];
            io::Read::read_exact(&mut open_file(path)?, &mut first)?;
            Ok(&first == b"PAR1")
        };
        path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))
            || path.is_dir()
            || begins().unwrap_or(false)
    }

    /// Files of a folder in the order of their paths.
    fn episodes(&self, path: &Path, cameras: &[String]) -> Result<Episodes, Error> {
        let files = tables(path)?;
        let root = root(path);
        let mut joined = JoinedEpisodes::default();
        for file in &files {
            let table = Table::open(file, FILE, EXPECTED)?;
            let part = Part::read(&table, root, cameras)?;
            joined.add(part).map_err(|what| table.format(what))?;
        }
        joined.episodes.ends.push(joined.episodes.actions.len());
        Ok(joined.episodes)
    }

    /// By the first table of a folder.
    fn cameras(&self, path: &Path) -> Result<Vec<String>, Error> {
        let first = tables(path)?.swap_remove(0);
        Ok(seen(&Table::open(&first, FILE, EXPECTED)?, root(path)))
    }

    fn files(&self, path: &Path, cameras: &[String]) -> Result<[Vec<PathBuf>; 2], Error> {
        Ok([listed(path)?, listed_images(path, cameras)?])
    }
}

/// The tables of a file or folder, at least one.
fn tables(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if path.is_dir() { listed(path) } else { Ok(vec![path.to_owned()]) }
}

/// The folder of a data set.
fn root(path: &Path) -> &Path {
    if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) }
}

/// The episodes of the files so far; the last one may go on in the next file.
#[derive(Default)]
struct JoinedEpisodes {
    episodes: Episodes,
    /// The numbers of all episodes, and that of the last row.
    begun: BTreeSet<i64>,
    newest: Option<i64>,
}

impl JoinedEpisodes {
    /// Appends the rows of a file.
    fn add(&mut self, part: Part) -> Result<(), String> {
        let Episodes { observations, actions, cameras, ends } = &mut self.episodes;
        for (before, now) in [(&*observations, &part.observations), (&*actions, &part.actions)] {
            if let (Some(before), Some(now)) = (before.first(), now.first())
                && before.len() != now.len()
            {
                let n = now.len();
                let others = before.len();
                return Err(format!(
                    "its rows have {n} values, but those of the files before it have {others}"
                ));
            }
        }
        // Without a word about episodes a file is one.
        let alone = || vec![self.begun.len() as i64; part.actions.len()];
        for (row, episode) in part.episodes.unwrap_or_else(alone).into_iter().enumerate() {
            if self.newest == Some(episode) {
                continue;
            }
            if !self.begun.insert(episode) {
                let what =
                    format!("episode {episode} continues in row {row}, after another episode");
                return Err(format!("column `{EPISODE}`: {what}"));
            }
            if self.newest.replace(episode).is_some() {
                ends.push(actions.len() + row);
            }
        }
        observations.extend(part.observations);
        actions.extend(part.actions);
        if cameras.is_empty() {
            *cameras = part.cameras;
            return Ok(());
        }
        let mut pairs = cameras.iter_mut().zip(part.cameras);
        pairs.try_for_each(|(all, more)| all.frames.extend(more.frames))
    }
}

/// Contents of a file, one entry for each row.
struct Part {
    observations: Vec<Vec<f32>>,
    actions: Vec<Vec<f32>>,
    cameras: Vec<Camera>,
    episodes: Option<Vec<i64>>,
}

impl Part {
    fn read(table: &Table<'_>, root: &Path, cameras: &[String]) -> Result<Self, Error> {
        let observations = lists(table, &OBSERVATIONS)?;
        let actions = lists(table, &ACTIONS)?;
        let steps = observations.len();
        let n = actions.len();
        if steps != n || steps == 0 {
            return Err(table.format(format!("it has {steps} observations but {n} actions")));
        }
        let episodes = numbers(table, EPISODE, steps)?;
        let frames = numbers(table, FRAME, steps)?;
        if let Some(frames) = &frames {
            let same = |row: usize| episodes.as_ref().is_none_or(|all| all[row] == all[row - 1]);
            if let Some(row) = (1..steps).find(|&row| same(row) && frames[row] <= frames[row - 1]) {
                let what =
                    format!("column `{FRAME}`: row {row} does not come after the one before it");
                return Err(table.format(what));
            }
        }
        let numbers =
            Numbers { episodes: episodes.as_deref(), frames: frames.as_deref(), rows: steps };
        let cameras = cameras.iter().map(|name| images(table, root, name, &numbers));
        let cameras = cameras.collect::<Result<_, _>>()?;
        Ok(Self { observations, actions, cameras, episodes })
    }
}

/// Lists of numbers, equally many in each row.
fn lists(table: &Table<'_>, names: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
    let missing = || format!("it has no column `{}`: expected {EXPECTED}", names[0]);
    let (name, rows) = table.rows(names)?.ok_or_else(|| table.format(missing()))?;
    let width = rows.first().map_or(0, Vec::len);
    if let Some(row) = rows.iter().position(|row| row.len() != width || width == 0) {
        let n = rows[row].len();
        let what = format!("column `{name}`: row {row} has {n} values, but row 0 has {width}");
        return Err(table.format(what));
    }
    Ok(rows.into_iter().map(|row| row.into_iter().map(|v| v as f32).collect()).collect())
}

/// One whole number for each of so many rows, if there is such a column.
fn numbers(table: &Table<'_>, name: &str, steps: usize) -> Result<Option<Vec<i64>>, Error> {
    let Some((_, rows)) = table.rows(&[name])? else { return Ok(None) };
    if rows.len() != steps || rows.iter().any(|row| row.len() != 1) {
        let what = format!("column `{name}` does not hold one number for each of {steps} rows");
        return Err(table.format(what));
    }
    let numbers: Vec<f64> = rows.into_iter().flatten().collect();
    if let Some(row) = numbers.iter().position(|number| number.fract() != 0.0) {
        let what = format!("column `{name}`: {} in row {row} is not whole", numbers[row]);
        return Err(table.format(what));
    }
    Ok(Some(numbers.into_iter().map(|number| number as i64).collect()))
}

/// The parquet files below `folder`, or below its folder `data`: beside that, a data set of
/// `LeRobot` has tables of other things.
fn listed(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let data = folder.join("data");
    let root = if data.is_dir() { data } else { folder.to_owned() };
    let is_parquet = |file: &Result<PathBuf, Error>| {
        file.as_ref().map_or(true, |path| path.extension().is_some_and(|it| it == "parquet"))
    };
    let files = files_below(&root, MAX_DEPTH).filter(is_parquet).take(MAX_FILES + 1);
    let files = files.collect::<Result<Vec<_>, _>>()?;
    if files.is_empty() || files.len() > MAX_FILES {
        let what = format!("the folder holds {} parquet files, not 1 to {MAX_FILES}", files.len());
        return Err(Error::Format { path: root, what });
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
