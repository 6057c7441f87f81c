//! What is wrong with an experiment, drawn on the text that says it. The only home of miette's
//! types beside `main`.

use std::fmt;
use std::sync::Arc;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, NamedSource, SourceSpan};
use thiserror::Error;

use crate::config::layer::Source;
use crate::terminal::{escape, mask, message};

/// Columns that a page needs beside a headline, and beside a remedy.
const HEADLINE: usize = 6;
const HELP: usize = 10;

/// One thing that is wrong: key, reason, place, remedy.
#[derive(Clone, Debug)]
pub struct Problem(Box<Parts>);

/// Boxed, because a problem travels in the `Err` of small results.
#[derive(Clone, Debug, Error, Diagnostic)]
#[error("{}", headline(key, what))]
struct Parts {
    key: String,
    what: String,
    #[source_code]
    file: Option<Arc<NamedSource<String>>>,
    #[label]
    place: Option<SourceSpan>,
    #[help]
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
        Self(Box::new(Parts { key, what, file: None, place: None, help: None, order }))
    }

    /// The same problem with a remedy.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// The same problem with its place: bytes `span` of `file`, where `order` sorts texts.
    #[must_use]
    pub(crate) fn at(
        mut self,
        file: &Arc<NamedSource<String>>,
        span: std::ops::Range<usize>,
        order: usize,
    ) -> Self {
        self.0.file = Some(Arc::clone(file));
        self.0.place = Some(span.into());
        self.0.order = order;
        self
    }

    /// A problem of the word `index` of a command line.
    pub fn of_word(words: &[String], index: usize, what: impl Into<String>) -> Self {
        let start = words[..index].iter().map(|word| word.len() + 1).sum::<usize>();
        let text = Arc::new(NamedSource::new(
            Source::CommandLine(String::new()).to_string(),
            words.join(" "),
        ));
        Self::new("", what).at(&text, start..start + words[index].len(), 0)
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

    /// What is wrong with it, a fragment without a final period.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// What to do about it.
    pub fn remedy(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// Name of the text that is wrong, and the line in it, from 1.
    pub fn line(&self) -> Option<(&str, usize)> {
        self.place().map(|(file, line, _)| (file, line))
    }

    /// As [`Problem::line`], and the column in it, in characters from 1.
    pub fn place(&self) -> Option<(&str, usize, usize)> {
        let (file, place) = (self.0.file.as_ref()?, self.0.place?);
        let before = file.inner().get(..place.offset())?;
        let in_line = before.rsplit('\n').next().unwrap_or_default();
        Some((file.name(), before.matches('\n').count() + 1, in_line.chars().count() + 1))
    }

    /// The same problem without anything that would act on a terminal: experiments come from
    /// others, too. Its sentences are in lines that fit.
    fn shown(&self, width: usize) -> Self {
        let Parts { key, what, file, place, help, order } = self.0.as_ref();
        let masked = |file: &Arc<NamedSource<String>>| {
            Arc::new(NamedSource::new(escape(file.name()), mask(file.inner()).into_owned()))
        };
        let what = message(&escape(&headline(key, what)), width.saturating_sub(HEADLINE));
        let key = String::new();
        let help = help.as_ref().map(|help| message(&escape(help), width.saturating_sub(HELP)));
        let (file, place, order) = (file.as_ref().map(masked), *place, *order);
        Self(Box::new(Parts { key, what, file, place, help, order }))
    }

    /// The override that is wrong, `key=value`; `None` if it is something else.
    pub(crate) fn word(&self) -> Option<&str> {
        let file = self.0.file.as_ref()?;
        let is_word = file.name() == Source::CommandLine(String::new()).to_string();
        is_word.then(|| file.inner().as_str())
    }

    fn sort_key(&self) -> (usize, usize) {
        (self.0.order, self.0.place.map_or(0, |place| place.offset()))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
    /// In the order in which they stand in their texts.
    pub fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(Problem::sort_key);
        Self(problems)
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// The page for the terminal: each problem with its lines, a caret and a remedy, at most
    /// `width` columns where text can be wrapped. The last line counts them.
    pub fn page(&self, color: bool, width: usize) -> String {
        let mut theme =
            if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        theme.characters.underline = '^';
        let painter =
            GraphicalReportHandler::new_themed(theme).with_wrap_lines(false).with_context_lines(1);
        let mut page = String::new();
        for problem in self.0.iter().map(|problem| problem.shown(width)) {
            // A `String` does not refuse to be written to, so a failure here can only cut the page
            // short.
            if painter.render_report(&mut page, problem.0.as_ref()).is_err() {
                page.push_str(&problem.to_string());
            }
            page.push('\n');
        }
        page + &self.count() + "; nothing was started\n"
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
