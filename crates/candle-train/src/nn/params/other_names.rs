//! What modules are called in the weights of another library.

use super::{Builder, Params, lock};

/// A module or tensor in the weights of another library that is computed alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherName {
    /// The library: "timm".
    pub library: &'static str,
    /// The name there, with its whole path.
    pub other: String,
    /// The name here.
    pub own: String,
    /// Sides of a tensor there, if it has more or fewer of length 1 than here.
    pub shape: Option<Vec<usize>>,
}

impl Params {
    /// Modules and tensors by their names in weights of other libraries, which load as well. Of
    /// several names in one library, the first is the one that it writes.
    pub fn other_names(&self) -> &[OtherName] {
        &self.other_names
    }

    /// What `library` calls the tensor `name`, and its shape there if that differs; `None` if it
    /// has no name of its own there.
    pub fn name_in(&self, library: &str, name: &str) -> Option<(String, Option<&[usize]>)> {
        let mut names = self.other_names.iter().filter(|other| other.library == library);
        if let Some(found) = names.clone().find(|other| other.own == name) {
            return Some((found.other.clone(), found.shape.as_deref()));
        }
        names.find_map(|other| {
            let tensor = name.strip_prefix(&other.own)?.strip_prefix('.')?;
            Some((format!("{}.{tensor}", other.other), None))
        })
    }
}

impl Builder {
    /// Says that the module or tensor called `name` here (an empty name is this module) is called
    /// `other`, with its whole path, in weights of `library`.
    pub fn also_called(&self, library: &'static str, name: &str, other: impl Into<String>) {
        self.called(library, name, other.into(), None);
    }

    /// [`Builder::also_called`] for a tensor that has the sides `shape` there.
    pub fn also_called_with_shape(
        &self,
        library: &'static str,
        name: &str,
        other: impl Into<String>,
        shape: &[usize],
    ) {
        self.called(library, name, other.into(), Some(shape.to_vec()));
    }

    fn called(&self, library: &'static str, name: &str, other: String, shape: Option<Vec<usize>>) {
        let own = if name.is_empty() { self.path.clone() } else { self.name(name) };
        lock(&self.params).other_names.push(OtherName { library, other, own, shape });
    }
}
