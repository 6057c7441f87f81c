//! What modules are called in the weights of another library.

use std::collections::BTreeMap;

use super::{Builder, Params, lock};

impl Params {
    /// Modules and tensors by their names in weights of another library, which load as well.
    pub fn other_names(&self) -> &BTreeMap<String, String> {
        &self.other_names
    }
}

impl Builder {
    /// Says that the module or tensor called `name` here (an empty name is this module) is called
    /// `other`, with its whole path, in weights of another library that is computed alike.
    pub fn also_called(&self, name: &str, other: impl Into<String>) {
        let name = if name.is_empty() { self.path.clone() } else { self.name(name) };
        lock(&self.params).other_names.insert(other.into(), name);
    }
}
