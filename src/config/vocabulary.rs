//! The words that a program knows beside those of the schema.

use std::sync::Arc;

use crate::config::keys::Page;
use crate::config::kind::FamilySpec;
use crate::config::meant::of_flag;

/// Names of models, and the kinds of each family that a program has registered.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Names of registered models.
    pub models: Vec<String>,
    families: Vec<FamilySpec>,
    page: Arc<Page>,
}

impl Vocabulary {
    /// A program's words.
    pub fn new(models: Vec<String>, families: Vec<FamilySpec>) -> Self {
        let page = Arc::new(Page::new(&families));
        Self { models, families, page }
    }

    /// Words of a program that knows models only: it takes any name in the tables of the other families, and any option.
    pub fn of_models<'a>(models: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new(models.into_iter().map(str::to_owned).collect(), Vec::new())
    }

    /// The reference page: every key with its meaning and its default, as TOML.
    pub fn reference(&self) -> &str {
        &self.page.text
    }

    /// The key that the flag `--word` of another program stands for, or nearly so: `batch-size` is `train.batch_size`.
    pub fn key_of_flag(&self, word: &str) -> Option<String> {
        of_flag(word, &self.page)
    }

    /// All families that are known.
    pub(crate) fn families(&self) -> &[FamilySpec] {
        &self.families
    }

    /// The family whose kinds `table` chooses among.
    pub(crate) fn family(&self, table: &str) -> Option<&FamilySpec> {
        self.families.iter().find(|family| family.table == table)
    }

    /// What the reference page says.
    pub(crate) fn page(&self) -> &Page {
        &self.page
    }
}
