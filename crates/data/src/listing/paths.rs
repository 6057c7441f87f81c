//! Many labelled files in little memory: each folder once, the names of its files end to end. A
//! million files of a dozen letters take some 16 MB, in the parent as in every rank.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// "data/train and data/val"
pub(crate) fn both(train: &Path, val: &Path) -> String {
    format!("{} and {}", train.display(), val.display())
}

/// Files with their labels, in the order in which they were pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    folders: Vec<Folder>,
    /// The names of all files.
    names: Vec<u8>,
    /// End of each file's name, from the start of its folder's names.
    ends: Vec<u32>,
}

/// A folder of which files follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Folder {
    path: PathBuf,
    label: u32,
    /// Index of its first file.
    first: usize,
    /// Start of the names of its files.
    names: usize,
}

impl Paths {
    /// Number of files.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the file `name` of `folder`.
    pub(crate) fn push(&mut self, folder: &Path, name: &OsStr, label: u32) {
        let end = |begin: usize, names: &[u8]| u32::try_from(names.len() - begin);
        self.names.extend_from_slice(name.as_bytes());
        let known = self.folders.last().filter(|last| last.label == label && last.path == folder);
        let known = known.and_then(|last| end(last.names, &self.names).ok());
        // Another folder, or more names than 32 bits can place: it begins anew.
        let end = known.unwrap_or_else(|| {
            let first = self.ends.len();
            let names = self.names.len() - name.len();
            self.folders.push(Folder { path: folder.to_owned(), label, first, names });
            name.len() as u32
        });
        self.ends.push(end);
    }

    /// Appends the file at `path`.
    pub fn push_path(&mut self, path: &Path, label: u32) {
        let folder = path.parent().unwrap_or(Path::new(""));
        self.push(folder, path.file_name().unwrap_or_default(), label);
    }

    /// File `index` and its label.
    ///
    /// # Panics
    ///
    /// There is no such file.
    pub fn get(&self, index: usize) -> (PathBuf, u32) {
        let (folder, name) = self.parts(index);
        (folder.path.join(name), folder.label)
    }

    /// All files with their labels.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PathBuf, u32)> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// The label of each file.
    pub fn labels(&self) -> Vec<u32> {
        let ends = self.folders.iter().skip(1).map(|folder| folder.first);
        let folders = self.folders.iter().zip(ends.chain([self.len()]));
        folders.flat_map(|(folder, end)| (folder.first..end).map(|_| folder.label)).collect()
    }

    /// Number of files of each of `classes` labels.
    pub(crate) fn counts(&self, classes: usize) -> Vec<u64> {
        let mut counts = vec![0; classes];
        let ends = self.folders.iter().skip(1).map(|folder| folder.first);
        for (folder, end) in self.folders.iter().zip(ends.chain([self.len()])) {
            if let Some(count) = counts.get_mut(folder.label as usize) {
                *count += (end - folder.first) as u64;
            }
        }
        counts
    }

    /// Gives each file the label `new[label]`.
    pub(crate) fn relabel(&mut self, new: &[u32]) {
        for folder in &mut self.folders {
            folder.label = new[folder.label as usize];
        }
    }

    fn parts(&self, index: usize) -> (&Folder, &OsStr) {
        let after = self.folders.partition_point(|folder| folder.first <= index);
        let folder = &self.folders[after - 1];
        let end = folder.names + self.ends[index] as usize;
        let begin = match index - folder.first {
            0 => folder.names,
            _ => folder.names + self.ends[index - 1] as usize,
        };
        (folder, OsStr::from_bytes(&self.names[begin..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_as_they_were_pushed() {
        let all: Vec<(PathBuf, u32)> = [
            ("a/1.png", 0),
            ("a/22.png", 0),
            ("a/b/1.png", 0),
            ("a/3.png", 0),
            ("a/3.png", 1),
            ("1.png", 2),
            ("/c/\u{e9}\n.jpg", 2),
        ]
        .map(|(path, label)| (path.into(), label))
        .into();
        let mut paths = Paths::default();
        for (path, label) in &all {
            paths.push_path(path, *label);
        }
        assert_eq!(paths.len(), all.len());
        assert!(paths.labels().iter().eq(all.iter().map(|(_, label)| label)));
        assert!(paths.iter().eq(all));
        assert_eq!(Paths::default().iter().count(), 0);
    }

    #[test]
    fn a_million_files_take_little_memory() {
        let mut paths = Paths::default();
        for folder in 0..1000 {
            let folder = PathBuf::from(format!("/data/train/class-{folder:04}"));
            for file in 0..1000 {
                paths.push(&folder, OsStr::new(&format!("{file:08}.jpg")), 7);
            }
        }
        let bytes = paths.names.len() + 4 * paths.ends.len();
        assert!(bytes < 17_000_000 && paths.folders.len() == 1000, "{bytes}");
        assert_eq!(paths.get(567_123).0, Path::new("/data/train/class-0567/00000123.jpg"));
    }
}
