//! The cache of `huggingface_hub`: `models--ORG--NAME/{blobs, refs, snapshots}`.
//!
//! A blob has the hash of its content as its name, which the hub calls its `ETag`. A snapshot is the
//! tree of files of a commit, whose files are links to blobs; a reference is a file with the commit
//! that a branch or tag was last seen at.

use std::fs;
use std::path::{Path, PathBuf};

use ddprun_host::files;

use crate::error::Error;
use crate::name::{HubName, PREFIX, Repo, is_commit};

/// How many files a snapshot may have, so that a folder that is no cache does not hang us.
const MAX_FILES: usize = 100_000;

/// The folder that holds all repositories.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache in this folder, which need not exist.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The commit that `name` means here: its own, or the one that its branch or tag was last seen at.
    pub fn commit(&self, name: &HubName) -> Option<String> {
        let revision = name.revision();
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = files::read_to_string(&self.reference(name)).ok()?.trim().to_owned();
        is_commit(&commit).then_some(commit)
    }

    /// Remembers the commit that a branch or tag is at.
    pub(crate) fn remember(&self, name: &HubName, commit: &str) -> Result<(), Error> {
        if is_commit(name.revision()) || self.commit(name).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.reference(name);
        path.parent().map_or(Ok(()), files::create_folder)?;
        Ok(files::write_atomic(&path, commit.as_bytes())?)
    }

    fn reference(&self, name: &HubName) -> PathBuf {
        self.root.join(name.repo.folder()).join("refs").join(name.revision())
    }

    /// Folder of the files of a commit.
    pub fn snapshot(&self, repo: &Repo, commit: &str) -> PathBuf {
        self.root.join(repo.folder()).join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, repo: &Repo, etag: &str) -> PathBuf {
        self.root.join(repo.folder()).join("blobs").join(etag)
    }

    /// The file that whoever fetches the blob has locked, in Python as here.
    pub(crate) fn lock(&self, repo: &Repo, etag: &str) -> PathBuf {
        self.root.join(".locks").join(repo.folder()).join(format!("{etag}.lock"))
    }

    /// Paths of the files of a commit that are here, in alphabetical order. Broken links are not.
    pub fn files(&self, repo: &Repo, commit: &str) -> Vec<String> {
        let root = self.snapshot(repo, commit);
        let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
        while let Some(folder) = folders.pop() {
            for path in
                fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
            {
                // A link leads to a blob, never to a folder.
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                } else if path.is_file()
                    && let Some(name) = path.strip_prefix(&root).ok().and_then(Path::to_str)
                {
                    files.push(name.to_owned());
                }
            }
            if files.len() > MAX_FILES {
                break;
            }
        }
        files.sort();
        files
    }

    /// Names of the repositories of `repo`'s sort that are here.
    pub fn names(&self, repo: &Repo) -> Vec<String> {
        let folder = repo.folder();
        let Some((kind, _)) = folder.split_once("--") else { return Vec::new() };
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names
            .filter_map(|name| {
                Some(format!(
                    "{PREFIX}{}",
                    name.strip_prefix(kind)?.strip_prefix("--")?.replace("--", "/")
                ))
            })
            .collect();
        names.sort();
        names
    }
}
