//! Families of kinds, and what is registered in them.

use std::fmt;
use std::sync::Arc;

use crate::config::kind::{Choice, FamilySpec, Kind, Options, Spec, parse};

/// A family of kinds, among which the `name` of one table chooses.
pub trait Family: 'static {
    /// The table: "optimizer".
    const TABLE: &'static str;
    /// Noun for one of its kinds: "optimizer".
    const NOUN: &'static str;
    /// Lists each of whose entries is one of its kinds; where there are none, the table is one.
    const LISTS: &'static [&'static str] = &[];
    /// The kind of the table above that these lists are a part of; `None` = of all.
    const LISTS_OF: Option<&'static str> = None;
    /// The `key` of the entries of its lists, in words; `None` = they have none.
    const ENTRY_KEY: Option<&'static str> = None;
    /// Behaviour of its kinds.
    type Object: ?Sized;
}

/// A family that takes the kind `K`.
pub trait Accepts<K: Kind>: Family {
    /// The kind as what the family can do.
    fn boxed(kind: K) -> Box<Self::Object>;
}

/// A family of which ddprun brings kinds.
pub trait Registered: Family + Sized {
    /// The kinds that come with ddprun.
    fn registered() -> Registry<Self>;
}

/// Makes an object of the family from options.
type Build<F> =
    Arc<dyn Fn(&Options) -> Result<Box<<F as Family>::Object>, serde_json::Error> + Send + Sync>;

/// The kinds of a family that a program knows.
pub struct Registry<F: Family> {
    kinds: Vec<(Spec, Build<F>)>,
    /// True if ddprun's own kinds are all there.
    is_sealed: bool,
    /// Names that a kind had already.
    taken: Vec<&'static str>,
    /// Names under which a kind was added again.
    variants: Vec<&'static str>,
}

impl<F: Family> Clone for Registry<F> {
    fn clone(&self) -> Self {
        let is_sealed = self.is_sealed;
        let (taken, variants) = (self.taken.clone(), self.variants.clone());
        Self { kinds: self.kinds.clone(), is_sealed, taken, variants }
    }
}

impl<F: Registered> Default for Registry<F> {
    fn default() -> Self {
        F::registered()
    }
}

impl<F: Family> fmt::Debug for Registry<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.kinds.iter().map(|(spec, _)| spec.name);
        f.debug_struct("Registry")
            .field(F::TABLE, &names.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl<F: Family> Registry<F> {
    /// A family without kinds.
    pub fn empty() -> Self {
        Self { kinds: Vec::new(), is_sealed: false, taken: Vec::new(), variants: Vec::new() }
    }

    /// The family as ddprun has it: from now on no name can be given to another kind.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.is_sealed = true;
        self
    }

    /// Adds the kind `K`. A name that another kind has stays with that one, and the program refuses
    /// to run: an experiment must mean the same in every program.
    pub fn add<K: Kind>(&mut self)
    where
        F: Accepts<K>,
    {
        self.insert(Spec::of::<K>(), Arc::new(|options| parse::<K>(options).map(F::boxed)));
    }

    /// Adds `K` under another name, after `change` has made of it what the name says.
    pub fn add_variant<K: Kind>(
        &mut self,
        name: &'static str,
        about: &str,
        change: impl Fn(&mut K) + Send + Sync + 'static,
    ) where
        F: Accepts<K>,
    {
        let mut spec = Spec::of::<K>();
        (spec.name, spec.about) = (name, about.to_owned());
        let build = move |options: &Options| {
            let mut kind = parse::<K>(options)?;
            change(&mut kind);
            Ok(F::boxed(kind))
        };
        self.variants.push(name);
        self.insert(spec, Arc::new(build));
    }

    /// Adds a variant as [`Registry::add_variant`], in the place of the kind of that name.
    pub fn replace_variant<K: Kind>(
        &mut self,
        name: &'static str,
        about: &str,
        change: impl Fn(&mut K) + Send + Sync + 'static,
    ) where
        F: Accepts<K>,
    {
        let is_sealed = std::mem::take(&mut self.is_sealed);
        self.add_variant(name, about, change);
        self.is_sealed = is_sealed;
    }

    fn insert(&mut self, spec: Spec, build: Build<F>) {
        match self.kinds.iter_mut().find(|(other, _)| other.name == spec.name) {
            Some(_) if self.is_sealed => self.taken.push(spec.name),
            Some(existing) => *existing = (spec, build),
            None => self.kinds.push((spec, build)),
        }
    }

    /// "model `mlp`" for each name that was registered although a kind had it already.
    pub fn taken(&self) -> impl Iterator<Item = String> {
        self.taken.iter().map(|name| format!("{} `{name}`", F::NOUN))
    }

    /// Names of all kinds, in the order of their registration.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.kinds.iter().map(|(spec, _)| spec.name)
    }

    /// True if `name` is a variant of another kind ([`Registry::add_variant`]).
    pub fn is_variant(&self, name: &str) -> bool {
        self.variants.contains(&name)
    }

    /// The kind `name` with those of `options` that it has too.
    pub fn with_options(&self, name: &str, options: &Options) -> Choice {
        let spec = self.kind(name);
        let has = |key: &str| spec.is_some_and(|spec| spec.key(key).is_some());
        let shared = options.iter().filter(|(key, _)| has(key));
        let options = shared.map(|(key, value)| (key.clone(), value.clone())).collect();
        Choice { name: name.to_owned(), options }
    }

    /// Specification of the kind `name`.
    pub fn kind(&self, name: &str) -> Option<&Spec> {
        self.kinds.iter().map(|(spec, _)| spec).find(|spec| spec.name == name)
    }

    /// Specification of the family in experiments.
    pub fn spec(&self) -> FamilySpec {
        let kinds = self.kinds.iter().map(|(spec, _)| spec.clone()).collect();
        FamilySpec {
            table: F::TABLE,
            noun: F::NOUN,
            lists: F::LISTS,
            lists_of: F::LISTS_OF,
            entry_key: F::ENTRY_KEY,
            kinds,
            left_out: Vec::new(),
        }
    }

    /// The kind that was chosen.
    ///
    /// # Errors
    ///
    /// No kind has this name, or it does not take these options: neither can come out of a loaded
    /// experiment.
    pub fn build(&self, choice: &Choice) -> Result<Box<F::Object>, Unbuildable> {
        let name = &choice.name;
        let Some((_, build)) = self.kinds.iter().find(|(spec, _)| spec.name == name) else {
            return Err(Unbuildable(format!("no {} is called `{name}`", F::NOUN)));
        };
        build(&choice.options)
            .map_err(|error| Unbuildable(format!("{} `{name}`: {error}", F::NOUN)))
    }
}

/// A choice that the registered kinds cannot make.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unbuildable(String);
