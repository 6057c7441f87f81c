//! `sweep.method = "list"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::config::sweep::{Search, Values};
use crate::sweep::method::Method;

/// exactly the trials that you list, each as a table `[[sweep.list]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct List {}

impl Kind for List {
    const NAME: &'static str = "list";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::List];
}

impl Method for List {
    fn points(&self, search: &Search) -> Option<Vec<Values>> {
        Some(search.list.clone())
    }
}
