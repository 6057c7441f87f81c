//! Folders -> the files in them.

pub(crate) mod paths;
pub(crate) mod scan;
pub(crate) mod cache;
