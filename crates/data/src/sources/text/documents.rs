//! Documents as windows of tokens, each with the token that follows each of its tokens; the last
//! window of a document is filled up with tokens that do not count.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::{Error, SampleError};
use crate::inputs::{self, InputItem, InputItems, Inputs, PredictionKind};
use crate::rng::Key;
use crate::sources::text::samples::padded;
use crate::{Dataset, Target, read};

/// The key of a document in a JSON object a line.
const TEXT: &str = "text";
const EXPECTED: &str = "texts (.txt, .md), or a JSON object with `text` a line (.jsonl)";

/// Windows of documents.
#[derive(Default)]
struct Documents {
    tokens: Vec<u32>,
    /// Start of each window, and end of its document.
    windows: Vec<[usize; 2]>,
    shape: [usize; 1],
}

/// The documents of files and folders: a text each, or one in each line of a .jsonl file; `tokens`
/// cuts them.
pub(super) fn texts(
    paths: &[PathBuf],
    seq_len: usize,
    tokens: &dyn Fn(&str) -> Result<Vec<u32>, String>,
) -> Result<Inputs, Error> {
    let mut all = Documents { shape: [seq_len], ..Documents::default() };
    let mut items = Vec::new();
    let is_wanted = |path: &Path| inputs::ends_with(path, &["txt", "md", "jsonl"]);
    let inputs::InputFiles { files, notes } = inputs::files(paths, EXPECTED, &is_wanted)?;
    for path in files {
        let file: Arc<Path> = Arc::from(&*path);
        let bytes = match read::whole(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                items.push(InputItem::unreadable(&file, None, error.to_string()));
                continue;
            }
        };
        let mut push = |row, text: Result<String, String>| {
            items.push(all.push(&file, row, text.and_then(|text| tokens(&text))));
        };
        if inputs::ends_with(&path, &["jsonl"]) {
            let lines = bytes.split(|&byte| byte == b'\n');
            let lines = lines.filter(|line| !line.trim_ascii().is_empty());
            (1..).zip(lines).for_each(|(row, line)| push(Some(row), of_line(line)));
        } else {
            let not_text = |_| "it is not UTF-8 text".to_owned();
            push(None, String::from_utf8(bytes).map_err(not_text));
        }
    }
    Ok(all.inputs(items, notes))
}

/// The documents that are files of tokens.
pub(super) fn token_files(
    files: Vec<(PathBuf, Result<Vec<u32>, String>)>,
    notes: Vec<String>,
    seq_len: usize,
) -> Inputs {
    let mut all = Documents { shape: [seq_len], ..Documents::default() };
    let item = |(path, tokens): (PathBuf, _)| all.push(&Arc::from(&*path), None, tokens);
    let items = files.into_iter().map(item).collect();
    all.inputs(items, notes)
}

fn of_line(line: &[u8]) -> Result<String, String> {
    let object: Map<String, Value> = serde_json::from_slice(line)
        .map_err(|error| format!("it is not a JSON object: {error}"))?;
    let text = object.get(TEXT).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| format!("it has no text `{TEXT}`"))
}

impl Documents {
    /// Appends a document.
    fn push(
        &mut self,
        file: &Arc<Path>,
        row: Option<u64>,
        tokens: Result<Vec<u32>, String>,
    ) -> InputItem {
        let tokens = match tokens {
            Ok(tokens) if tokens.len() > 1 => tokens,
            Ok(_) => {
                let why = "it has fewer than two tokens, so none is expected".to_owned();
                return InputItem::unreadable(file, row, why);
            }
            Err(why) => return InputItem::unreadable(file, row, why),
        };
        let start = self.tokens.len();
        let end = self.tokens.len() + tokens.len();
        self.tokens.extend(tokens);
        let first = self.windows.len();
        // The last token is expected, and expects nothing.
        self.windows.extend((start..end - 1).step_by(self.shape[0]).map(|at| [at, end]));
        InputItem::new(file, row, first..self.windows.len())
    }

    fn inputs(self, items: Vec<InputItem>, notes: Vec<String>) -> Inputs {
        let items = InputItems::Listed(items);
        let answers = PredictionKind::TokenLoss;
        Inputs { samples: Arc::new(self), items, answers, notes }
    }
}

impl Dataset for Documents {
    fn len(&self) -> usize {
        self.windows.len()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn target_shape(&self) -> &[usize] {
        &self.shape
    }

    fn classifies(&self) -> bool {
        true
    }

    fn name(&self, index: usize) -> String {
        format!("window {}", index + 1)
    }

    fn load(
        &self,
        index: usize,
        _: Option<Key>,
        values: &mut Vec<f32>,
    ) -> Result<Target, SampleError> {
        let ([start, end], [seq_len]) = (self.windows[index], self.shape);
        let window = self.tokens[start..end.min(start + seq_len + 1)].to_vec();
        let (seen, next) = padded(window, |_| true, seq_len, 0);
        values.extend(seen.iter().map(|&token| token as f32));
        Ok(Target::Classes(next))
    }
}
