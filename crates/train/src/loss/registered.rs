//! The losses that come with ddprun.

use crate::loss::{
    BceWithLogits, CrossEntropy, Focal, Huber, LossFamily, Losses, Mae, Mse, SigmoidFocal,
    SmoothL1, TimeFrequency,
};
use crate::registry::Registered;

impl Registered for LossFamily {
    fn registered() -> Losses {
        let mut all = Losses::empty();
        all.add::<CrossEntropy>();
        all.add::<Mse>();
        all.add::<Mae>();
        all.add::<Huber>();
        all.add::<SmoothL1>();
        all.add::<Focal>();
        all.add::<BceWithLogits>();
        all.add::<SigmoidFocal>();
        all.add::<TimeFrequency>();
        all
    }
}
