//! Files from the hub into the cache: continued, checked, one process at a time.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ddprun_host::files;
use ddprun_plan::config::similar;
use ring::digest;
use sha1::Digest as _;
use ureq::Body;
use ureq::http::Response;

use crate::archive;
use crate::cache::Cache;
use crate::catalog::{Form, KnownFile, KnownSet};
use crate::client::Client;
use crate::error::Error;
use crate::name::{HubName, Repo, is_commit};
use crate::progress::{OnProgress, Progress};
use crate::settings::Config;

/// Attempts to continue a broken download that bring no byte.
const TRIES: u32 = 5;
/// Time between two attempts to take the lock of another process.
const TURN: Duration = Duration::from_millis(200);
const CHUNK: usize = 1 << 16;

/// The hub, and the cache in front of it.
pub struct Hub {
    client: Client,
    cache: Cache,
}

/// A commit of a repository.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The repository at this commit.
    pub name: HubName,
    /// Paths of its files; of those in the cache, where the hub was not asked.
    pub files: Vec<String>,
    /// Folder of its files on this machine.
    pub folder: PathBuf,
    /// True if the hub was not asked, so that these may not be all of its files.
    pub is_cached: bool,
    /// Reason for which the hub could not be asked, a warning for the user; `None` if it was asked, or need not be.
    pub unasked: Option<String>,
}

impl Hub {
    /// Opens no connection yet.
    ///
    /// # Errors
    ///
    /// The certificates that `config` names cannot be read.
    pub fn new(config: Config) -> Result<Self, Error> {
        let cache = Cache::new(config.cache.clone());
        Ok(Self { client: Client::new(config)?, cache })
    }

    /// Finds the commit that `name` means, and its files. Without a connection that is the commit at which the cache
    /// last saw the branch or tag.
    ///
    /// # Errors
    ///
    /// There is no such repository or revision, it is not for us, or neither the hub nor the cache answers.
    pub fn snapshot(&self, name: &HubName) -> Result<Snapshot, Error> {
        let config = self.client.config();
        if config.is_offline {
            return self.cached(name, None).ok_or_else(|| Error::Offline {
                name: name.to_string(),
                cache: config.cache.display().to_string(),
                near: self.near(&name.repo),
            });
        }
        match self.client.listing(name) {
            Ok(listing) => {
                self.cache.remember(name, &listing.commit)?;
                let folder = self.cache.snapshot(&name.repo, &listing.commit);
                Ok(Snapshot {
                    name: name.at(&listing.commit),
                    files: listing.files,
                    folder,
                    is_cached: false,
                    unasked: None,
                })
            }
            Err(error @ (Error::Unreachable { .. } | Error::RateLimited { .. })) => {
                self.cached(name, Some(error.to_string())).ok_or(error)
            }
            Err(Error::NoRepo { name, endpoint, token, .. }) => {
                let near = self.near(&name);
                Err(Error::NoRepo { name, endpoint, token, near })
            }
            Err(error) => Err(error),
        }
    }

    /// The commit of `name` as far as the cache has it; `None` if it has nothing.
    pub fn cached(&self, name: &HubName, unasked: Option<String>) -> Option<Snapshot> {
        let commit = self.cache.commit(name)?;
        let files = self.cache.files(&name.repo, &commit);
        let folder = self.cache.snapshot(&name.repo, &commit);
        let is_pinned = is_commit(name.revision());
        let unasked = unasked.filter(|_| !is_pinned);
        let is_cached = true;
        let name = name.at(&commit);
        let is_empty = files.is_empty();
        (!is_empty).then_some(Snapshot { name, files, folder, is_cached, unasked })
    }

    /// Names in the cache that are spelled like `repo`.
    fn near(&self, repo: &Repo) -> Vec<String> {
        nearest(&repo.to_string(), &self.cache.names(repo))
    }

    /// Fetches a file of `snapshot`, unless it is here, and returns its path.
    ///
    /// # Errors
    ///
    /// The repository has no such file; the connection breaks again and again; other bytes arrive than were announced;
    /// the cache cannot be written. What has arrived is kept, but for wrong bytes.
    pub fn fetch(
        &self,
        snapshot: &Snapshot,
        file: &str,
        on_progress: OnProgress<'_>,
    ) -> Result<PathBuf, Error> {
        let path = snapshot.folder.join(file);
        if path.is_file() {
            return Ok(path);
        }
        let repo = &snapshot.name.repo;
        if !snapshot.files.iter().any(|name| name == file) {
            let near = nearest(file, &snapshot.files);
            return Err(Error::NoFile { name: repo.clone(), file: file.to_owned(), near });
        }
        let commit = snapshot.name.revision();
        let facts = self.client.facts(repo, commit, file)?;
        let blob = self.cache.blob(repo, &facts.etag);
        let lock = self.cache.lock(repo, &facts.etag);
        for folder in [&blob, &lock, &path].into_iter().filter_map(|path| path.parent()) {
            files::create_folder(folder)?;
        }
        let lock = files::open_lock(&lock).map_err(files::Error::io("open", &lock))?;
        if !blob.is_file() {
            own(&lock, file, on_progress)?;
        }
        // Whoever had the lock may have fetched it.
        if !blob.is_file() {
            let bytes = |from| self.client.bytes(repo, commit, file, from);
            let (hash, size) = (facts.etag.as_str(), Some(facts.size));
            Download { file, hash, size, bytes: &bytes }.run(&blob, on_progress)?;
        }
        place(&blob, &path)?;
        Ok(path)
    }

    /// Fetches what is absent of a well-known data set at `path`, and unpacks it where it comes in archives. Those are
    /// removed then.
    ///
    /// # Errors
    ///
    /// No mirror answers, other bytes arrive than are known, or the files cannot be written. What has arrived is kept,
    /// but for wrong bytes.
    pub fn fetch_set(
        &self,
        set: &KnownSet,
        path: &Path,
        on_progress: OnProgress<'_>,
    ) -> Result<(), Error> {
        let Form::Unpacked(layout) = set.form else {
            return set
                .absent(path)
                .iter()
                .try_for_each(|(file, place)| self.fetch_known(file, place, on_progress));
        };
        if path.exists() {
            return Ok(());
        }
        let lock = Lock::take(path, set.path, on_progress)?;
        if path.exists() {
            return Ok(());
        }
        for (file, place) in set.absent(path) {
            self.fetch_known(file, &place, on_progress)?;
        }
        // What a killed process has half unpacked, on this machine or another.
        files::remove_temporaries_of(path)?;
        let folder = set.folder(path);
        let archives: Vec<PathBuf> = set.files.iter().map(|file| folder.join(file.name)).collect();
        files::write_folder_atomic(path, |folder| {
            archive::unpack(layout, &archives, folder, on_progress)
        })?;
        files::remove_folder(&folder)?;
        lock.remove()
    }

    /// Fetches a file of a well-known data set to `path`.
    fn fetch_known(
        &self,
        file: &KnownFile,
        path: &Path,
        on_progress: OnProgress<'_>,
    ) -> Result<(), Error> {
        if self.client.config().is_offline {
            let cache = path.parent().unwrap_or(path).display().to_string();
            return Err(Error::Offline { name: file.name.to_owned(), cache, near: Vec::new() });
        }
        let lock = Lock::take(path, file.name, on_progress)?;
        if path.is_file() {
            // Another process had the lock, has fetched the file and removed the lock.
            return Ok(());
        }
        let bytes = |from| self.client.bytes_of_mirrors(file, from);
        let download = Download { file: file.name, hash: file.sha256, size: None, bytes: &bytes };
        download.run(path, on_progress)?;
        lock.remove()
    }
}

/// The lock beside a file or folder of a data set, held by the one process that makes it.
struct Lock {
    path: PathBuf,
    _held: File,
}

impl Lock {
    fn take(path: &Path, name: &str, on_progress: OnProgress<'_>) -> Result<Self, Error> {
        files::create_parent(path)?;
        let path = with_ending(path, "lock");
        let held = files::open_lock(&path).map_err(files::Error::io("open", &path))?;
        own(&held, name, on_progress)?;
        Ok(Self { path, _held: held })
    }

    /// Removes it, once what it protects is complete.
    fn remove(self) -> Result<(), Error> {
        Ok(files::remove_file(&self.path)?)
    }
}

/// A download of one file.
struct Download<'a> {
    file: &'a str,
    /// The hash of its content: SHA-256 or git's.
    hash: &'a str,
    /// Length in bytes; `None` = as the server says.
    size: Option<u64>,
    /// Asks for its bytes from a position on.
    bytes: &'a dyn Fn(u64) -> Result<Response<Body>, Error>,
}

impl Download<'_> {
    /// Downloads the file to `path`, a name that it gets only once it is complete.
    fn run(&self, path: &Path, on_progress: OnProgress<'_>) -> Result<(), Error> {
        let incomplete = with_ending(path, "incomplete");
        for is_last in [false, true] {
            let found = self.receive(&incomplete, on_progress)?;
            if found.eq_ignore_ascii_case(self.hash) || !self.has_hash() {
                return Ok(files::rename_file(&incomplete, path)?);
            }
            // Continued from bytes of someone else, or damaged on its way.
            files::remove_file(&incomplete)?;
            if is_last {
                let (file, expected) = (self.file.to_owned(), self.hash.to_owned());
                return Err(Error::Corrupt { file, expected, found });
            }
        }
        Ok(())
    }

    /// Appends to `path` until it has its length; returns the hash of all of its bytes.
    fn receive(&self, path: &Path, on_progress: OnProgress<'_>) -> Result<String, Error> {
        let mut hash = self.new_hash();
        let mut done = hash_of_start(path, self.size, &mut hash)?;
        let mut size = self.size;
        let mut tries = 0;
        let mut buffer = vec![0; CHUNK];
        while size.is_none_or(|size| done < size) {
            let answer = (self.bytes)(done)?;
            let is_continued = answer.status().as_u16() == 206;
            if done > 0 && !is_continued {
                files::remove_file(path)?;
                (hash, done) = (self.new_hash(), 0);
            }
            size = size.or_else(|| Some(done + content_length(&answer)?));
            let file = files::AppendFile::open(path)?;
            let mut body = answer.into_body().into_reader();
            let before = done;
            let why = loop {
                match body.read(&mut buffer) {
                    Ok(0) if size.is_none() => break None,
                    Ok(0) => break Some("the connection was closed".to_owned()),
                    Err(error) => break Some(error.to_string()),
                    Ok(n) => {
                        let left = size.map_or(u64::MAX, |size| size - done);
                        let n = n.min(usize::try_from(left).unwrap_or(n));
                        file.append(&buffer[..n])?;
                        hash.update(&buffer[..n]);
                        done += n as u64;
                        let progress = Progress::Fetching {
                            file: self.file,
                            done,
                            size: size.unwrap_or(done),
                        };
                        if !on_progress(progress) {
                            return Err(Error::Stopped { file: self.file.to_owned() });
                        }
                        if size == Some(done) {
                            break None;
                        }
                    }
                }
            };
            let Some(why) = why else {
                file.sync()?;
                break;
            };
            tries = if done > before { 0 } else { tries + 1 };
            if tries == TRIES {
                let (file, size) = (self.file.to_owned(), size.unwrap_or(done));
                return Err(Error::Cut { file, done, size, why });
            }
        }
        if size == Some(0) {
            files::AppendFile::open(path)?;
        }
        Ok(hash.finish())
    }

    /// An empty hash of the sort that is known.
    fn new_hash(&self) -> Hash {
        match (self.hash.len(), self.size) {
            (40, Some(size)) => {
                let mut hash = sha1::Sha1::new();
                hash.update(format!("blob {size}\0"));
                Hash::Git(hash)
            }
            _ => Hash::Sha256(digest::Context::new(&digest::SHA256)),
        }
    }

    /// True if the known hash is one of the content. An `ETag` of a mirror may be anything.
    fn has_hash(&self) -> bool {
        [40, 64].contains(&self.hash.len())
            && self.hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

fn content_length(answer: &Response<Body>) -> Option<u64> {
    answer.headers().get("content-length")?.to_str().ok()?.parse().ok()
}

/// The two hashes of content that the hub announces.
enum Hash {
    /// SHA-1 of `blob`, the size and the content, as git names a file.
    Git(sha1::Sha1),
    /// SHA-256, of files that git stores by LFS.
    Sha256(digest::Context),
}

impl Hash {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Git(hash) => hash.update(bytes),
            Self::Sha256(hash) => hash.update(bytes),
        }
    }

    /// The hash in hexadecimal.
    fn finish(self) -> String {
        let hex = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
        };
        match self {
            Self::Git(hash) => hex(&hash.finalize()),
            Self::Sha256(hash) => hex(hash.finish().as_ref()),
        }
    }
}

/// Hashes what an earlier download has left, and returns its length. More than `size` bytes are no beginning of the
/// file: they are removed.
fn hash_of_start(path: &Path, size: Option<u64>, hash: &mut Hash) -> Result<u64, Error> {
    let Ok(mut file) = File::open(path) else { return Ok(0) };
    let length = file.metadata().map_or(0, |found| found.len());
    if size.is_some_and(|size| length > size) {
        files::remove_file(path)?;
        return Ok(0);
    }
    let mut buffer = vec![0; CHUNK];
    let mut left = length;
    while left > 0 {
        let n = file.read(&mut buffer).map_err(files::Error::io("read", path))?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        left = left.saturating_sub(n as u64);
    }
    Ok(length - left)
}

/// Takes the lock of a blob, which Python's programs respect too. Where a file system has no locks it is as if taken:
/// the file has its final name only once it is whole.
fn own(lock: &File, file: &str, on_progress: OnProgress<'_>) -> Result<(), Error> {
    loop {
        match lock.try_lock() {
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(()),
            Err(TryLockError::WouldBlock) => {
                if !on_progress(Progress::Waiting { file }) {
                    return Err(Error::Stopped { file: file.to_owned() });
                }
                std::thread::sleep(TURN);
            }
        }
    }
}

/// Gives a blob its name in a snapshot: by a link, or itself where the file system has none.
fn place(blob: &Path, path: &Path) -> Result<(), Error> {
    match files::swap_link(path, blob) {
        Err(error) if error.is_without_links() && !path.exists() => {
            Ok(files::rename_file(blob, path)?)
        }
        linked => Ok(linked?),
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// The three of `names` that are spelled most like `name`.
fn nearest(name: &str, names: &[String]) -> Vec<String> {
    let similar = similar(name, names.iter().map(String::as_str));
    similar.into_iter().take(3).map(str::to_owned).collect()
}
