//! Mixup and `CutMix` of training images.

use serde::{Deserialize, Serialize};

use crate::config::schema::Mixup;
use crate::plan::{MixupMode, Plan, Sampler};

/// Mixup and `CutMix`: training images are mixed in pairs, and their labels with them.
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
    /// Samples that share one draw.
    pub mode: MixupMode,
    /// Epochs after which mixing stops.
    #[serde(default)]
    pub off_epoch: Option<u64>,
    /// Classes of a target: outputs of the model.
    pub classes: usize,
}

impl MixupPlan {
    /// True if images of `epoch`, counted from 0, are mixed.
    pub fn mixes(&self, epoch: u64) -> bool {
        self.off_epoch.is_none_or(|off| epoch < off)
    }
}

impl Plan {
    /// A warning about images that `data.mixup` can mix with no other.
    pub(super) fn mixed_alone(&self) -> Option<String> {
        self.data.mixup?;
        let global = self.batch.global.count();
        // PyTorch's order has each rank mix its own.
        let ranks = if self.data.sampler == Sampler::Torch { self.world_size().count() } else { 1 };
        if global / ranks == 1 {
            let each = if ranks > 1 { ", and each rank its own," } else { "" };
            return Some(format!(
                "`data.mixup` mixes the images of a step with each other{each} but there is only \
                 one: nothing is mixed; raise `train.batch_size`"
            ));
        }
        let is_alone = !self.data.drop_last && self.data.n_train % global == 1;
        is_alone.then(|| {
            "the last step of each epoch has one image, which `data.mixup` mixes with no other; \
             `data.drop_last = true` leaves it out"
                .to_owned()
        })
    }
}

/// The plan of `[data.mixup]` for a model of so many outputs; `None` = nothing is mixed.
pub(super) fn decide(config: &Mixup, outputs: usize) -> Option<MixupPlan> {
    config.given().map(|_| MixupPlan {
        mixup_alpha: config.mixup_alpha,
        cutmix_alpha: config.cutmix_alpha,
        prob: config.prob,
        switch_prob: config.switch_prob,
        mode: config.mode,
        off_epoch: config.off_epoch,
        classes: outputs,
    })
}
