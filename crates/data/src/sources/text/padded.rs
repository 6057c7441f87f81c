//! Tokens of a text -> what a model sees, and what is to follow each token.

use crate::IGNORED;

/// Input of `tokens` in a context of `seq_len`, and the token that is to follow each one; the rest
/// is filled with `end`, which does not count there. `counts` is true for tokens that count.
pub(super) fn padded(
    mut tokens: Vec<u32>,
    counts: impl Fn(usize) -> bool,
    seq_len: usize,
    end: u32,
) -> (Vec<u32>, Vec<u32>) {
    tokens.truncate(seq_len + 1);
    let counted = |i: usize| if counts(i) { tokens[i] } else { IGNORED };
    let mut next: Vec<u32> = (1..tokens.len()).map(counted).collect();
    next.resize(seq_len, IGNORED);
    tokens.truncate(tokens.len().saturating_sub(1));
    tokens.resize(seq_len, end);
    (tokens, next)
}
