//! Defaults that follow from the target of the data: the loss, and what is monitored and measured.

use serde_json::Value;

use crate::config::Loaded;
use crate::config::kind::{Choice, Options};
use crate::config::schema::Loss;
use crate::config::values::Every;
use crate::kinds::Kinds;
use crate::plan::{KindFacts, Targets, chosen_loss};

/// Fills in the loss and the metrics that fit the target of the data, where the experiment does not
/// give them.
pub fn follow_target(loaded: &mut Loaded, kinds: &Kinds) {
    let asked = &loaded.experiment.data;
    let data = Choice { name: asked.name.clone(), options: asked.options.clone() };
    let is_open = |key: &str| !loaded.is_given(key);
    let is_scaled = data.options.get("standardize_target") == Some(&Value::Bool(true));
    let wants_unscaled = is_scaled && is_open("validation.metrics");
    if !(wants_unscaled || !loaded.gives_any_of("loss") || is_open("checkpoint.monitor")) {
        return;
    }
    // Data that cannot be read are refused where they are counted.
    let target = kinds.data.build(&data).ok().and_then(|source| source.target().ok()).flatten();
    let Some(target) = target else { return };
    if !loaded.gives_any_of("loss") {
        let loss = match target {
            Targets::Classes => "cross_entropy",
            Targets::MultiLabel => "bce_with_logits",
            Targets::Numbers | Targets::Series => "mse",
        };
        loaded.follow("loss.name", |experiment| {
            if experiment.loss.name != loss {
                experiment.loss = Loss { name: loss.to_owned(), options: Options::new() };
            }
        });
    }
    let Ok(compared) = kinds.loss(&chosen_loss(loaded)).map(|loss| loss.targets) else { return };
    let monitor = match compared {
        Targets::Classes => "val/accuracy",
        Targets::MultiLabel => "val/average_precision",
        Targets::Numbers | Targets::Series => "val/loss",
    };
    let is_evaluated = loaded.experiment.validation.every != Every::Never;
    if is_evaluated && !loaded.is_given("checkpoint.monitor") {
        let mode = loaded.experiment.checkpoint.mode;
        let better = kinds.vocabulary().mode_of(monitor).unwrap_or(mode);
        loaded.follow("checkpoint.monitor", |experiment| {
            monitor.clone_into(&mut experiment.checkpoint.monitor);
        });
        if !loaded.is_given("checkpoint.mode") {
            loaded.follow("checkpoint.mode", |experiment| experiment.checkpoint.mode = better);
        }
    }
    if wants_unscaled && compared == Targets::Numbers {
        let metrics = vec!["rmse_unscaled".to_owned()];
        loaded.follow("validation.metrics", |experiment| experiment.validation.metrics = metrics);
    }
}
