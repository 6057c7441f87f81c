//! `[model]`: what is trained.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Options};
use crate::config::values::{Auto, Strict};

/// `[model]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Registered name.
    pub name: String,
    /// Outputs of the classifier; "auto" = the data's number of classes.
    pub num_classes: Auto<u32>,
    /// Safetensors state dict to start from.
    pub pretrained: Option<PathBuf>,
    /// Whether every key of `pretrained` must fit.
    pub strict: Strict,
    /// `graph`: the layers, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Entry>,
    /// What only some models have.
    #[serde(default)]
    pub options: Options,
}
