//! Options of `[loss]`.

use super::*;
use crate::plan::{DataFacts, Facts, Modality, Plan, SourcePlan};

/// Folders of images of three classes.
fn three_classes(class_counts: Vec<u64>) -> Facts {
    let data = DataFacts {
        source: SourcePlan::new("image_folder", Modality::Images),
        n_train: 1000,
        n_val: 100,
        classes: ["ant", "bee", "cat"].map(str::to_owned).into(),
        class_counts,
        ..DataFacts::default()
    };
    Facts { cores: 4, ..Facts::of(data) }
}

#[test]
fn weights_fit_the_classes_of_the_data_and_balanced_ones_become_numbers() {
    let plan = |word: &str, counts| {
        let loaded = good(GOOD, &[word]);
        let plan = Plan::new(&loaded, &three_classes(counts), &Kinds::default());
        plan.map_err(|problems| {
            let told: String = problems.iter().map(ToString::to_string).collect();
            told + &problems.page(false, 80)
        })
    };
    let decided = plan("loss.class_weights=balanced", vec![500, 400, 100]).unwrap().loss;
    let weights = &decided.kind.options["class_weights"];
    let weights: Vec<f64> = serde_json::from_value(weights.clone()).unwrap();
    assert_eq!(weights, [1000.0 / 1500.0, 1000.0 / 1200.0, 1000.0 / 300.0]);
    assert!(decided.weighs_labels);
    let page = plan("loss.class_weights=[1, 2]", vec![]).unwrap_err();
    assert!(page.contains("has 2 weights, but the data has 3 classes"), "{page}");
    assert!(page.contains("loss.class_weights=[1, 2]"), "{page}");
    let page = plan("loss.class_weights=balanced", vec![]).unwrap_err();
    assert!(page.contains("does not count its classes"), "{page}");
    let page = plan("loss.name=bce_with_logits", vec![]).unwrap_err();
    assert!(page.contains("needs samples that may have several classes"), "{page}");
}

#[test]
fn options_are_those_of_the_loss_in_their_ranges() {
    good(GOOD, &["loss.label_smoothing=0"]);
    good(GOOD, &["loss.label_smoothing=1"]);
    good(GOOD, &["loss.name=time_frequency", "loss.alpha=0"]);
    good(GOOD, &["loss.name=huber"]);
    check(
        &["loss.name=mse", "loss.label_smoothing=0.1"],
        &[
            "`loss.label_smoothing`: belongs to `cross_entropy`, `dpo` or `simpo`, but `name` is `mse`",
        ],
    );
    check(
        &["loss.name=huber", "loss.delta=0"],
        &["`loss.delta`: must be greater than 0 and finite, not 0.0"],
    );
    good(GOOD, &["loss.class_weights=balanced"]);
    good(GOOD, &["loss.class_weights=[1, 0.5, 0]"]);
    check(
        &["loss.class_weights=[1, -0.5]"],
        &["`loss.class_weights[1]`: must be at least 0 and finite, not -0.5"],
    );
    check(
        &["loss.class_weights=even"],
        &["`loss.class_weights`: must be `\"balanced\"`, or a list of one weight for each class, \
           not `\"even\"`"],
    );
    check(&["loss.name=time_frequency"], &["`loss.alpha`: `time_frequency` needs `alpha`"]);
    check(&["loss.name=hubre"], &["`loss.name`: no loss is called `hubre`"]);
}

#[test]
fn mixup_is_checked() {
    good(
        GOOD,
        &["data.mixup.mixup_alpha=0.8", "data.mixup.cutmix_alpha=1", "data.mixup.mode=pair"],
    );
    check(
        &["data.mixup.mixup_alpha=-1", "data.mixup.prob=2"],
        &[
            "`data.mixup.mixup_alpha`: must be at least 0 and finite, not -1.0",
            "`data.mixup.prob`: must be from 0 to 1, not 2.0",
        ],
    );
    check(&["data.mixup.mode=elem"], &["`data.mixup.mode`: must be `batch` or `pair`, not `elem`"]);
}
