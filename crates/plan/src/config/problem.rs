//! Problems of an experiment, drawn on the text that causes them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use thiserror::Error;

use crate::terminal::{escape, mask, message};

/// Columns that a page needs beside a headline, and beside a remedy.
const HEADLINE: usize = 8;
const HELP: usize = 14;

/// Name of the command line as a text.
pub(crate) const COMMAND_LINE: &str = "command line";

/// A text in which something may be wrong.
#[derive(Clone, Debug)]
pub(crate) struct NamedText {
    /// Name in messages: its path, or [`COMMAND_LINE`].
    pub(crate) name: String,
    pub(crate) text: String,
}

impl NamedText {
    pub(crate) fn named(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), text: text.into() })
    }

    /// Words of the command line.
    pub(crate) fn command_line(words: impl Into<String>) -> Arc<Self> {
        Self::named(COMMAND_LINE, words)
    }

    /// The lines that hold the bytes `span` and one on either side: the number of the first, and
    /// where they begin and end.
    fn lines_around(&self, span: &Range<usize>) -> (usize, Range<usize>) {
        let text = self.text.as_bytes();
        let line_start =
            |at: usize| text[..at].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let line_end = |at: usize| {
            text[at..].iter().position(|b| *b == b'\n').map_or(text.len(), |more| at + more)
        };
        let first = line_start(span.start.min(text.len()));
        let last = line_end(span.end.clamp(first, text.len()));
        let start = line_start(first.saturating_sub(1));
        let end = if last == text.len() { last } else { line_end(last + 1) };
        (self.text[..start].matches('\n').count() + 1, start..end)
    }
}

/// A problem: key, reason, place, remedy.
#[derive(Clone, Debug)]
pub struct Problem(Box<ProblemParts>);

/// Boxed, because a problem travels in the `Err` of small results.
#[derive(Clone, Debug)]
struct ProblemParts {
    key: String,
    what: String,
    /// The text, and the bytes of it that are wrong.
    place: Option<(Arc<NamedText>, Range<usize>)>,
    /// The file as a whole, where no place in it is wrong.
    file: Option<String>,
    help: Option<String>,
    order: usize,
}

fn headline(key: &str, what: &str) -> String {
    if key.is_empty() { what.to_owned() } else { format!("`{key}`: {what}") }
}

impl Problem {
    /// A problem of `key` (empty for a whole file) that no text shows.
    pub fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        let (key, what) = (key.into(), what.into());
        let order = usize::MAX;
        Self(Box::new(ProblemParts { key, what, place: None, file: None, help: None, order }))
    }

    /// The same problem with a remedy.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// The same problem with a remedy, if there is one.
    #[must_use]
    pub fn maybe_help(self, help: Option<impl Into<String>>) -> Self {
        match help {
            Some(help) => self.help(help),
            None => self,
        }
    }

    /// The same problem with its place: bytes `span` of `file`, where `order` sorts texts.
    #[must_use]
    pub(crate) fn at(mut self, file: &Arc<NamedText>, span: Range<usize>, order: usize) -> Self {
        self.0.place = Some((Arc::clone(file), span));
        self.0.order = order;
        self
    }

    /// A problem of the word `index` of a command line.
    pub fn of_word(words: &[String], index: usize, what: impl Into<String>) -> Self {
        let start = words[..index].iter().map(|word| word.len() + 1).sum::<usize>();
        let text = NamedText::command_line(words.join(" "));
        Self::new("", what).at(&text, start..start + words[index].len(), 0)
    }

    /// The same problem of the file `name`, which is shown if no place in a file is.
    #[must_use]
    fn in_file(mut self, name: &str) -> Self {
        self.0.file = Some(name.to_owned());
        self
    }

    /// The same problem of another key.
    #[must_use]
    pub(crate) fn of_key(mut self, key: String) -> Self {
        self.0.key = key;
        self
    }

    /// Dotted key that is wrong; empty if the problem is not one of a key.
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// The reason, a fragment without a final period.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// The remedy, if there is one.
    pub fn remedy(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// Name of the text that is wrong, and the line in it, from 1.
    pub fn line(&self) -> Option<(&str, usize)> {
        self.place().map(|(file, line, _)| (file, line))
    }

    /// Name of the text or file, also where no place in it is known.
    pub fn file(&self) -> Option<&str> {
        let text = self.0.place.as_ref().map(|(text, _)| text.name.as_str());
        text.or(self.0.file.as_deref())
    }

    /// Name of the text, line, and column in characters, both from 1.
    pub fn place(&self) -> Option<(&str, usize, usize)> {
        let (file, span) = self.0.place.as_ref()?;
        let before = file.text.get(..span.start)?;
        let in_line = before.rsplit('\n').next().unwrap_or_default();
        Some((&file.name, before.matches('\n').count() + 1, in_line.chars().count() + 1))
    }

    /// The problem with its lines, a caret and a remedy, without anything that would act on a
    /// terminal: experiments come from others, too. Its sentences are in lines that fit.
    fn drawn(&self, painter: &Renderer, width: usize) -> String {
        let ProblemParts { key, what, place, file, help, .. } = self.0.as_ref();
        let what = message(&escape(&headline(key, what)), width.saturating_sub(HEADLINE));
        let snippet = place.as_ref().map(|(file, span)| {
            let (first, lines) = file.lines_around(span);
            let marked =
                span.start.saturating_sub(lines.start)..span.end.saturating_sub(lines.start);
            Snippet::source(mask(&file.text[lines]).into_owned())
                .line_start(first)
                .path(escape(&file.name).into_owned())
                .fold(false)
                .annotation(AnnotationKind::Primary.span(marked))
        });
        let help = help
            .as_ref()
            .map(|help| Level::HELP.message(message(&escape(help), width.saturating_sub(HELP))));
        let file = file.as_ref().filter(|_| place.is_none());
        let origin = file.map(|name| Origin::path(escape(name).into_owned()));
        let title = Level::ERROR.primary_title(what);
        painter.render(&[title.elements(snippet).elements(origin).elements(help)])
    }

    /// The override that is wrong, `key=value`; `None` if it is something else.
    pub(crate) fn word(&self) -> Option<&str> {
        let (file, _) = self.0.place.as_ref()?;
        let is_word = file.name == COMMAND_LINE;
        is_word.then_some(&file.text)
    }

    fn sort_key(&self) -> (usize, usize) {
        (self.0.order, self.0.place.as_ref().map_or(0, |(_, span)| span.start))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&headline(&self.0.key, &self.0.what))
    }
}

impl std::error::Error for Problem {}

/// All that is wrong with an experiment, in the order of its layers and lines.
#[derive(Clone, Debug, Error)]
pub struct Problems(Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl Problems {
    /// The problems, sorted by their places in the texts.
    pub fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(Problem::sort_key);
        Self(problems)
    }

    /// The same problems; those without a place are shown with the file `name`.
    #[must_use]
    pub fn in_file(self, name: &str) -> Self {
        Self(self.0.into_iter().map(|problem| problem.in_file(name)).collect())
    }

    /// Returns the problems one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// The page for the terminal: each problem as [`Self::drawn`] draws it. The last line counts
    /// them.
    pub fn page(&self, color: bool, width: usize) -> String {
        let problems = self.drawn(color, width).map(|problem| problem + "\n\n");
        problems.collect::<String>() + &self.count() + "; nothing was started\n"
    }

    /// Each problem with its lines, a caret and a remedy, at most `width` columns where text can be
    /// wrapped.
    pub fn drawn(&self, color: bool, width: usize) -> impl Iterator<Item = String> {
        let painter = if color { Renderer::styled() } else { Renderer::plain() };
        let painter = painter.term_width(width);
        self.0.iter().map(move |problem| problem.drawn(&painter, width))
    }

    fn count(&self) -> String {
        match self.0.len() {
            1 => "1 problem".to_owned(),
            n => format!("{n} problems"),
        }
    }
}

impl fmt::Display for Problems {
    /// One line per problem, without pictures.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.count())?;
        for problem in &self.0 {
            match problem.line() {
                Some((file, line)) => write!(f, "\n{file}:{line}: {problem}")?,
                None => write!(f, "\n{problem}")?,
            }
        }
        Ok(())
    }
}
