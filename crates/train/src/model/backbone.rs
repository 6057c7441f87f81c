//! `model.backbone_mode`: how a backbone that `model.freeze_backbone` freezes runs while the head
//! trains.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Wrong;

/// What the option means to every model that has it.
pub(super) const BACKBONE_MODE: &str = "mode of a frozen backbone while the head trains. \
    \"train\": `BatchNorm` uses batch statistics, and its running statistics keep moving, as in \
    PyTorch if only `requires_grad` is False. \"eval\": as after `backbone.eval()`: it uses its \
    running statistics, which do not change, and no dropout. Default: \"train\", but \"eval\" for \
    `fastconformer`.";

/// In which mode a frozen backbone runs, as after `backbone.train()` or `backbone.eval()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackboneMode {
    /// Norms use and track the statistics of the batch; dropout drops.
    #[default]
    Train,
    /// Norms use their running statistics and leave them as they are; nothing is dropped.
    Eval,
}

/// A backbone that learns is in training: what is wrong with a mode that is given for it.
pub(super) fn check(is_frozen: bool, mode: Option<BackboneMode>) -> Vec<Wrong> {
    let wrong = || Wrong {
        key: "backbone_mode",
        with: &["freeze_backbone"],
        what: "only applies with `freeze_backbone = true`".to_owned(),
    };
    if mode.is_some() && !is_frozen { vec![wrong()] } else { Vec::new() }
}
