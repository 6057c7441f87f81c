//! Losses and metrics over ranks: the same bits at any world size, also with a short last step.

use ddprun::loss::{self, BceWithLogits, ClassWeights, CrossEntropy, Focal};
use ddprun::plan::{LossPlan, Plan};

use crate::support::plan;
use crate::{IMAGE, check_same_bits, train};

/// Every metric of classes, and epochs that end in a step of 6 samples.
fn measuring(loss: &LossPlan) -> impl Fn(&mut Plan) {
    let all = [
        "accuracy",
        "top2_accuracy",
        "top3_accuracy",
        "precision",
        "recall",
        "f1",
        "f1_micro",
        "exact_match",
        "auroc",
        "average_precision",
    ];
    let loss = loss.clone();
    move |plan| {
        plan.loss.clone_from(&loss);
        plan.metrics = all.map(str::to_owned).into();
        plan.data.drop_last = false;
        plan.data.n_train = 54;
        plan.length.steps_per_epoch = 4;
    }
}

#[test]
fn weighted_classes_and_their_metrics_have_the_same_bits_at_any_world_size() {
    let class_weights = Some(ClassWeights::Each(vec![0.2, 1.0, 3.5, 0.7]));
    let entropy = CrossEntropy { label_smoothing: 0.1, class_weights: class_weights.clone() };
    check_same_bits("mlp", &[10], measuring(&loss::plan(&entropy)));
    let focal = loss::plan(&Focal { gamma: 1.5, class_weights });
    check_same_bits("resnet8", &IMAGE, measuring(&focal));
    let mut alone = plan("mlp", &[10], 1);
    measuring(&focal)(&mut alone);
    let told = train(&alone);
    assert!(["val/auroc", "val/f1\"", "val/top3_accuracy"].iter().all(|name| told.contains(name)));
    assert!(!told.contains("f1_micro"), "{told}");
}

#[test]
fn several_classes_and_their_metrics_have_the_same_bits_at_any_world_size() {
    let pos_weight = Some(ClassWeights::Each(vec![2.0, 1.0, 0.5, 3.0]));
    let several = loss::plan(&BceWithLogits { pos_weight });
    check_same_bits("mlp", &[10], measuring(&several));
    let mut alone = plan("mlp", &[10], 1);
    measuring(&several)(&mut alone);
    let told = train(&alone);
    assert!(
        ["val/auroc", "val/f1_micro", "val/exact_match"].iter().all(|name| told.contains(name))
    );
    assert!(!told.contains("accuracy"), "{told}");
}
