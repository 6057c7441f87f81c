//! Keys that make sense alone but not together, those of one parameter group among them.

use crate::config::check::finding::Finding;
use crate::config::kind::{Capability, Modality, Spec};
use crate::config::loaded::Loaded;
use crate::config::schema::{Group, PrecisionChoice, Sampler};
use crate::config::values::{Auto, Interval, unusable_weights};
use crate::config::vocabulary::Vocabulary;

/// A run needs an end, and a step needs a size.
pub(crate) fn length_and_batch(loaded: &Loaded) -> Vec<Finding> {
    let train = &loaded.experiment.train;
    let mut found = Vec::new();
    if train.epochs.is_none() && train.steps.is_none() && train.time.is_none() {
        let finding = Finding::new("train.epochs", "nothing says how long to train")
            .about("train.steps")
            .about("train.time");
        let help = "set one, such as `epochs = 50`, `steps = 10000` or `time = \"2h\"`";
        found.push(finding.help(help));
    }
    if train.batch_size == Auto::Auto && train.global_batch_size == Auto::Auto {
        let finding = Finding::new("train.batch_size", "no batch size is given")
            .about("train.global_batch_size");
        found.push(finding.help("give `batch_size` (per rank and pass) or `global_batch_size`"));
    }
    found
}

/// Transforms of what are no images.
pub(crate) fn transforms(loaded: &Loaded, vocabulary: &Vocabulary) -> Vec<Finding> {
    let data = &loaded.experiment.data;
    let kind = kind_of_data(loaded, vocabulary);
    let holds = kind.and_then(Spec::modality);
    let Some(holds) = holds.filter(|&holds| holds != Modality::Images) else { return Vec::new() };
    let has_cameras = kind.is_some_and(|kind| kind.capabilities.contains(&Capability::Cameras));
    let lists = [("train", &data.transforms.train), ("val", &data.transforms.val)];
    let finding = |split: &str| {
        let what = format!("change images, but `{}` holds {}", data.name, holds.words());
        Finding::new(format!("data.transforms.{split}"), what).about("data.name")
    };
    let mixes = |key| {
        let what = format!("mixes images, but `{}` holds {}", data.name, holds.words());
        Finding::new(format!("data.mixup.{key}"), what).about("data.name")
    };
    let given = lists.iter().filter(|(_, list)| !list.is_empty() && !has_cameras);
    given.map(|(split, _)| finding(split)).chain(data.mixup.given().map(mixes)).collect()
}

/// The data set of the experiment.
pub(super) fn kind_of_data<'a>(loaded: &Loaded, vocabulary: &'a Vocabulary) -> Option<&'a Spec> {
    vocabulary.family("data")?.kind(&loaded.experiment.data.name)
}

/// Findings about precision and backend, by the features of this build.
pub(crate) fn precision_and_backend(loaded: &Loaded) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let distributed = &experiment.distributed;
    let mut found = scaler(loaded);
    // Whether there are GPUs, and how many machines, is a fact: the plan decides.
    let of_shards = [
        ("distributed.shards", distributed.shards),
        ("distributed.min_world_size", distributed.min_world_size),
    ];
    let torch = experiment.data.sampler == Sampler::Torch;
    for (key, _) in of_shards.into_iter().filter(|(_, value)| torch && value.given().is_some()) {
        let what =
            "has no meaning with `data.sampler = \"torch\"`, whose order depends on the ranks";
        found.push(Finding::new(key, what).about("data.sampler"));
    }
    found.extend(sampling(loaded));
    found
}

/// Findings about the order and the number of samples.
fn sampling(loaded: &Loaded) -> Vec<Finding> {
    let data = &loaded.experiment.data;
    let mut found = Vec::new();
    if data.sampler.draws() && !data.shuffle {
        let what = "has no effect: `data.sampler` draws samples at random";
        found.push(Finding::new("data.shuffle", what).about("data.sampler"));
    }
    let is_weighted = data.sampler == Sampler::Weighted;
    match &data.class_weights {
        None if is_weighted => {
            let what = "needs `data.class_weights`, a weight for each class";
            found.push(Finding::new("data.sampler", what).about("data.class_weights"));
        }
        Some(_) if !is_weighted => {
            let finding = Finding::new("data.class_weights", "needs `data.sampler = \"weighted\"`");
            found.push(finding.about("data.sampler"));
        }
        Some(weights) => {
            let what = unusable_weights(weights);
            found.extend(what.map(|what| Finding::new("data.class_weights", what)));
        }
        None => {}
    }
    if data.aug_repeats > 1 && data.sampler != Sampler::Shards {
        let what = "needs `data.sampler = \"shards\"`, whose order it repeats";
        found.push(Finding::new("data.aug_repeats", what).about("data.sampler"));
    }
    if data.limit.is_some() && data.fraction.is_some() {
        let what = "cannot be combined with `data.limit`: both set the number of samples";
        found.push(Finding::new("data.fraction", what).about("data.limit"));
    }
    found
}

fn scaler(loaded: &Loaded) -> Vec<Finding> {
    let name = match loaded.experiment.train.precision {
        PrecisionChoice::Fp16 => return Vec::new(),
        PrecisionChoice::Fp32 => "fp32",
        PrecisionChoice::Bf16 => "bf16",
        PrecisionChoice::Amp => "amp",
    };
    ["init", "growth_factor", "backoff_factor", "growth_interval"]
        .iter()
        .map(|key| format!("loss_scale.{key}"))
        .filter(|key| loaded.is_given(key))
        .map(|key| {
            let what = format!("{name} uses no loss scale; only `precision = \"fp16\"` does");
            Finding::new(key, what).about("train.precision")
        })
        .collect()
}

/// Metrics that will not be measured.
pub(crate) fn monitors(loaded: &Loaded, vocabulary: &Vocabulary) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let (checkpoint, early) = (&experiment.checkpoint, &experiment.early_stopping);
    let mut watched = vec![("checkpoint", checkpoint.monitor.as_str())];
    if early.patience.is_some() {
        watched.push(("early_stopping", &early.monitor));
    }
    watched.extend(experiment.scheduler.monitor().map(|monitor| ("scheduler", monitor)));
    let expected = experiment.expect.keys().map(|metric| (format!("expect.\"{metric}\""), metric));
    let mut found: Vec<Finding> =
        expected.flat_map(|(key, metric)| unmeasured(loaded, vocabulary, &key, metric)).collect();
    for (table, metric) in watched {
        found.extend(unmeasured(loaded, vocabulary, &format!("{table}.monitor"), metric));
    }
    found
}

fn unmeasured(loaded: &Loaded, vocabulary: &Vocabulary, key: &str, metric: &str) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let mut found = Vec::new();
    // Only checkpoints are ranked without anyone having asked; the plan then takes the training
    // loss.
    let ranks = key == "checkpoint.monitor";
    let is_asked = !ranks || loaded.is_given(key);
    let never = experiment.validation.every == Interval::Never;
    if metric.starts_with("val/") && never && is_asked {
        let what = format!("`{metric}` is never measured: `validation.every` is \"never\"");
        found.push(Finding::new(key, what).about("validation.every"));
    }
    if metric.starts_with("train/") && never && !ranks {
        let what = format!(
            "`{metric}` is checked when the model is validated, but `validation.every` is \"never\""
        );
        let help = "validate now and then, such as `validation.every = \"1 epoch\"`";
        found.push(Finding::new(key, what).about("validation.every").help(help));
    }
    let wanted = if metric == "test/success" { Capability::Simulation } else { Capability::Test };
    let measures = kind_of_data(loaded, vocabulary).is_none_or(|kind| {
        kind.capabilities.contains(&wanted)
            || (wanted == Capability::Test && kind.own_parts().is_some())
    });
    if metric.starts_with("test/") && !measures {
        let lacks = if wanted == Capability::Test { "test split" } else { "simulator" };
        let what = format!("`{metric}` is never measured: this data set has no {lacks}");
        found.push(Finding::new(key, what).about("data.name"));
    }
    found
}

/// Findings about the keys of each group.
pub(crate) fn param_groups(loaded: &Loaded) -> Vec<Finding> {
    let groups = loaded.experiment.optimizer.groups.iter().enumerate();
    groups.flat_map(|(index, group)| within_group(index, group)).collect()
}

fn within_group(index: usize, group: &Group) -> Vec<Finding> {
    let key = |name: &str| format!("optimizer.groups[{index}].{name}");
    let given = [
        ("lr_factor", group.lr_factor.is_some()),
        ("weight_decay", group.weight_decay.is_some()),
        ("unfreeze_at_epoch", group.unfreeze_at_epoch.is_some()),
        ("freeze_at_epoch", group.freeze_at_epoch.is_some()),
    ];
    let keys = given.map(|(name, _)| key(name));
    let given = given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    if group.frozen == Some(true) {
        let idle =
            |name| Finding::new(key(name), "has no meaning: the group is frozen for the whole run");
        return given.map(|name| idle(name).about(key("frozen"))).collect();
    }
    let late =
        group.freeze_at_epoch.zip(group.unfreeze_at_epoch).filter(|(end, start)| end <= start);
    if let Some((_, start)) = late {
        let what = format!("must be more than `unfreeze_at_epoch`, {start}");
        return vec![Finding::new(key("freeze_at_epoch"), what).about(key("unfreeze_at_epoch"))];
    }
    if group.frozen.is_none() && given.count() == 0 {
        let finding = Finding::new(key("match"), "sets nothing for these parameters");
        let help = "set one, such as `lr_factor = 0.1`, `weight_decay = 0.0` or `frozen = true`";
        let finding = finding.help(help);
        let keys = keys.into_iter().chain([key("frozen")]);
        return vec![keys.fold(finding, Finding::about)];
    }
    Vec::new()
}
