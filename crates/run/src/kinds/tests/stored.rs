//! Whatever ddprun writes, ddprun reads: `resolved.toml` is the same experiment again.

use std::collections::BTreeMap;

use super::*;
use crate::config::kind::{FamilySpec, Key, Spec};

/// Keys that all kinds share, each with a value other than its default, and what it needs.
const SHARED: &[&[&str]] = &[
    &[],
    &["data.val_fraction=0.25"],
    &["data.folds=4"],
    &["data.folds=4", "data.fold=3"],
    &["data.val_fraction=0.25", "data.test_fraction=0.25"],
    &["data.test_fraction=0.25"],
    &["data.val_fraction=0.25", "data.split_seed=7"],
    &["data.limit=100"],
    &["data.fraction=0.5"],
    &["data.sampler=torch"],
    &["data.sampler=balanced"],
    &["data.sampler=weighted", "data.class_weights=[1.0, 2.0]"],
    &["data.aug_repeats=2"],
    &["data.mixup.mixup_alpha=0.2", "data.mixup.off_epoch=2"],
    &["data.mixup.cutmix_alpha=0.2", "data.mixup.mode=pair"],
    &["data.on_bad_sample=skip", "data.max_bad_fraction=0.5"],
    &["data.num_workers=2", "data.drop_last=false", "data.shuffle=false"],
    &["model.num_classes=3", "model.strict=except_head"],
    &["~train.epochs", "train.steps=10"],
    &["~train.epochs", "train.time=1h"],
    &["train.clip_grad_norm=1.0", "train.gradient_noise=0.01"],
    &["train.precision=fp16", "loss_scale.init=1024.0"],
    &["train.precision=bf16"],
    &["train.precision=amp"],
    &["optimizer.no_decay=[bias]", "optimizer.layer_decay=0.75"],
    &["optimizer.gradual_unfreezing='1 epoch'"],
    &["optimizer.groups=[{match=\"layers.0.*\", lr_factor=0.1}]"],
    &["ema.decay=0.99"],
    &["ema.decay=0.99", "ema.use_buffers=true", "ema.power=0.75"],
    &["swa.start='2 epochs'", "swa.lr=0.05", "swa.anneal_epochs=2"],
    &["lookahead.k=5", "lookahead.alpha=0.5"],
    &["lookahead.k=5", "lookahead.power=3.0"],
    &["lr_scaling.rule=linear"],
    &["scheduler.warmup='1 epoch'", "scheduler.interval=step"],
    &["distributed.shards=4", "distributed.min_world_size=1"],
    &["distributed.devices=2"],
    &["validation.every=never"],
    &["validation.every=never", "checkpoint.every=never"],
    &["validation.metrics=[]", "validation.sample_every=2"],
    &["checkpoint.every=never"],
    &["checkpoint.every=never", "checkpoint.keep_best=2"],
    &["checkpoint.monitor=train/loss"],
    &["early_stopping.patience=2", "early_stopping.min_delta=0.1"],
    &["fault.max_restarts=2", "fault.divergence_threshold=10.0"],
    &["logging.sinks=[]"],
    &["logging.sinks=[csv]", "logging.every='1 epoch'"],
    &["expect.\"val/loss\"={at_most=1.0}"],
];

/// A smallest experiment on data of this kind.
fn smallest(kind: &Spec) -> String {
    let needed = kind.keys.iter().filter(|key| key.required);
    let val = ["val_dir", "val_file"].map(|name| kind.key(name));
    let lines = needed.chain(val.into_iter().flatten()).map(|key| given(key, ""));
    let mut lines: Vec<String> = lines.collect();
    if kind.name == "image_table" {
        lines.push("class_columns = [\"cat\"]".to_owned());
    }
    format!(
        "schema = 1\n[model]\nname = \"mlp\"\n[train]\nepochs = 3\nbatch_size = 8\n[data]\n\
         name = \"{}\"\n{}\n",
        kind.name,
        lines.join("\n")
    )
}

/// The key with its example, as TOML.
fn given(key: &Key, table: &str) -> String {
    let value: toml::Value = serde_json::from_value(key.example.clone()).unwrap();
    format!("{table}{}={value}", key.name)
}

/// Reads `text`, and what is written of it; whether the experiment is a good one.
#[track_caller]
fn is_read_again(text: &str, changes: &[String], vocabulary: &Vocabulary) -> bool {
    let Ok(loaded) = load_text(Path::new("exp.toml"), text, changes, vocabulary) else {
        return false;
    };
    let stored = resolved(&loaded.experiment).unwrap();
    let again = load_text(Path::new("resolved.toml"), &stored, &[], vocabulary);
    let again = again.unwrap_or_else(|why| panic!("{changes:?}: {}", why.page(false, 90)));
    assert_eq!(again.experiment, loaded.experiment, "{changes:?}");
    true
}

fn data_kinds(families: &[FamilySpec]) -> &[Spec] {
    &families.iter().find(|family| family.table == "data").unwrap().kinds
}

#[test]
fn what_is_stored_of_any_data_with_any_key_is_read_again() {
    let (families, vocabulary) = (Kinds::default().families(), vocabulary());
    let mut good: BTreeMap<&[&str], usize> = BTreeMap::new();
    for kind in data_kinds(&families) {
        let with_val = smallest(kind);
        let lines = with_val.lines().filter(|line| !line.starts_with("val_"));
        let without_val = lines.collect::<Vec<_>>().join("\n");
        for changes in SHARED {
            let asked: Vec<String> = changes.iter().map(|&change| change.to_owned()).collect();
            let texts = [&with_val, &without_val];
            let n = texts.iter().filter(|text| is_read_again(text, &asked, vocabulary)).count();
            *good.entry(changes).or_default() += n;
        }
        for key in &kind.keys {
            let own = given(key, "data.");
            let alone = is_read_again(&with_val, std::slice::from_ref(&own), vocabulary);
            let split = "data.val_fraction=0.25".to_owned();
            let held_out = is_read_again(&without_val, &[own.clone(), split.clone()], vocabulary);
            // A key may stand in the place of another one, or need one.
            let instead = with_val.lines().any(|line| {
                let others: Vec<&str> = with_val.lines().filter(|other| *other != line).collect();
                is_read_again(&others.join("\n"), &[given(key, "data.")], vocabulary)
            });
            let with_another = || {
                let others = kind.keys.iter().filter(|other| other.name != key.name);
                others.map(|other| given(other, "data.")).any(|other| {
                    let both = [own.clone(), other.clone()];
                    let split = [own.clone(), other, split.clone()];
                    is_read_again(&with_val, &both, vocabulary)
                        || is_read_again(&without_val, &both, vocabulary)
                        || is_read_again(&without_val, &split, vocabulary)
                })
            };
            let is_good = alone || held_out || instead || key.required || with_another();
            assert!(is_good, "{}: {}", kind.name, key.name);
        }
    }
    let idle: Vec<_> = good.iter().filter(|(_, n)| **n == 0).collect();
    assert!(idle.is_empty(), "no data set takes {idle:?}");
}

#[test]
fn what_is_stored_of_any_kind_with_any_of_its_keys_is_read_again() {
    let (families, vocabulary) = (Kinds::default().families(), vocabulary());
    let text = smallest(data_kinds(&families).iter().find(|kind| kind.name == "shapes").unwrap());
    let mut n = 0;
    for table in ["model", "loss", "optimizer", "scheduler"] {
        let family = families.iter().find(|family| family.table == table).unwrap();
        for kind in &family.kinds {
            let needed = kind.keys.iter().filter(|key| key.required);
            let needed = needed.map(|key| given(key, &format!("{table}.")));
            let name = format!("{table}.name={}", kind.name);
            let base: Vec<String> = std::iter::once(name).chain(needed).collect();
            n += usize::from(is_read_again(&text, &base, vocabulary));
            for key in kind.keys.iter().filter(|key| !key.required) {
                let changes = [base.clone(), vec![given(key, &format!("{table}."))]].concat();
                n += usize::from(is_read_again(&text, &changes, vocabulary));
            }
        }
    }
    assert!(n > 200, "only {n} experiments were good");
}
