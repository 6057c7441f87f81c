//! Folders -> the files in them.

pub(in crate::data) mod paths;
pub(in crate::data) mod scan;
pub(in crate::data) mod cache;
