//! The update rules and schedulers that ddprun has.

use crate::optim::{
    Adafactor, Adagrad, Adam, AdamW, Adan, Constant, CosineAnnealingLr, CosineRestarts,
    ExponentialLr, InverseSqrt, Lamb, Linear, Lion, MultiStepLr, Muon, NAdam, NoamAnnealing,
    OneCycleLr, OptimizerFamily, Optimizers, PolynomialLr, ReduceLrOnPlateau, RmsProp,
    SchedulerFamily, Schedulers, Sgd, StepLr, WarmupStableDecay,
};
use crate::registry::Registered;

impl Registered for OptimizerFamily {
    fn registered() -> Optimizers {
        let mut all = Optimizers::empty();
        all.add::<Sgd>();
        all.add::<Adam>();
        all.add::<AdamW>();
        all.add::<RmsProp>();
        all.add::<Lion>();
        all.add::<Adagrad>();
        all.add::<NAdam>();
        all.add::<Lamb>();
        all.add::<Adafactor>();
        all.add::<Muon>();
        all.add::<Adan>();
        all
    }
}

impl Registered for SchedulerFamily {
    fn registered() -> Schedulers {
        let mut all = Schedulers::empty();
        all.add::<Constant>();
        all.add::<StepLr>();
        all.add::<MultiStepLr>();
        all.add::<ExponentialLr>();
        all.add::<CosineAnnealingLr>();
        all.add::<Linear>();
        all.add::<PolynomialLr>();
        all.add::<CosineRestarts>();
        all.add::<WarmupStableDecay>();
        all.add::<InverseSqrt>();
        all.add::<OneCycleLr>();
        all.add::<ReduceLrOnPlateau>();
        all.add::<NoamAnnealing>();
        all
    }
}
