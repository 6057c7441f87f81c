//! What a disk may hold when the power goes: everything that was synced, and of the rest any part.
//!
//! A file's data reach the disk in sectors of 512 bytes, its length apart from them, a folder's
//! names one by one (a rename as one), in any order. Syncing a file makes its data durable and not
//! its name; syncing a folder, its names and not what they name. File systems promise more than
//! that; none promises less. (Pillai et al., OSDI 2014.)

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Bytes that a disk writes as one.
const SECTOR: usize = 512;

/// Number of a file, folder or link.
type Node = usize;
/// The folder in which everything happens.
const ROOT: Node = 0;

/// Names of a folder, or content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Folder(BTreeMap<String, Node>),
    File(Vec<u8>),
    Link(PathBuf),
}

/// What reaches the disk as a whole or not at all.
#[derive(Debug)]
enum Change {
    Names(Vec<(String, Option<Node>)>),
    Length(usize),
    /// The first byte of it, and its bytes.
    Sector(usize, Vec<u8>),
}

#[derive(Debug)]
struct Piece {
    node: Node,
    change: Change,
    /// The call that made it.
    made: usize,
    /// The first call after which it is on disk.
    durable: Option<usize>,
}

/// A call that was noted.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// From the root on.
    pub(crate) paths: Vec<PathBuf>,
    bytes: Vec<u8>,
}

/// The file system as its calls made it, with all that is known about what has reached the disk.
pub(crate) struct Disk {
    pub(crate) calls: Vec<Call>,
    /// As processes see it after the last call.
    live: Vec<Content>,
    /// What was there before the first call.
    start: Vec<Content>,
    pieces: Vec<Piece>,
    /// Where each file, folder and link was made.
    paths: Vec<PathBuf>,
}

/// What is there, by path: what a process would see.
pub(crate) type Tree = BTreeMap<PathBuf, Content>;

/// The noted calls that concern what is below `root`.
pub(crate) fn calls(log: &Path, root: &Path) -> Vec<Call> {
    let text = fs::read_to_string(log).unwrap();
    let calls = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let below = |path: &Value| Some(Path::new(path.as_str()?).strip_prefix(root).ok()?.to_owned());
    let call = |call: Value| {
        let paths = call["paths"].as_array()?.iter().map(below).collect::<Option<_>>()?;
        let bytes = call["bytes"].as_array()?.iter();
        let bytes = bytes.map(|byte| u8::try_from(byte.as_u64()?).ok()).collect::<Option<_>>()?;
        Some(Call { name: call["call"].as_str()?.to_owned(), paths, bytes })
    };
    calls.filter_map(call).collect()
}

impl Disk {
    /// What `calls` made of `start`, all of which is on disk.
    pub(crate) fn after(start: &Tree, calls: Vec<Call>) -> Self {
        let mut live = vec![Content::Folder(BTreeMap::new())];
        let mut numbers = BTreeMap::from([(PathBuf::new(), ROOT)]);
        for (path, content) in start {
            let content = match content {
                Content::Folder(_) => Content::Folder(BTreeMap::new()),
                other => other.clone(),
            };
            live.push(content);
            numbers.insert(path.clone(), live.len() - 1);
            names_of(&mut live[numbers[path.parent().unwrap()]])
                .insert(name_of(path), numbers[path]);
        }
        let (start, mut paths) = (live.clone(), vec![PathBuf::new(); live.len()]);
        for (path, node) in numbers {
            paths[node] = path;
        }
        let mut disk = Self { calls: vec![], live, start, pieces: vec![], paths };
        for call in calls {
            disk.make(&call);
            disk.calls.push(call);
        }
        disk
    }

    fn make(&mut self, call: &Call) {
        let path = &call.paths[0];
        match call.name.as_str() {
            "make folder" => self.add(path, Content::Folder(BTreeMap::new())),
            // Of two processes that open a log, the other one may have noted its line first.
            "make file" if self.find(path).is_some() => {}
            "make file" => self.add(path, Content::File(vec![])),
            "make link" => {
                let target = String::from_utf8(call.bytes.clone()).unwrap();
                self.add(path, Content::Link(target.into()));
            }
            "write" => self.write(path, &call.bytes),
            "sync" => self.sync(path),
            "rename" => {
                let moved = self.find(path);
                self.name(path, vec![(name_of(path), None), (name_of(&call.paths[1]), moved)]);
            }
            "exchange" => {
                let (one, other) = (self.find(path), self.find(&call.paths[1]));
                self.name(path, vec![(name_of(path), other), (name_of(&call.paths[1]), one)]);
            }
            "remove" => self.remove(path),
            "nothing" => {}
            other => panic!("a call that this disk does not know: {other}"),
        }
    }

    fn find(&self, path: &Path) -> Option<Node> {
        path.iter().try_fold(ROOT, |node, name| match &self.live[node] {
            Content::Folder(names) => names.get(name.to_str().unwrap()).copied(),
            _ => None,
        })
    }

    fn add(&mut self, path: &Path, content: Content) {
        self.live.push(content);
        self.paths.push(path.to_owned());
        self.start.push(match self.live.last().unwrap() {
            // A link is its target; data come in pieces.
            Content::Link(target) => Content::Link(target.clone()),
            Content::Folder(_) => Content::Folder(BTreeMap::new()),
            Content::File(_) => Content::File(vec![]),
        });
        self.name(path, vec![(name_of(path), Some(self.live.len() - 1))]);
    }

    /// Changes names of the folder that holds `path`, all at once.
    fn name(&mut self, path: &Path, changes: Vec<(String, Option<Node>)>) {
        let folder =
            self.find(path.parent().unwrap()).unwrap_or_else(|| panic!("{}", path.display()));
        apply(&mut self.live[folder], &Change::Names(changes.clone()));
        self.piece(folder, Change::Names(changes));
    }

    fn piece(&mut self, node: Node, change: Change) {
        self.pieces.push(Piece { node, change, made: self.calls.len(), durable: None });
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) {
        if self.find(path).is_none() {
            self.add(path, Content::File(vec![]));
        }
        let node = self.find(path).unwrap_or_else(|| panic!("{}", path.display()));
        let Content::File(content) = &mut self.live[node] else { panic!("{}", path.display()) };
        let mut at = content.len();
        content.extend(bytes);
        self.piece(node, Change::Length(at + bytes.len()));
        let mut rest = bytes;
        while !rest.is_empty() {
            let (these, others) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
            self.piece(node, Change::Sector(at, these.to_vec()));
            at += these.len();
            rest = others;
        }
    }

    fn sync(&mut self, path: &Path) {
        let (node, now) =
            (self.find(path).unwrap_or_else(|| panic!("{}", path.display())), self.calls.len());
        let of_node = |piece: &&mut Piece| piece.node == node && piece.durable.is_none();
        self.pieces.iter_mut().filter(of_node).for_each(|piece| piece.durable = Some(now));
    }

    fn remove(&mut self, path: &Path) {
        let node = self.find(path).unwrap_or_else(|| panic!("{}", path.display()));
        if let Content::Folder(names) = self.live[node].clone() {
            for name in names.keys() {
                self.remove(&path.join(name));
            }
        }
        self.name(path, vec![(name_of(path), None)]);
    }

    /// What may have reached the disk or not, when the power goes before the call `n`: pieces of
    /// what is or was at or below `path`, or of the folders that lead there.
    pub(crate) fn open(&self, n: usize, path: &Path) -> Vec<usize> {
        let concerns = |piece: &Piece| {
            let of = &self.paths[piece.node];
            of.starts_with(path) || (path.starts_with(of) && self.is_on_the_way(piece, path))
        };
        let is_open = |piece: &Piece| piece.made < n && piece.durable.is_none_or(|at| at >= n);
        let is_meant = |piece: &Piece| is_open(piece) && concerns(piece);
        (0..self.pieces.len()).filter(|&index| is_meant(&self.pieces[index])).collect()
    }

    /// Whether a change of names is about a folder above `path`.
    fn is_on_the_way(&self, piece: &Piece, path: &Path) -> bool {
        let Change::Names(changes) = &piece.change else { return false };
        let folder = &self.paths[piece.node];
        changes.iter().any(|(name, _)| path.starts_with(folder.join(name)))
    }

    /// What is on disk when the power goes before the call `n`, and of [`Disk::open`] only `kept`.
    pub(crate) fn tree(&self, n: usize, kept: &[usize]) -> Tree {
        let mut contents = self.start.clone();
        for (index, piece) in self.pieces.iter().enumerate() {
            if piece.durable.is_some_and(|at| at < n) || kept.binary_search(&index).is_ok() {
                apply(&mut contents[piece.node], &piece.change);
            }
        }
        let mut tree = Tree::new();
        walk(&contents, ROOT, Path::new(""), &mut tree);
        tree
    }

    /// What processes see before the call `n`.
    pub(crate) fn seen(&self, n: usize) -> Tree {
        self.tree(n, &self.open(n, Path::new("")))
    }
}

/// Everything below `root`.
pub(crate) fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for path in crate::harness::lab::children(&folder) {
            let below = path.strip_prefix(root).unwrap().to_owned();
            let content = if path.is_symlink() {
                Content::Link(fs::read_link(&path).unwrap())
            } else if path.is_dir() {
                Content::Folder(BTreeMap::new())
            } else {
                Content::File(fs::read(&path).unwrap())
            };
            if matches!(content, Content::Folder(_)) {
                open.push(path);
            }
            tree.insert(below, content);
        }
    }
    tree
}

/// Makes what is in `tree` below `root`.
pub(crate) fn put(tree: &Tree, root: &Path) {
    for (path, content) in tree {
        let path = root.join(path);
        match content {
            Content::Folder(_) => fs::create_dir(path).unwrap(),
            Content::File(bytes) => fs::write(path, bytes).unwrap(),
            Content::Link(target) => symlink(target, path).unwrap(),
        }
    }
}

/// The same for the same trees.
pub(crate) fn hash(tree: &Tree) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for (path, content) in tree {
        let (kind, bytes) = match content {
            Content::Folder(_) => (0, &[][..]),
            Content::File(bytes) => (1, bytes.as_slice()),
            Content::Link(target) => (2, target.as_os_str().as_encoded_bytes()),
        };
        let path = path.as_os_str().as_encoded_bytes();
        for part in [path, bytes] {
            hasher.update(&part.len().to_le_bytes()).update(part);
        }
        hasher.update(&[kind]);
    }
    hasher.finalize().into()
}

fn apply(content: &mut Content, change: &Change) {
    match (content, change) {
        (Content::Folder(names), Change::Names(changes)) => {
            for (name, node) in changes {
                match node {
                    Some(node) => drop(names.insert(name.clone(), *node)),
                    None => drop(names.remove(name)),
                }
            }
        }
        (Content::File(bytes), Change::Length(length)) => {
            bytes.resize(*length.max(&bytes.len()), 0);
        }
        // Behind the length that is on disk there is nothing.
        (Content::File(bytes), Change::Sector(at, these)) => {
            let end = (at + these.len()).min(bytes.len());
            if *at < end {
                bytes[*at..end].copy_from_slice(&these[..end - at]);
            }
        }
        (content, change) => panic!("{change:?} of {content:?}"),
    }
}

fn walk(contents: &[Content], node: Node, path: &Path, tree: &mut Tree) {
    let Content::Folder(names) = &contents[node] else { return };
    for (name, &node) in names {
        let path = path.join(name);
        let content = match &contents[node] {
            Content::Folder(_) => Content::Folder(BTreeMap::new()),
            other => other.clone(),
        };
        tree.insert(path.clone(), content);
        walk(contents, node, &path, tree);
    }
}

fn names_of(folder: &mut Content) -> &mut BTreeMap<String, Node> {
    match folder {
        Content::Folder(names) => names,
        other => panic!("{other:?} is no folder"),
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}
