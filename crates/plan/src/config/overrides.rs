//! `train.epochs=3`, `~train.steps` and `DDPRUN_TRAIN__EPOCHS=3` -> layers.
//!
//! The grammar is Hydra's: a dotted key, `=`, and a TOML value, where a bare word is text
//! (`optimizer.name=adam`, `logging.sinks=[csv,jsonl]`). `+key=value` is the same as `key=value`;
//! `~key` takes away what files and environment say about the key, and so does `key=null`.

use std::collections::BTreeMap;
use std::ops::Range;

use figment::providers::Env;
use figment::value::{Dict, Value};

use crate::config::layer::{Layer, Source};
use crate::config::problem::{NamedText, Problem};
use crate::config::spans::{self, KeySpan, Path};

/// Variables that ddprun itself uses; none of them is a setting. All that end in `_FD` are, too.
pub const RESERVED: [&str; 11] = [
    "DDPRUN_CACHE",
    "DDPRUN_DATA_MIRROR",
    "DDPRUN_FILE_CALLS",
    "DDPRUN_FP",
    "DDPRUN_JOB",
    "DDPRUN_LOG",
    "DDPRUN_PORT",
    "DDPRUN_RUN",
    "DDPRUN_TOKEN",
    "DDPRUN_TOKEN_FILE",
    "DDPRUN_WORKER",
];

/// Byte ranges of keys and values.
type Places = BTreeMap<Path, KeySpan>;

/// An override of one key.
pub(crate) enum Override {
    /// A value for a key.
    Set(Layer),
    /// A value in an entry of a list, which the layer holds at this path.
    Entry(Path, Layer),
    /// The key at this path goes back to its default; the layer holds the text only.
    Remove(Path, Layer),
}

/// The settings in the environment, in the order of their names.
pub(crate) fn environment() -> Vec<(String, String)> {
    let is_setting = |name: &str| {
        let full = format!("DDPRUN_{}", name.to_ascii_uppercase());
        !full.ends_with("_FD") && !RESERVED.contains(&full.as_str())
    };
    let env = Env::prefixed("DDPRUN_").filter(move |name| is_setting(name.as_str()));
    let mut found: Vec<(String, String)> =
        env.iter().map(|(key, value)| (key.into_string(), value)).collect();
    found.sort();
    found
}

/// The environment variable of the setting `key` (`train__epochs`) as a layer.
pub(crate) fn variable(key: &str, value: &str) -> Result<Override, Problem> {
    let name = format!("DDPRUN_{}", key.to_ascii_uppercase());
    let shown = format!("{name}={value}");
    let mut at = "DDPRUN_".len();
    let mut segments = Vec::new();
    for segment in key.split("__") {
        segments.push((segment.to_ascii_lowercase(), at..at + segment.len()));
        at += segment.len() + "__".len();
    }
    let value_at = name.len() + 1;
    assignment(Source::Environment(name), shown, &segments, value_at)
}

/// Each of the overrides `words` as a layer; a key and a value in two words are one problem.
pub(crate) fn command_lines(words: &[String]) -> Vec<Result<Override, Problem>> {
    let mut found = Vec::new();
    let mut rest = words;
    while let [word, after @ ..] = rest {
        let value = after.first().filter(|next| is_apart(word, next));
        found.push(value.map_or_else(|| command_line(word), |value| Err(apart(word, value))));
        rest = &after[usize::from(value.is_some())..];
    }
    found
}

/// True if `next` seems to be the value of the key `word`: `train.epochs 3`.
fn is_apart(word: &str, next: &str) -> bool {
    let is_plain = |text: &str| assignment_sign(text).is_none() && !text.starts_with(['~', '+']);
    let is_value = !next.contains('.') || next.parse::<f64>().is_ok();
    word.contains('.') && is_plain(word) && is_plain(next) && is_value
}

fn apart(key: &str, value: &str) -> Problem {
    let text = format!("{key} {value}");
    let whole = 0..text.len();
    Problem::new("", format!("`{key}` and its value must be one word, with `=` between them"))
        .at(&NamedText::command_line(text), whole, 0)
        .help(format!("write `{key}={value}`"))
}

/// The override `text` as a layer.
pub(crate) fn command_line(text: &str) -> Result<Override, Problem> {
    let source = Source::CommandLine(text.to_owned());
    let body = text.trim_start_matches(['+', '~']);
    let start = text.len() - body.len();
    let key_end = assignment_sign(body).unwrap_or(body.len());
    let segments = segments(&body[..key_end], start);
    let refuse = |what: &str, help: &str| {
        Err(Problem::new("", what).at(&NamedText::command_line(text), 0..text.len(), 0).help(help))
    };
    if segments.iter().any(|(segment, _)| segment.is_empty()) {
        return refuse("names no key", "write `key=value`, such as `train.epochs=3`");
    }
    let list = list_of(&body[..key_end]);
    if let Some(list) = list.filter(|_| text.starts_with('~')) {
        return Err(Problem::new(&body[..key_end], "a list can only be replaced whole")
            .at(&NamedText::command_line(text), start..start + key_end, 0)
            .help(format!("write `{list}=[...]` with all of its entries")));
    }
    if text.starts_with('~') {
        return Ok(removal(source, text.to_owned(), &segments));
    }
    if body[key_end..].trim_start_matches('=').trim().is_empty() {
        let key = body[..key_end].trim();
        let help = format!("write `{key}=VALUE`, or `~{key}` to reset it to its default");
        return refuse(&format!("`{key}` has no value"), &help);
    }
    let value_at = start + key_end + 1;
    if list.is_none() {
        return assignment(source, text.to_owned(), &segments, value_at);
    }
    let entry = indexed(&segments);
    let path = entry.iter().map(|(key, _)| key.clone()).collect();
    match assignment(source, text.to_owned(), &entry, value_at)? {
        Override::Set(layer) => Ok(Override::Entry(path, layer)),
        _ => refuse("an entry of a list keeps its keys", "replace the whole list"),
    }
}

/// The same keys, with the indices of `train[0]` as keys of their own.
fn indexed(segments: &[(String, Range<usize>)]) -> Vec<(String, Range<usize>)> {
    let parts = |(segment, at): &(String, Range<usize>)| {
        let keys: Vec<String> = if list_of(segment).is_some() {
            segment.split(['[', ']']).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        } else {
            vec![segment.clone()]
        };
        keys.into_iter().map(|key| (key, at.clone())).collect::<Vec<_>>()
    };
    segments.iter().flat_map(parts).collect()
}

/// The list of which a key names an entry: `data.transforms.train` of
/// `data.transforms.train[0].size`.
fn list_of(key: &str) -> Option<&str> {
    let (list, rest) = key.split_once('[')?;
    let is_quoted = !list.matches('"').count().is_multiple_of(2);
    let index = rest.split(']').next()?;
    // Names of metrics, such as `val/top[1]`, are no lists.
    (!is_quoted && !list.contains('/') && index.parse::<usize>().is_ok()).then_some(list)
}

/// Position of the first `=` outside quotes.
fn assignment_sign(text: &str) -> Option<usize> {
    let mut quoted = false;
    text.char_indices().find_map(|(at, c)| {
        quoted ^= c == '"';
        (c == '=' && !quoted).then_some(at)
    })
}

/// The keys of a dotted name, unquoted, and where each stands.
fn segments(dotted: &str, offset: usize) -> Vec<(String, Range<usize>)> {
    let mut found = Vec::new();
    let mut quoted = false;
    let mut start = 0;
    for (at, c) in dotted.char_indices().chain([(dotted.len(), '.')]) {
        quoted ^= c == '"';
        if c == '.' && (!quoted || at == dotted.len()) {
            let segment = dotted[start..at].trim();
            found.push((segment.trim_matches('"').to_owned(), offset + start..offset + at));
            start = at + 1;
        }
    }
    found
}

fn empty_layer(source: Source, text: String, segments: &[(String, Range<usize>)]) -> (Path, Layer) {
    let mut path = Path::new();
    let name = source.to_string();
    let text = NamedText::named(name, text);
    let mut layer = Layer { source, dict: Dict::new(), places: Places::new(), text };
    for (segment, span) in segments {
        path.push(segment.clone());
        layer.places.insert(path.clone(), KeySpan { key: span.clone(), value: span.clone() });
    }
    (path, layer)
}

fn removal(source: Source, text: String, segments: &[(String, Range<usize>)]) -> Override {
    let (path, layer) = empty_layer(source, text, segments);
    Override::Remove(path, layer)
}

/// The layer that gives `text[value_at..]` to the key of `segments`.
fn assignment(
    source: Source,
    text: String,
    segments: &[(String, Range<usize>)],
    value_at: usize,
) -> Result<Override, Problem> {
    let written = text[value_at..].to_owned();
    let (path, mut layer) = empty_layer(source, text, segments);
    if written.trim() == "null" {
        return Ok(Override::Remove(path, layer));
    }
    let key = layer.places.get(&path).map_or(0..0, |place| place.key.clone());
    let whole = KeySpan { key: key.clone(), value: value_at..value_at + written.len() };
    layer.places.insert(path.clone(), whole.clone());
    let value = if let Some((value, read)) = spans::value(&written, &path, key, value_at) {
        layer.places.extend(read.places);
        if let Some(problem) = layer.unreadable(read.errors).pop() {
            return Err(problem);
        }
        value
    } else {
        let indent = written.len() - written.trim_start().len();
        let read = read_bare(written.trim(), &path, value_at + indent);
        let (value, places) = read.ok_or_else(|| {
            Problem::new(crate::config::keys::dotted(&path), "is not a TOML value")
                .at(&layer.text, whole.value, 0)
                .help("quote text that holds brackets, quotes or `#`: key='\"...\"'")
        })?;
        layer.places.extend(places);
        value
    };
    layer.dict = nested(&path, value);
    Ok(Override::Set(layer))
}

/// A value whose words lack their quotes: `adam`, `[csv, jsonl]`, `[{name=resize, size=64}]`.
pub(crate) fn bare(text: &str) -> Option<Value> {
    read_bare(text, &[], 0).map(|(value, _)| value)
}

/// Reads the value of the key at `path`, with the places of what is inside it; `offset` bytes stand
/// before `text`.
fn read_bare(text: &str, path: &[String], offset: usize) -> Option<(Value, Places)> {
    let quoted = Quoted::of(text);
    let (value, read) = spans::value(&quoted.text, path, 0..0, 0)?;
    let back = |span: Range<usize>| {
        let place = |at: usize| quoted.origins.get(at).copied().unwrap_or(text.len()) + offset;
        place(span.start)..place(span.end)
    };
    let inner = read.places.into_iter().filter(|(inner, _)| inner.len() > path.len());
    let places = inner
        .map(|(path, place)| (path, KeySpan { key: back(place.key), value: back(place.value) }));
    Some((value, places.collect()))
}

/// A text in which words have their quotes.
#[derive(Default)]
struct Quoted {
    text: String,
    /// For each byte of it, its place in the text without quotes.
    origins: Vec<usize>,
}

impl Quoted {
    fn of(text: &str) -> Self {
        let mut quoted = Self::default();
        let is_list = text.starts_with(['[', '{']);
        let mut start = 0;
        for (at, sign) in text.match_indices(|c| is_list && "[]{},=".contains(c)) {
            // What stands before `=` is a key.
            quoted.word(&text[start..at], start, sign == "=");
            quoted.push(sign, at);
            start = at + sign.len();
        }
        quoted.word(&text[start..], start, false);
        quoted
    }

    /// Adds `word`, which stands at `at`; in quotes, unless it is TOML as it is or holds what only
    /// the user can quote.
    fn word(&mut self, word: &str, at: usize, is_key: bool) {
        let trimmed = word.trim();
        let is_special = |c: char| "\"'\\#\n[]{}".contains(c);
        let is_plain = !trimmed.is_empty() && !trimmed.contains(is_special);
        if is_key || !is_plain || spans::value(trimmed, &[], 0..0, 0).is_some() {
            return self.push(word, at);
        }
        let start = word.len() - word.trim_start().len();
        let end = start + trimmed.len();
        self.push(&word[..start], at);
        self.quote(at + start);
        self.push(trimmed, at + start);
        self.quote(at + end);
        self.push(&word[end..], at + end);
    }

    fn push(&mut self, text: &str, at: usize) {
        self.text += text;
        self.origins.extend(at..at + text.len());
    }

    fn quote(&mut self, at: usize) {
        self.text.push('"');
        self.origins.push(at);
    }
}

/// `{a = {b = value}}` for the path a.b.
pub(crate) fn nested(path: &[String], value: Value) -> Dict {
    let mut path = path.iter().rev();
    let last = path.next().cloned().unwrap_or_default();
    path.fold(Dict::from([(last, value)]), |dict, key| {
        Dict::from([(key.clone(), Value::from(dict))])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(asked: Result<Override, Problem>) -> Dict {
        match asked {
            Ok(Override::Set(layer)) => layer.dict,
            Ok(Override::Entry(path, _) | Override::Remove(path, _)) => panic!("changes {path:?}"),
            Err(problem) => panic!("{problem}"),
        }
    }

    #[track_caller]
    fn check(text: &str, toml: &str) {
        let expected = spans::document(toml);
        assert!(expected.errors.is_empty());
        assert_eq!(set(command_line(text)), expected.dict, "{text}");
    }

    #[test]
    fn a_value_is_toml_and_a_bare_word_is_text() {
        check("train.epochs=3", "train.epochs = 3");
        check("+train.epochs=3", "train.epochs = 3");
        check("++train.epochs = 3", "train.epochs = 3");
        check("optimizer.name=adam", "optimizer.name = 'adam'");
        check("optimizer.name=\"adam\"", "optimizer.name = 'adam'");
        check("data.drop_last=false", "data.drop_last = false");
        check("optimizer.lr=1e-3", "optimizer.lr = 1e-3");
        check("train.time=2h", "train.time = '2h'");
        check("validation.every=5 epochs", "validation.every = '5 epochs'");
        check("data.train_dir=/data/train", "data.train_dir = '/data/train'");
        check("model.hidden=[64,32]", "model.hidden = [64, 32]");
        check("logging.sinks=[csv,jsonl]", "logging.sinks = ['csv', 'jsonl']");
        check("logging.sinks=[]", "logging.sinks = []");
        check("experiment.name=''", "experiment.name = ''");
        check("expect.\"val/loss\".at_most=0.5", "expect.'val/loss'.at_most = 0.5");
        check("expect.val/loss.at_most=0.5", "expect.'val/loss'.at_most = 0.5");
        check("a.b={x=1}", "a.b = {x = 1}");
        check(
            "a.b=[{name=resize, size=64}, {name=x}]",
            "a.b = [{name = 'resize', size = 64}, {name = 'x'}]",
        );
        check("a.b=[[resize, 224], []]", "a.b = [['resize', 224], []]");
        check("a.b=[ a , 'b c' ]", "a.b = ['a', 'b c']");
        check("a.b=a,b", "a.b = 'a,b'");
    }

    #[test]
    fn places_in_a_bare_value_are_those_in_the_word() {
        let text = "data= {name=mnist, dir = \"a\", parts=[ b c ,\"d\"]}";
        let Ok(Override::Set(layer)) = command_line(text) else { panic!("not set") };
        let shown = |path: &[&str]| {
            let path: Path = path.iter().map(|&part| part.to_owned()).collect();
            let place = layer.places[&path].clone();
            (&text[place.key], &text[place.value])
        };
        assert_eq!(shown(&["data"]), ("data", " {name=mnist, dir = \"a\", parts=[ b c ,\"d\"]}"));
        assert_eq!(shown(&["data", "name"]), ("name", "mnist"));
        assert_eq!(shown(&["data", "dir"]), ("dir", "\"a\""));
        assert_eq!(shown(&["data", "parts"]).1, "[ b c ,\"d\"]");
    }

    #[test]
    fn a_tilde_or_null_takes_a_key_away() {
        for text in ["~train.steps", "train.steps=null", "~train.steps=5"] {
            assert!(
                matches!(command_line(text), Ok(Override::Remove(path, _)) if path == ["train", "steps"])
            );
        }
    }

    #[test]
    fn what_is_no_assignment_is_refused() {
        for (text, what) in [
            ("train.epochs", "`train.epochs` has no value"),
            ("x=", "`x` has no value"),
            ("x= ", "`x` has no value"),
            ("=3", "names no key"),
            ("train..epochs=3", "names no key"),
            ("", "names no key"),
            ("x=[1", "is not a TOML value"),
            ("x=\"a", "is not a TOML value"),
        ] {
            let Err(problem) = command_line(text) else { panic!("{text}") };
            assert_eq!(problem.what(), what, "{text}");
        }
    }

    #[test]
    fn a_value_behind_a_blank_is_told_the_sign_between() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            command_lines(&words).into_iter().filter_map(Result::err).collect::<Vec<_>>()
        };
        for value in ["3", "2.5", "2h"] {
            let found = of(&["x.a=1", "train.time", value, "x.b=2"]);
            assert_eq!(found.len(), 1, "{value}");
            let expected = format!("write `train.time={value}`");
            assert_eq!(found[0].remedy(), Some(expected.as_str()));
        }
        let keys = of(&["train.epochs", "train.steps", "x.a=1", "~x.b"]);
        let what: Vec<&str> = keys.iter().map(Problem::what).collect();
        assert_eq!(what, ["`train.epochs` has no value", "`train.steps` has no value"]);
    }

    #[test]
    fn a_value_in_an_entry_of_a_list_has_its_path_and_an_entry_cannot_be_taken_away() {
        let Ok(Override::Entry(path, layer)) = command_line("a.train[1].size=3") else { panic!() };
        assert_eq!(path, ["a", "train", "1", "size"]);
        assert_eq!(layer.get(&path).and_then(Value::to_i128), Some(3));
        assert_eq!(&layer.text.text[layer.places[&path].value.clone()], "3");
        for text in ["~a.train[0]", "a.train[0].size=null"] {
            assert!(command_line(text).is_err(), "{text}");
        }
        check("expect.\"val/top[1]\".at_most=1", "expect.'val/top[1]'.at_most = 1");
        check("expect.val/top[1].at_most=1", "expect.'val/top[1]'.at_most = 1");
    }

    #[test]
    fn double_underscores_of_a_variable_are_dots() {
        let asked = variable("train__batch_size", "64");
        assert_eq!(set(asked), spans::document("train.batch_size = 64").dict);
        let Ok(Override::Set(layer)) = variable("train__batch_size", "[1, 2]") else { panic!() };
        let place = &layer.places[&["train", "batch_size"].map(str::to_owned).to_vec()];
        assert_eq!(&layer.text.text[place.key.clone()], "BATCH_SIZE");
        assert_eq!(&layer.text.text[place.value.clone()], "[1, 2]");
    }
}
