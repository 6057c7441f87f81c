//! The state of a download, for a bar.

/// State of a download.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Another process fetches the file, which is waited for.
    Waiting { file: &'a str },
    /// Bytes of the file that are here, and its size.
    Fetching { file: &'a str, done: u64, size: u64 },
    /// Bytes of an archive that are unpacked, and its size.
    Unpacking { file: &'a str, done: u64, size: u64 },
}

/// Called after each chunk; a download stops when it returns `false`.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress<'_>) -> bool;
