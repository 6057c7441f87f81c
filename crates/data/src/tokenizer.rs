//! Text <-> tokens by a `tokenizer.json`, as the `HuggingFace` hub has one beside each language
//! model.

use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use tokenizers::Tokenizer as Inner;

use crate::error::Error;
use crate::read;
use crate::read::caught;

/// Tokenization of text by a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextForm {
    /// Each character is a token; its classes are the characters.
    Characters,
    /// Tokens are numbers without a text.
    Numbers,
    /// This tokenizer cuts it.
    Tokens(PathBuf),
    /// This tokenizer cuts chats, which a template writes.
    Chat {
        /// The tokenizer's file.
        tokenizer: PathBuf,
        /// `chatml`, or the template's file; `None` = that of the tokenizer.
        chat_template: Option<PathBuf>,
        /// The token that ends an answer; `None` = the tokenizer's.
        eos_token: Option<String>,
    },
    /// This tokenizer cuts instructions and their answers, which a token ends.
    Answers {
        /// The tokenizer's file.
        tokenizer: PathBuf,
        /// The token that ends an answer; `None` = the usual one.
        eos_token: Option<String>,
    },
}

/// End tokens by the names that models have for them; the first one in a vocabulary is taken.
const ENDS: [&str; 6] =
    ["</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<eos>"];

/// Most words of a vocabulary: a model has an output for each.
const MAX_VOCAB_SIZE: u32 = 1 << 20;

/// Bytes of a long text that a thread cuts at a time.
const PART_BYTES: usize = 1 << 20;
/// Bytes on each side of a border that show whether the text may be cut there.
const AROUND_BORDER: usize = 1 << 10;

/// Line ends at which a text may not be cut, after which no other is tried.
const MAX_REFUSALS: usize = 16;

/// Text <-> tokens.
pub struct Tokenizer(Inner);

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let expected = "a tokenizer.json, as it lies beside a model on the HuggingFace hub";
        let bytes = read::whole(path).map_err(Error::reading("the tokenizer", path, expected))?;
        let unusable = |what| Error::Format { path: path.to_owned(), what };
        let not_one = |error: String| unusable(format!("it is not a tokenizer: {error}"));
        serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)
            .map_err(|error| not_one(error.to_string()))?;
        let mut inner =
            caught(|| Inner::from_bytes(bytes).map_err(|e| e.to_string())).map_err(not_one)?;
        // A file may ask for padding and cutting, which are the data's business.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| unusable(error.to_string()))?;
        let last = inner.get_vocab(true).into_values().max().unwrap_or(0);
        if last >= MAX_VOCAB_SIZE {
            return Err(unusable(format!(
                "its token id {last} is above the limit of {MAX_VOCAB_SIZE}"
            )));
        }
        Ok(Self(inner))
    }

    /// The tokens of `text`, with those that begin a text if `begins`.
    pub fn encode(&self, text: &str, begins: bool) -> Result<Vec<u32>, String> {
        let found = || self.0.encode_fast(text, begins).map_err(|error| error.to_string());
        Ok(caught(found)?.get_ids().to_vec())
    }

    /// The tokens of a long text, without those that begin one. It is cut by all threads where
    /// that gives the tokens of the whole.
    pub fn encode_long(&self, text: &str) -> Result<Vec<u32>, String> {
        let borders = self.borders(text)?;
        let ends = borders.iter().copied().skip(1).chain([text.len()]);
        let parts: Vec<(usize, usize)> = borders.iter().copied().zip(ends).collect();
        let cut = |&(start, end): &(usize, usize)| self.encode(&text[start..end], false);
        let parts: Vec<Result<Vec<u32>, String>> = parts.par_iter().map(cut).collect();
        Ok(parts.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Borders at which `text` may be cut: after line ends around which the same tokens come out
    /// whether the text is cut there or not. A tokenizer that treats the begin of a text in a way
    /// of its own has none but the first.
    fn borders(&self, text: &str) -> Result<Vec<usize>, String> {
        let mut borders = vec![0];
        if self.0.get_pre_tokenizer().is_none() {
            return Ok(borders);
        }
        let mut at = PART_BYTES;
        let mut refusals = 0;
        while at < text.len() && refusals < MAX_REFUSALS {
            let start = text.floor_char_boundary(at);
            let Some(end) = text[start..].find('\n').map(|found| start + found + 1) else { break };
            at = end;
            if text[end..].starts_with(char::is_whitespace) {
                continue;
            }
            if self.may_cut(text, end)? {
                borders.push(end);
                at = end.saturating_add(PART_BYTES);
            } else {
                refusals += 1;
            }
        }
        Ok(borders)
    }

    /// True if the tokens around `border` are the same when the text is cut there.
    fn may_cut(&self, text: &str, border: usize) -> Result<bool, String> {
        let start = text.floor_char_boundary(border.saturating_sub(AROUND_BORDER));
        let end = text.floor_char_boundary((border + AROUND_BORDER).min(text.len()));
        let whole = self.encode(&text[start..end], false)?;
        let left = self.encode(&text[start..border], false)?;
        let right = self.encode(&text[border..end], false)?;
        Ok(whole == [left, right].concat())
    }

    /// The tokens of a text that holds its special tokens already, with the bytes that each stands
    /// for.
    pub fn encode_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, String> {
        let found = || self.0.encode(text, false).map_err(|error| error.to_string());
        let found = caught(found)?;
        let spans = found.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(found.get_ids().iter().copied().zip(spans).collect())
    }

    /// The text of `tokens`, without those that only begin or end it.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let text = || self.0.decode(tokens, true).map_err(|error| error.to_string());
        caught(text).unwrap_or_default()
    }

    /// The word of a token.
    pub fn word(&self, token: u32) -> Option<String> {
        self.0.id_to_token(token)
    }

    /// The words of the vocabulary in the order of their tokens; empty where a number has none.
    pub fn vocabulary(&self) -> Vec<String> {
        let words = self.0.get_vocab(true);
        let n = words.values().max().map_or(0, |&last| last as usize + 1);
        let mut ordered = vec![String::new(); n];
        // Each word has a place of its own, so the order of the map does not matter.
        let mut words: Vec<(String, u32)> = words.into_iter().collect();
        words.sort_unstable_by_key(|(_, token)| *token);
        for (word, token) in words {
            ordered[token as usize] = word;
        }
        ordered
    }

    /// Bytes of text of each token, in the order of the tokens: 0 for those that only begin or end
    /// a text. `None` if it is not known how a tokenizer writes its words.
    pub fn token_bytes(&self) -> Option<Vec<u32>> {
        let decoder = serde_json::to_string(&self.0.get_decoder()?).ok()?;
        let special = self.0.get_added_tokens_decoder();
        let is_special =
            |token: usize| special.get(&(token as u32)).is_some_and(|added| added.special);
        let bytes: fn(&str) -> usize = if decoder.contains("\"ByteLevel\"") {
            // Each character stands for a byte.
            |word| word.chars().count()
        } else if decoder.contains('\u{2581}') {
            |word| match word.strip_prefix("<0x") {
                Some(_) if word.len() == 6 => 1,
                // The sign of a blank takes three bytes.
                _ => word.len() - 2 * word.matches('\u{2581}').count(),
            }
        } else {
            return None;
        };
        let words = self.vocabulary();
        let of = |(token, word): (usize, &String)| if is_special(token) { 0 } else { bytes(word) };
        Some(words.iter().enumerate().map(|word| of(word) as u32).collect())
    }

    /// The token that ends a text: the one called `name`, or the first usual one; `None` if there
    /// is none.
    pub fn end(&self, name: Option<&str>) -> Option<u32> {
        match name {
            Some(name) => self.0.token_to_id(name),
            None => ENDS.iter().find_map(|name| self.0.token_to_id(name)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Byte pairs over the letters of a few words: `the` is one token, `</s>` ends and `<s>` begins
    /// a text.
    pub(crate) fn write(folder: &Path) -> PathBuf {
        let alphabet = ["<s>", "</s>", "<unk>", "h", "e", "t", "a", "c", "\u{120}", "th", "the"];
        let vocab: serde_json::Map<String, serde_json::Value> =
            alphabet.iter().enumerate().map(|(i, word)| ((*word).to_owned(), i.into())).collect();
        let special = |id: u32, content: &str| {
            serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        };
        let tokenizer = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [special(0, "<s>"), special(1, "</s>"), special(2, "<unk>")],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": ["t h", "th e"]},
        });
        let path = folder.join("tokenizer.json");
        std::io::Write::write_all(
            &mut std::fs::File::create(&path).unwrap(),
            tokenizer.to_string().as_bytes(),
        )
        .unwrap();
        path
    }

    #[test]
    fn text_becomes_tokens_and_text_again() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::open(&write(folder.path())).unwrap();
        assert_eq!(tokenizer.encode("the cat", false).unwrap(), [10, 8, 7, 6, 5]);
        assert_eq!(tokenizer.encode("the", true).unwrap(), [0, 10]);
        assert_eq!(tokenizer.decode(&[0, 10, 8, 7, 6, 5, 1]), "the cat");
        assert_eq!(tokenizer.vocabulary()[8..], ["\u{120}", "th", "the"]);
        assert_eq!((tokenizer.end(None), tokenizer.end(Some("<s>"))), (Some(1), Some(0)));
        assert_eq!(tokenizer.end(Some("<end>")), None);
    }

    #[test]
    fn a_long_text_cut_by_many_threads_has_the_tokens_of_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::open(&write(folder.path())).unwrap();
        let text = "the cat that\n  ate the hat\n\nthe\nchat a cat\n".repeat(80_000);
        assert!(tokenizer.borders(&text).unwrap().len() >= 3);
        assert!(tokenizer.encode_long(&text).unwrap() == tokenizer.encode(&text, false).unwrap());
        assert_eq!(tokenizer.encode_long("the cat").unwrap(), [10, 8, 7, 6, 5]);
        // One that puts a blank before each text cannot be cut.
        let path = write(folder.path());
        let rules = std::fs::read_to_string(&path).unwrap();
        let rules = rules.replace("\"add_prefix_space\":false", "\"add_prefix_space\":true");
        crate::files::write_atomic(&path, rules.as_bytes()).unwrap();
        let blank = Tokenizer::open(&path).unwrap();
        assert_eq!(blank.borders(&text).unwrap(), [0]);
    }

    #[test]
    fn the_bytes_of_tokens_are_those_of_their_text() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::open(&write(folder.path())).unwrap();
        let bytes = tokenizer.token_bytes().unwrap();
        assert_eq!(bytes, [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 3]);
        let text = "the cat that";
        let tokens = tokenizer.encode(text, false).unwrap();
        let sum: u32 = tokens.iter().map(|&token| bytes[token as usize]).sum();
        assert_eq!(sum as usize, text.len());
    }

    #[test]
    fn what_is_no_tokenizer_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let open = || Tokenizer::open(&path).err().unwrap().to_string();
        assert!(open().contains("the tokenizer `"), "{}", open());
        std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), b"{}").unwrap();
        assert!(open().contains("it is not a tokenizer"), "{}", open());
    }
}
