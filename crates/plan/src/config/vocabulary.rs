//! The words that a program knows beside those of the schema.

use std::sync::Arc;

use crate::config::key_aliases::of_flag;
use crate::config::keys::Page;
use crate::config::kind::{self, FamilySpec, LeftOut, of_kind};
use crate::config::schema::{DECLARED, Mode};

/// A metric as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSpec {
    /// Name without the prefix `val/`.
    pub name: &'static str,
    /// Direction in which the metric is better.
    pub mode: Mode,
}

/// The metrics, and the kinds of each family that a program has registered.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    families: Vec<FamilySpec>,
    lists: Vec<FamilySpec>,
    metrics: Vec<MetricSpec>,
    page: Arc<Page>,
}

impl Vocabulary {
    /// A program's words.
    pub fn new(families: Vec<FamilySpec>, metrics: Vec<MetricSpec>) -> Self {
        let page = Arc::new(Page::new(&families));
        let (families, lists) = families.into_iter().partition(|family| family.lists.is_empty());
        Self { families, lists, metrics, page }
    }

    /// Words of a program that knows no kinds: it takes any metric, any name, and any option.
    pub fn open() -> Self {
        Self::new(Vec::new(), Vec::new())
    }

    /// The reference page: every key with its meaning and its default, as TOML.
    pub fn reference(&self) -> &str {
        &self.page.text
    }

    /// The reference page with the kinds of each table, but without their options.
    pub fn index(&self) -> String {
        let families: Vec<FamilySpec> = self.families.iter().chain(&self.lists).cloned().collect();
        kind::index(&DECLARED, &families)
    }

    /// The kind `name` of `table` (`model`, `data.transforms`), with its options, as TOML and as a
    /// JSON schema; or the names of all its kinds, which are none if the table chooses no kind.
    ///
    /// # Errors
    ///
    /// The names, if none of them is `name`.
    pub fn kind(&self, table: &str, name: &str) -> Result<(String, serde_json::Value), Vec<&str>> {
        let Some(family) = self.family_of(table) else { return Err(Vec::new()) };
        match family.kind(name) {
            Some(kind) => {
                Ok((kind::one(family, kind), of_kind(kind, serde_json::Map::new(), true)))
            }
            None => Err(family.names().collect()),
        }
    }

    /// The kind `name` of `table`, if this build is without it.
    pub fn left_out(&self, table: &str, name: &str) -> Option<&LeftOut> {
        self.family_of(table)?.left_out(name)
    }

    /// The family whose kinds the table or the entries of the list choose.
    fn family_of(&self, table: &str) -> Option<&FamilySpec> {
        let is_meant =
            |family: &&FamilySpec| family.table == table || family.lists.contains(&table);
        self.families.iter().chain(&self.lists).find(is_meant)
    }

    /// The key that the flag `--word` of another program stands for, or nearly so: `batch-size` is
    /// `train.batch_size`.
    pub fn key_of_flag(&self, word: &str) -> Option<String> {
        of_flag(word, &self.page)
    }

    /// Names of what can be watched while a run trains; none if the metrics are not known.
    pub(crate) fn watchable(&self) -> Vec<String> {
        if self.metrics.is_empty() {
            return Vec::new();
        }
        let measured = self.metrics.iter().map(|metric| metric.name);
        let validation = std::iter::once("loss").chain(measured).map(|name| format!("val/{name}"));
        let training = ["loss", "accuracy"].map(|name| format!("train/{name}"));
        validation.chain(training).collect()
    }

    /// Direction in which the metric called `val/...` is better; `None` if there is no such metric.
    pub fn mode_of(&self, metric: &str) -> Option<Mode> {
        let (_, name) = metric.split_once('/')?;
        if name == "loss" {
            return Some(Mode::Min);
        }
        self.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.mode)
    }

    /// All families that are known and of which a table chooses a kind.
    pub(crate) fn families(&self) -> &[FamilySpec] {
        &self.families
    }

    /// The family whose kinds `table` chooses among.
    pub(crate) fn family(&self, table: &str) -> Option<&FamilySpec> {
        self.families.iter().find(|family| family.table == table)
    }

    /// All families that are known and of which entries of lists choose kinds.
    pub(crate) fn lists(&self) -> &[FamilySpec] {
        &self.lists
    }

    /// The family of the entry that `path` leads into, and the length of the entry's own path.
    pub(crate) fn entry(&self, path: &[String]) -> Option<(&FamilySpec, usize)> {
        self.lists.iter().find_map(|family| Some((family, family.entry(path)?)))
    }

    /// Dotted names of all keys of an experiment, lists of tables by the keys of their tables.
    pub fn keys(&self) -> Vec<String> {
        self.page.all()
    }

    /// The reference page.
    pub(crate) fn page(&self) -> &Page {
        &self.page
    }
}
