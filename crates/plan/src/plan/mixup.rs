//! How training images are mixed.

use serde::{Deserialize, Serialize};

use crate::config::schema::{Mixup, MixupMode};

/// How training images are mixed in pairs, and their labels with them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixupPlan {
    /// Parameter of the distribution of mixup's shares; 0 = no mixup.
    pub mixup_alpha: f64,
    /// Parameter of the distribution of `CutMix`'s shares; 0 = no `CutMix`.
    pub cutmix_alpha: f64,
    /// Probability that images are mixed.
    pub prob: f64,
    /// Probability of `CutMix` where both are on.
    pub switch_prob: f64,
    /// What is drawn together.
    pub mode: MixupMode,
    /// Epochs after which mixing stops.
    #[serde(default)]
    pub off_epoch: Option<u64>,
    /// Classes of a target: outputs of the model.
    pub classes: usize,
}

impl MixupPlan {
    /// Whether images of `epoch`, counted from 0, are mixed.
    pub fn mixes(&self, epoch: u64) -> bool {
        self.off_epoch.is_none_or(|off| epoch < off)
    }
}

/// As asked, for a model of so many outputs; `None` = nothing is mixed.
pub(crate) fn decide(asked: &Mixup, outputs: usize) -> Option<MixupPlan> {
    asked.given().map(|_| MixupPlan {
        mixup_alpha: asked.mixup_alpha,
        cutmix_alpha: asked.cutmix_alpha,
        prob: asked.prob,
        switch_prob: asked.switch_prob,
        mode: asked.mode,
        off_epoch: asked.off_epoch,
        classes: outputs,
    })
}
