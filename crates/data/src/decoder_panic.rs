//! Panics of the libraries that read files, which some damaged ones cause, as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `work` of a library gives; its panic is an error like its others.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panic_message(&*panic)))
}

/// What a caught panic said.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
