//! Recipes for tables: of samples, and of series in time.

use crate::init::names::{comment, count};
use crate::init::recipe::{Recipe, batch_size, epochs};
use crate::plan::DataFacts;
use crate::terminal::counted;

/// A target of a table, which is a class or a number.
///
/// Loss and monitored metric follow from the target, so that another one may be chosen by its name
/// alone; they are written where the target is to be read in another way.
pub(super) fn table(classify: bool, is_usual: bool, about: &str, facts: &DataFacts) -> Recipe {
    let loss = if classify { "cross_entropy" } else { "mse" };
    let loss = if is_usual {
        let why = "`loss.name`, `checkpoint.monitor` and metrics follow from the target: \
                   cross_entropy and val/accuracy for classes, mse and val/loss for numbers (huber, \
                   if some are far off).";
        comment(why)
    } else {
        format!("[loss]\nname = \"{loss}\"\n")
    };
    let inputs = facts.sample.as_ref().map_or(0, |sample| sample.iter().product::<usize>());
    let features = counted(inputs as u64, "feature");
    let about = format!("a table with {features}: {about}. Features are standardised.");
    let batch = batch_size(facts.n_train, 64);
    let rest = format!(
        "
[train]
epochs = {}
batch_size = {batch}

{loss}
[optimizer]
name = \"adamw\"
lr = 1e-3
weight_decay = 0.01
",
        epochs(facts.n_train),
    );
    let model = "[model]\nname = \"mlp\"\nhidden = [64, 64]             # wider for more rows\n";
    Recipe { about, model: model.to_owned(), rest }
}

/// Steps after which a linear model of a series has learnt most of it.
const STEPS: usize = 2000;

/// A recipe that forecasts the next rows.
pub(super) fn series(about: &str, facts: &DataFacts) -> Recipe {
    let n_series = facts.target.get(1).copied().unwrap_or(1);
    let about = format!(
        "{n_series} series, {about}: {} windows to train on, {} to validate and {} to test on.",
        count(facts.n_train),
        count(facts.n_val),
        count(facts.n_test)
    );
    let batch_size = batch_size(facts.n_train, 32);
    // A short series needs as many steps as a long one.
    let epochs = (STEPS * batch_size / facts.n_train.max(1)).clamp(10, 200);
    let lr = if epochs > 10 { "5e-3" } else { "1e-3" };
    // At least that of the published recipes of such models.
    let patience = (epochs / 10).max(3);
    let rest = format!(
        "
[train]
epochs = {epochs}
batch_size = {batch_size}

[loss]
name = \"mse\"

[optimizer]
name = \"adam\"
lr = {lr}

[checkpoint]
monitor = \"val/mse\"

[early_stopping]
monitor = \"val/mse\"
patience = {patience}  # ends the run at this many validations in a row without a better val/mse
"
    );
    let why = "A linear model is hard to beat, and trains in a minute; then try itransformer, \
               patchtst or timebridge.";
    Recipe { about, model: format!("{}[model]\nname = \"dlinear\"\n", comment(why)), rest }
}
