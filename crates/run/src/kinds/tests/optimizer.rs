//! `[optimizer]`: its defaults, and its groups as written.

use super::*;

/// `GOOD` with a group of these keys.
fn group(keys: &str) -> String {
    format!("{GOOD}\n[[optimizer.groups]]\n{keys}\n")
}

#[test]
fn groups_are_read_and_written_back() {
    let text = group("match = \"layer4\"\nlr_factor = 0.1\nunfreeze_at_epoch = 3")
        + "[[optimizer.groups]]\nmatch = \"conv1\"\nfrozen = true\n";
    let loaded = good(&text, &["optimizer.no_decay=[norm,bias]", "optimizer.layer_decay=0.75"]);
    let groups = &loaded.experiment.optimizer.groups;
    assert_eq!((groups[0].pattern.as_str(), groups[0].lr_factor), ("layer4", Some(0.1)));
    assert_eq!((groups[0].unfreeze_at_epoch, groups[1].frozen), (Some(3), Some(true)));
    let again = resolved(&loaded.experiment).unwrap();
    assert_eq!(good(&again, &[]).experiment.optimizer, loaded.experiment.optimizer);
}

#[test]
fn keys_of_a_group_that_say_nothing_or_contradict_each_other_are_refused() {
    let one = |keys: &str| told(&group(keys), &[]);
    assert_eq!(
        one("match = \"fc\""),
        ["`optimizer.groups[0].match`: sets nothing for these parameters"]
    );
    assert_eq!(
        one("match = \"fc\"\nfrozen = true\nlr_factor = 0.1"),
        ["`optimizer.groups[0].lr_factor`: has no meaning: the group is frozen for the whole run"]
    );
    assert_eq!(
        one("match = \"fc\"\nunfreeze_at_epoch = 3\nfreeze_at_epoch = 3"),
        ["`optimizer.groups[0].freeze_at_epoch`: must be more than `unfreeze_at_epoch`, 3"]
    );
    assert_eq!(
        one("match = \"fc\"\nlr_factor = -1.0"),
        ["`optimizer.groups[0].lr_factor`: must be at least 0 and finite, not -1.0"]
    );
    assert_eq!(
        one("match = \"fc\"\nunfreeze_at_epoch = 0"),
        ["`optimizer.groups[0].unfreeze_at_epoch`: must be at least 1, not 0"]
    );
}

#[test]
fn layers_are_unfrozen_after_epochs_or_steps() {
    let gradual = |word: &str| told(GOOD, &[&format!("optimizer.gradual_unfreezing={word}")]);
    assert_eq!(gradual("0 steps"), ["`optimizer.gradual_unfreezing`: must be at least 1, not 0"]);
    assert!(gradual("soon")[0].starts_with("`optimizer.gradual_unfreezing`: "));
    let loaded = good(GOOD, &["optimizer.gradual_unfreezing=2 epochs"]);
    let again = good(&resolved(&loaded.experiment).unwrap(), &[]);
    assert_eq!(again.experiment.optimizer.gradual_unfreezing, Some(Interval::Epochs(2)));
}

#[test]
fn a_group_without_a_pattern_and_a_misspelt_key_are_told() {
    let page = page(&group("lr_facter = 0.1"), &[]);
    assert!(page.contains("did you mean `lr_factor`, which"), "{page}");
    assert!(page.contains("`optimizer.groups[0].match`: is missing"), "{page}");
    let word = told(GOOD, &["optimizer.no_decay=[norms]"]);
    assert!(word[0].contains("`norm`, `bias` or `embedding`"), "{word:?}");
}

#[test]
fn whatever_is_not_given_is_pytorchs_default() {
    let options = |name: &str| {
        let choose = format!("optimizer.name={name}");
        good(GOOD, &[&choose, "~optimizer.momentum"]).experiment.optimizer.options
    };
    let json = |name: &str| serde_json::to_string(&options(name)).unwrap();
    let adam = r#"{"amsgrad":false,"betas":[0.9,0.999],"eps":1e-8,"weight_decay":0.0}"#;
    assert_eq!(json("adam"), adam);
    let adamw = r#"{"amsgrad":false,"betas":[0.9,0.999],"eps":1e-8,"weight_decay":0.01}"#;
    assert_eq!(json("adamw"), adamw);
    let sgd = r#"{"dampening":0.0,"momentum":0.0,"nesterov":false,"weight_decay":0.0}"#;
    assert_eq!(json("sgd"), sgd);
    let rmsprop = r#"{"alpha":0.99,"eps":1e-8,"momentum":0.0,"weight_decay":0.0}"#;
    assert_eq!(json("rmsprop"), rmsprop);
    assert_eq!(json("lion"), r#"{"betas":[0.9,0.99],"weight_decay":0.0}"#);
    let adagrad =
        r#"{"eps":1e-10,"initial_accumulator_value":0.0,"lr_decay":0.0,"weight_decay":0.0}"#;
    assert_eq!(json("adagrad"), adagrad);
    let nadam = r#"{"betas":[0.9,0.999],"decoupled_weight_decay":false,"eps":1e-8,"momentum_decay":0.004,"weight_decay":0.0}"#;
    assert_eq!(json("nadam"), nadam);
}
