//! Renders the messages of a chat as one text, by the Jinja template that stands beside a model's
//! tokenizer, as transformers' `apply_chat_template` does.
//!
//! Templates may use the parts of Python that transformers offers them (`strip`, slices, `tojson`,
//! `raise_exception`, `break` ...), except `strftime_now`: templates write the same on every day.
//! Llama's templates work without it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error as JinjaError, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value as Json, json};

use crate::error::Error;
use crate::read;
use crate::read::caught;
use crate::tokenizer::Tokenizer;

/// The template of this name, and its text.
const CHATML: (&str, &str) = (
    "chatml",
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + \
     '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
     {{ '<|im_start|>assistant\n' }}{% endif %}",
);
const EXPECTED: &str = "`chatml`, or a file with a Jinja template, as `chat_template.jinja` beside \
                        a model on the HuggingFace hub";
/// Steps of a template, which ends in a few thousand.
const MAX_STEPS: u64 = 50_000_000;
/// Marks around an answer in a rendered text (noncharacters of Unicode).
const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];

/// A template, with the words of its tokenizer.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` ...
    words: BTreeMap<String, String>,
    /// True if the template marks what the assistant writes.
    has_marks: bool,
    /// All names in its text.
    names: BTreeSet<String>,
}

/// A chat as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// The bytes of it that the assistant writes, with what ends each answer.
    pub answers: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// The template `asked` for, or that of the tokenizer in the file `tokenizer`.
    pub fn open(tokenizer: &Path, asked: Option<&Path>) -> Result<Self, Error> {
        let config = config(tokenizer)?;
        let (path, text) = found(tokenizer, asked, &config)?;
        let unusable = |what| Error::Format { path: path.clone(), what };
        let has_marks = text.contains("endgeneration");
        let mut environment = environment();
        environment
            .add_template_owned("chat", with_filters(&text))
            .map_err(|error| unusable(format!("it is no chat template: {}", words_of(&error))))?;
        let names = text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned);
        Ok(Self { environment, words: words(&config), has_marks, names: names.collect() })
    }

    /// The files that it is read from, as far as they exist.
    pub fn files(tokenizer: &Path, asked: Option<&Path>) -> Vec<PathBuf> {
        let template = match asked {
            Some(name) if name.as_os_str() == CHATML.0 => None,
            Some(path) => Some(path.to_owned()),
            None => Some(beside(tokenizer, "chat_template.jinja")),
        };
        let config = beside(tokenizer, "tokenizer_config.json");
        template.into_iter().chain([config]).filter(|path| path.is_file()).collect()
    }

    /// The word of the token that ends an answer, where the tokenizer names one.
    pub fn eos_token(&self) -> Option<&str> {
        self.words.get("eos_token").map(String::as_str)
    }

    /// True if its text has the name of this variable, or of this key of a message.
    pub fn reads(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// A chat that asks for an answer.
    pub fn prompt(&self, messages: &[Json]) -> Result<String, String> {
        Ok(self.rendered(messages, &Map::new(), true)?.text)
    }

    /// A chat with `variables` of its own.
    pub fn text(&self, messages: &[Json], variables: &Map<String, Json>) -> Result<String, String> {
        Ok(self.rendered(messages, variables, false)?.text)
    }

    /// A chat with `variables` of its own, and what of it is answers. Of these, only those are
    /// looked for that are `wanted`, by the places of their messages.
    pub fn chat(
        &self,
        messages: &[Json],
        variables: &Map<String, Json>,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Rendered, String> {
        let mut rendered = self.rendered(messages, variables, false)?;
        let answers = (0..messages.len()).filter(|&i| messages[i]["role"] == "assistant");
        if !self.has_marks {
            let answer = |i| self.answer(messages, variables, &rendered.text, i);
            rendered.answers =
                answers.filter(|&i| wanted(i)).map(answer).collect::<Result<_, _>>()?;
            return Ok(rendered);
        }
        let answers: Vec<bool> = answers.map(wanted).collect();
        if answers.contains(&false) {
            let (n, marked) = (answers.len(), rendered.answers.len());
            if n != marked {
                return Err(format!(
                    "some of its answers are not learnt, but the template marks {marked} answers \
                     of {n}"
                ));
            }
            let mut answers = answers.into_iter();
            rendered.answers.retain(|_| answers.next().unwrap_or(true));
        }
        Ok(rendered)
    }

    /// The range of message `i`, of the assistant, in `text`: what it adds to the prompt for it.
    fn answer(
        &self,
        messages: &[Json],
        variables: &Map<String, Json>,
        text: &str,
        i: usize,
    ) -> Result<Range<usize>, String> {
        let before = self.rendered(&messages[..i], variables, true)?.text;
        let after = self.rendered(&messages[..=i], variables, false)?.text;
        if after.starts_with(&before) && text.starts_with(&after) {
            return Ok(before.len()..after.len());
        }
        Err(format!(
            "the template writes message {} in another way when others follow it, so what the \
             assistant wrote is not found: put `{{% generation %}}` and `{{% endgeneration %}}` \
             around it in a template of your own (`data.chat_template`), or set \
             `data.mask_prompt = false`",
            i + 1
        ))
    }

    /// Doubts whether this template is one for `tokenizer`, in which `end` ends answers: markers
    /// that it cuts into pieces, and answers without that end.
    pub fn doubts(&self, tokenizer: &Tokenizer, end: u32) -> Vec<String> {
        let messages = [("user", "a"), ("assistant", "b")];
        let messages = messages.map(|(role, content)| json!({"role": role, "content": content}));
        // A template may want other messages, which the data has.
        let Ok(chat) = self.chat(&messages, &Map::new(), |_| true) else { return Vec::new() };
        let pieces = markers(&chat.text).into_iter().filter_map(|marker| {
            let n = tokenizer.encode(marker, false).map_or(0, |pieces| pieces.len());
            (n > 1).then(|| format!("`{marker}` ({n} tokens)"))
        });
        let pieces = pieces.collect::<Vec<_>>().join(", ");
        let mut doubts = Vec::new();
        if !pieces.is_empty() {
            doubts.push(format!(
                "the chat template writes what is no token of the tokenizer: {pieces}; is it the \
                 template of this model?"
            ));
        }
        let answered = chat.answers.last().and_then(|range| chat.text.get(range.clone()));
        let answered = answered.unwrap_or_default();
        let tokens = tokenizer.encode(answered, false).unwrap_or_default();
        if !tokens.contains(&end) {
            let ends = answered.trim_start().trim_start_matches('b').trim();
            let end = tokenizer.word(end).unwrap_or_default();
            let remedy = match tokenizer.end(Some(ends)) {
                Some(_) => format!("; set `data.eos_token = \"{ends}\"`"),
                None => String::new(),
            };
            doubts.push(format!(
                "the chat template does not end answers with `{end}`, so that `ddprun sample` would \
                 not see their end{remedy}"
            ));
        }
        doubts
    }

    fn rendered(
        &self,
        messages: &[Json],
        variables: &Map<String, Json>,
        asks: bool,
    ) -> Result<Rendered, String> {
        let words = self.words.iter().map(|(key, word)| (key.clone(), word.as_str().into()));
        let words: Map<String, Json> = words.chain(variables.clone()).collect();
        let variable = |name| Value::from(Serde(variables.get(name).unwrap_or(&Json::Null)));
        let given = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => asks,
            tools => variable("tools"),
            documents => variable("documents"),
            ..Value::from(Serde(&words))
        };
        let render = || {
            let template = self.environment.get_template("chat");
            template.and_then(|template| template.render(given)).map_err(|e| words_of(&e))
        };
        Ok(unmarked(&caught(render)?))
    }
}

/// Words of a text in the form of special tokens, such as `<|im_start|>`, each once.
fn markers(text: &str) -> Vec<&str> {
    const BARS: [char; 2] = ['|', '\u{ff5c}'];
    let mut found = Vec::new();
    for (start, _) in text.match_indices('<') {
        let marker = &text[start..];
        let Some(length) = marker.find('>') else { break };
        let marker = &marker[..=length];
        let inner = &marker[1..length];
        let is_barred = inner.starts_with(BARS) && inner.ends_with(BARS);
        let is_turn = matches!(inner, "start_of_turn" | "end_of_turn");
        let is_word = inner.chars().count() > 2 && !inner.contains(char::is_whitespace);
        if is_word && (is_barred || is_turn) && !found.contains(&marker) {
            found.push(marker);
        }
    }
    found
}

/// Text and answers of a text in which these are marked.
fn unmarked(marked: &str) -> Rendered {
    let mut text = String::with_capacity(marked.len());
    let mut answers = vec![];
    let mut start = 0;
    for c in marked.chars() {
        match MARKS.iter().position(|mark| *mark == c) {
            Some(0) => start = text.len(),
            Some(_) => answers.push(start..text.len()),
            None => text.push(c),
        }
    }
    Rendered { text, answers }
}

/// The Jinja environment of templates, as in transformers.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax =
        minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("generation", |text: String| {
        let [begin, end] = MARKS;
        format!("{begin}{text}{end}")
    });
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<Value, JinjaError> {
        Err(JinjaError::new(ErrorKind::InvalidOperation, message))
    });
    environment
}

/// The template with a filter for each of transformers' `generation` blocks.
fn with_filters(template: &str) -> String {
    let mut parts = template.split("{%");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += "{%";
        let Some((tag, rest)) = part.split_once("%}") else {
            text += part;
            continue;
        };
        match tag.trim_matches(['-', '+', ' ', '\t', '\n', '\r']) {
            "generation" => text += &tag.replace("generation", "filter generation"),
            "endgeneration" => text += &tag.replace("endgeneration", "endfilter"),
            _ => text += tag,
        }
        text += "%}";
        text += rest;
    }
    text
}

/// Python's spaces in JSON.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The filter `tojson`, as Python's `json.dumps`.
#[expect(clippy::needless_pass_by_value, reason = "as minijinja calls filters")]
fn to_json(value: Value, options: Kwargs) -> Result<String, JinjaError> {
    let indent: Option<usize> = options.get("indent")?;
    let mut bytes = Vec::new();
    let written = match indent {
        Some(n) => {
            let spaces = " ".repeat(n.min(16));
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, pretty))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, PythonFormatter)),
    };
    let failed = |what: String| JinjaError::new(ErrorKind::InvalidOperation, what);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| failed(error.to_string()))
}

/// An error of a template in one line.
fn words_of(error: &JinjaError) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error
        .line()
        .map_or_else(|| what.clone(), |line| format!("{what} (line {line} of the template)"))
}

fn beside(tokenizer: &Path, name: &str) -> PathBuf {
    tokenizer.with_file_name(name)
}

/// Contents of `tokenizer_config.json`; empty if there is none.
fn config(tokenizer: &Path) -> Result<Json, Error> {
    let path = beside(tokenizer, "tokenizer_config.json");
    if !path.is_file() {
        return Ok(Json::Null);
    }
    let failed = Error::reading("the tokenizer's configuration", &path, "a tokenizer_config.json");
    let bytes = read::whole(&path).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Format {
        path: path.clone(),
        what: format!("it is not JSON: {error}"),
    })
}

/// The template's file and text.
fn found(
    tokenizer: &Path,
    asked: Option<&Path>,
    config: &Json,
) -> Result<(PathBuf, String), Error> {
    let of_file = |path: PathBuf| {
        let bytes =
            read::whole(&path).map_err(Error::reading("the chat template", &path, EXPECTED))?;
        let what = || "it is not UTF-8 text".to_owned();
        let text = String::from_utf8(bytes);
        text.map_err(|_| Error::Format { path: path.clone(), what: what() })
            .map(|text| (path, text))
    };
    match asked {
        Some(name) if name.as_os_str() == CHATML.0 => Ok((name.to_owned(), CHATML.1.to_owned())),
        Some(path) => of_file(path.to_owned()),
        None => {
            let file = beside(tokenizer, "chat_template.jinja");
            let in_config = in_config(config);
            match in_config {
                _ if file.is_file() => of_file(file),
                Some(text) => Ok((beside(tokenizer, "tokenizer_config.json"), text.to_owned())),
                None => {
                    let what = "no chat template stands beside it, in `chat_template.jinja` or \
                                `tokenizer_config.json`: set `data.chat_template` to `chatml`, or \
                                to a file";
                    Err(Error::Format { path: tokenizer.to_owned(), what: what.to_owned() })
                }
            }
        }
    }
}

/// The template in a configuration: the only one, or that called `default`.
fn in_config(config: &Json) -> Option<&str> {
    match &config["chat_template"] {
        Json::Array(all) => {
            all.iter().find(|named| named["name"] == "default")?["template"].as_str()
        }
        template => template.as_str(),
    }
}

/// The token that ends a text, where a `tokenizer_config.json` beside the tokenizer names one.
pub(crate) fn eos_token(tokenizer: &Path) -> Result<Option<String>, Error> {
    Ok(words(&config(tokenizer)?).remove("eos_token"))
}

/// The special tokens that a configuration names.
fn words(config: &Json) -> BTreeMap<String, String> {
    let Some(config) = config.as_object() else { return BTreeMap::new() };
    let word = |(key, value): (&String, &Json)| {
        let word = value.as_str().or_else(|| value["content"].as_str())?;
        key.ends_with("_token").then(|| (key.clone(), word.to_owned()))
    };
    config.iter().filter_map(word).collect()
}

#[cfg(test)]
mod tests;
