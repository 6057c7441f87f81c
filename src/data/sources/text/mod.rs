//! Texts, as tokens.

mod token_cache;
mod tokens;
pub(in crate::data) mod instructions;

pub use instructions::{Instructions, prompt};
pub use tokens::{Tokens, encode};
