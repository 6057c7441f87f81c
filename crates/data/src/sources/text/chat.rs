//! `data.name = "chat"`: conversations, written as one text by the chat template of a model's
//! tokenizer, of which the answers of the assistant count.
//!
//! A conversation is `messages` of `role` and `content`, or `conversations` of `from` and `value`
//! as in `ShareGPT`, or an entry in Alpaca's form (`conversation.rs`). The file holds one in each
//! line, or a JSON list.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{BuiltinSplits, Capability, Kind, Modality, Options};
use crate::error::Error;
use crate::inputs::{Inputs, PredictionRequest};
use crate::plan::SplitPlan;
use crate::sources::named_files::{files_of, files_of_repository};
use crate::sources::source::{DataSource, Files, OpenRequest, Survey, SurveyRequest};
use crate::sources::text::conversation::{
    Conversation, answered_tokens, end_token, files_of_chats,
};
use crate::sources::text::entries::{Counted, CutEntry, Entries};
use crate::sources::text::entry_file::{ENTRY_FILES, cut_files};
use crate::sources::text::entry_parts::{EntryCheck, GENERATED, splits};
use crate::sources::text::samples::SampleForm;
use crate::sources::text::token_cache::{Origin, TokenCache, cached};
use crate::tokenizer::Tokenizer;
use crate::units::Bytes;
use crate::{ChatTemplate, Splits, TextForm};

/// The data in messages.
const WHAT: &str = "the conversations";
const EXPECTED: &str = "a line for each conversation, such as {\"messages\": [{\"role\": \
                        \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \
                        \"hello\"}]}, or a JSON list of them";

/// conversations, formatted by the tokenizer's chat template; the model learns the assistant's
/// answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// conversations, one JSON object per line, a JSON list (both also packed by gzip or zstd), or
    /// the rows of a parquet file; a folder or a pattern (`data/train-*.parquet`) of such files,
    /// read in the order of their names; or a repository of the Hugging Face hub ("hf:ORG/NAME").
    /// Each has `messages` (each with `role` and `content`), `conversations` (`from` and `value`, ShareGPT's
    /// format), or `instruction`, `input` and `output` (Alpaca's; `system` and `history`, too).
    /// `tools`, `documents` and `chat_template_kwargs` are given to the template; an answer with
    /// `weight = 0` or `train = false` is not learned. Losses are means over the counted tokens.
    #[schemars(extend("format" = "path"), example = "data/chats.jsonl")]
    pub file: PathBuf,
    /// a tokenizer.json, or its repository on the Hugging Face hub ("hf:ORG/NAME").
    #[schemars(extend("format" = "path"), example = "weights/tokenizer.json")]
    pub tokenizer: PathBuf,
    /// "chatml", or a file with a Jinja template. Default: the template beside the tokenizer, in
    /// `chat_template.jinja` or `tokenizer_config.json`.
    #[serde(default)]
    #[schemars(extend("format" = "path"), example = &"chatml")]
    pub chat_template: Option<PathBuf>,
    /// context length in tokens; longer conversations are truncated, shorter ones padded (the loss
    /// ignores padding).
    #[schemars(range(min = 2, max = 65_536), example = 1024)]
    pub seq_len: usize,
    /// pack several short conversations into each sample to train on. None sees anything of the
    /// others, and its positions count from 0: each has the logits that it would have alone. An
    /// epoch has fewer samples, of about the same length.
    #[serde(default)]
    #[schemars(example = true)]
    pub packing: bool,
    /// fraction of the conversations, at the end, held out for validation, unless
    /// `data.val_fraction` or `data.folds` is given.
    #[serde(default = "a_tenth")]
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub val_ratio: f64,
    /// compute the loss only on the assistant's tokens: the template's `{% generation %}` blocks if
    /// it has any, else what each answer adds to the conversation, including its end token.
    #[serde(default = "yes")]
    pub mask_prompt: bool,
    /// token that ends an answer in `ddprun sample`, and that pads. Default: the `eos_token` of
    /// `tokenizer_config.json`, else the first usual one in the vocabulary.
    #[serde(default)]
    #[schemars(example = "<|im_end|>")]
    pub eos_token: Option<String>,
    /// at the end of a run on one machine, sample this many tokens with the best weights and print
    /// them, like `ddprun sample`. Default: none.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_048_576), example = 300)]
    pub sample_tokens: Option<u32>,
}

fn a_tenth() -> f64 {
    0.1
}

fn yes() -> bool {
    true
}

impl Kind for Chat {
    const NAME: &'static str = "chat";
    const CAPABILITIES: &'static [Capability] =
        &[Capability::Samples(Modality::Text), Capability::Split(BuiltinSplits::LAST)];
}

impl DataSource for Chat {
    fn open(&self, reading: &OpenRequest<'_>) -> Result<Splits, Error> {
        Ok(self.splits(&reading.survey.split, EntryCheck::Open)?.0)
    }

    fn survey(&self, request: &SurveyRequest<'_>) -> Result<Survey, Error> {
        let counts = if self.mask_prompt { "answers count" } else { "all messages count" };
        let check = EntryCheck::Survey(request.on_bad_sample);
        let (splits, entries, notes) = self.splits(&request.split, check)?;
        let lengths = entries.length_words(self.seq_len);
        let packs = if self.packing { ", packed" } else { "" };
        let line = format!("{}, {lengths}, {counts}{packs}", self.file.display());
        let held = Bytes(entries.held());
        Ok(Survey { notes, line, held, ..Survey::of(&splits) })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        let chats = Files::parts("chats", &self.file, self.parts()?);
        Ok(files_of_chats(chats, &self.tokenizer, self.chat_template.as_deref()))
    }

    fn repositories(&self) -> &'static [&'static str] {
        &["file"]
    }

    fn repository_files(&self, root: &str, listed: &[String]) -> Result<Vec<String>, Error> {
        files_of_repository(root, listed, ENTRY_FILES)
    }

    fn inputs(&self, _: &PredictionRequest<'_>) -> Result<Inputs, Error> {
        Err(Error::NotPredicted { why: GENERATED })
    }

    fn text(&self) -> Option<TextForm> {
        Some(TextForm::Chat {
            tokenizer: self.tokenizer.clone(),
            chat_template: self.chat_template.clone(),
            eos_token: self.eos_token.clone(),
        })
    }

    fn sample_tokens(&self) -> Option<u32> {
        self.sample_tokens
    }
}

impl Chat {
    /// Opens all parts, and what they share.
    fn splits(
        &self,
        split: &SplitPlan,
        check: EntryCheck,
    ) -> Result<(Splits, Arc<Entries>, Vec<String>), Error> {
        let tokenizer = Arc::new(Tokenizer::open(&self.tokenizer)?);
        let template = ChatTemplate::open(&self.tokenizer, self.chat_template.as_deref())?;
        let end = self.eos_token.as_deref().or_else(|| template.eos_token());
        let end = end_token(&tokenizer, &self.tokenizer, end)?;
        let mut notes = match check {
            EntryCheck::Survey(_) => template.doubts(&tokenizer, end),
            EntryCheck::Open => Vec::new(),
        };
        let own = self.clone();
        let cutter = tokenizer.clone();
        let files = self.parts()?;
        let parts = files.clone();
        let cut = move || {
            cut_files(&parts, WHAT, EXPECTED, |entry| {
                let chat = Conversation::of(entry, &template)?;
                let tokens = own.tokens(&chat, &cutter, &template)?;
                Ok(CutEntry { tokens, unused: chat.unused })
            })
        };
        let cache = TokenCache::of_user();
        let entries = cached(cache.as_ref(), &self.origin(&files), check.of_cache(), cut)?;
        let entries = Arc::new(entries);
        let form = SampleForm {
            path: self.file.clone(),
            files,
            noun: "conversation",
            seq_len: self.seq_len,
            end,
            all_count: false,
            packing: self.packing,
        };
        let classes = tokenizer.vocabulary();
        let (splits, told) = splits(&form, &entries, self.val_ratio, split, check, classes)?;
        notes.extend(told);
        Ok((splits, entries, notes))
    }

    /// The files with the conversations, in order.
    fn parts(&self) -> Result<Vec<PathBuf>, Error> {
        files_of(WHAT, &self.file, EXPECTED, ENTRY_FILES)
    }

    /// The inputs that the tokens of `files` depend on.
    fn origin(&self, files: &[PathBuf]) -> Origin {
        let template = ChatTemplate::files(&self.tokenizer, self.chat_template.as_deref());
        let known = files.iter().chain([&self.tokenizer]).cloned();
        let named = &self.chat_template;
        let masked = self.mask_prompt;
        Origin {
            paths: known.chain(template).collect(),
            n_texts: files.len(),
            options: format!("chat {named:?} {masked}"),
        }
    }

    /// The tokens of a conversation, of which those that hold a byte of an answer count, as in
    /// transformers; without `mask_prompt` all but those of answers that are not learnt.
    fn tokens(
        &self,
        chat: &Conversation,
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
    ) -> Result<Vec<Counted>, String> {
        let Conversation { messages, variables, untrained, .. } = chat;
        if !self.mask_prompt && untrained.is_empty() {
            let tokens = tokenizer.encode(&template.text(messages, variables)?, false)?;
            return Ok(tokens.into_iter().map(|token| (token, true)).collect());
        }
        let is_wanted = |message: usize| untrained.contains(&message) != self.mask_prompt;
        let chat = template.chat(messages, variables, is_wanted)?;
        let tokens = answered_tokens(tokenizer, &chat)?.into_iter();
        Ok(tokens.map(|(token, answered)| (token, answered == self.mask_prompt)).collect())
    }
}

#[cfg(test)]
mod tests;
