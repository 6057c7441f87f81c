//! A family of kinds as data.

use crate::config::kind::Spec;

/// A family as data.
#[derive(Clone, Debug)]
pub struct FamilySpec {
    /// The table.
    pub table: &'static str,
    /// What one of its kinds is called.
    pub noun: &'static str,
    /// Lists each of whose entries is one of its kinds; none = the table is one.
    pub lists: &'static [&'static str],
    /// The kind of the table above that these lists are a part of; `None` = of all.
    pub lists_of: Option<&'static str>,
    /// What the entries of its lists are called by, in words; `None` = they have no `key`.
    pub entry_key: Option<&'static str>,
    /// Its kinds, in the order of their registration.
    pub kinds: Vec<Spec>,
}

impl FamilySpec {
    /// The kind called `name`.
    pub fn kind(&self, name: &str) -> Option<&Spec> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    /// Names of all kinds.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.kinds.iter().map(|kind| kind.name)
    }

    /// Names of the kinds that have the option `key`.
    pub fn owners<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.kinds.iter().filter(move |kind| kind.key(key).is_some()).map(|kind| kind.name)
    }
}
