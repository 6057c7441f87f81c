//! The cache of `huggingface_hub`: `models--ORG--NAME/{blobs, refs, snapshots}`.
//!
//! A blob has the hash of its content as its name, which the hub calls its `ETag`. A snapshot is the
//! tree of files of a commit, whose files are links to blobs; a reference is a file with the commit
//! that a branch or tag was last seen at.

use std::fs;
use std::path::PathBuf;

use ddprun_host::files;
use ddprun_plan::config::HUB;
use walkdir::WalkDir;

use crate::error::Error;
use crate::name::{HubName, Repo, is_commit};

/// Most entries of a snapshot that are looked at, in case the folder is no cache.
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

    /// Lock of the process that downloads the blob, ours or one of Python's.
    pub(crate) fn lock(&self, repo: &Repo, etag: &str) -> PathBuf {
        self.root.join(".locks").join(repo.folder()).join(format!("{etag}.lock"))
    }

    /// Paths of the files of a commit that are here, in alphabetical order, without broken links.
    pub fn files(&self, repo: &Repo, commit: &str) -> Vec<String> {
        let root = self.snapshot(repo, commit);
        // A link leads to a blob, never to a folder.
        let entries = WalkDir::new(&root).sort_by_file_name().into_iter().flatten();
        let files = entries.take(MAX_FILES).filter(|entry| entry.path().is_file());
        files
            .filter_map(|entry| Some(entry.path().strip_prefix(&root).ok()?.to_str()?.to_owned()))
            .collect()
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
                    "{HUB}{}",
                    name.strip_prefix(kind)?.strip_prefix("--")?.replace("--", "/")
                ))
            })
            .collect();
        names.sort();
        names
    }
}
