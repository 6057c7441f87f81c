//! Files of tokens, and the size of their vocabulary.

use std::path::Path;

use crate::data::{self, TokenDtype};
use crate::init::recognised::{Recognised, SEQ_LEN, Task, path};
use crate::user_error::ErrorPage;

/// GPT-2's vocabulary, which is meant where nothing is said.
const USUAL: usize = 50_257;
/// A vocabulary is rounded up to a multiple of this, as nanoGPT does.
const MULTIPLE: usize = 64;

/// Tokens to train on and to validate on.
pub(super) fn parts(train: &Path, val: &Path) -> Result<Recognised, ErrorPage> {
    let mut options =
        vec![("train_file", path(train)), ("val_file", path(val)), ("seq_len", SEQ_LEN.into())];
    let most = largest(train)?.max(largest(val)?) as usize;
    // The tokens of a part of a text need not hold the last words of its vocabulary.
    if !(USUAL / 2..USUAL).contains(&most) {
        options.push(("vocab_size", (most + 1).next_multiple_of(MULTIPLE).into()));
    }
    Ok(Recognised::new("tokens", &options, Task::Tokens { largest: most }))
}

fn largest(path: &Path) -> Result<u32, ErrorPage> {
    Ok(data::largest_token(path, TokenDtype::Uint16)?)
}
