//! Texts, as tokens.

mod token_file;
mod budget;
mod token_cache;
mod token_buffer;
mod entries;
mod entry_file;
mod samples;
mod packs;
mod entry_parts;
mod documents;
mod tokens;
pub(crate) mod instructions;
mod conversation;
mod chat;
mod preferences;

pub use chat::Chat;
pub use instructions::{Instructions, end_of_answers, prompt};
pub use preferences::Preferences;
pub use token_file::TokenDtype;
pub use token_file::largest_token;
pub use tokens::{Tokens, encode};
