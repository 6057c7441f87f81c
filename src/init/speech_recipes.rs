//! Recipes for speech: its classes, or its sounds where there are none.

use crate::init::names::{self, comment};
use crate::init::recipe::{ADAMW, Recipe, batch_size};
use crate::plan::DataFacts;

/// Classes of utterances; without them, what disturbed and masked speech is like.
pub(super) fn speech(n: &str, by_name: bool, facts: &DataFacts) -> Recipe {
    if facts.classes.len() < 2 { sounds(n, facts) } else { classes(n, by_name, facts) }
}

fn classes(n: &str, by_name: bool, facts: &DataFacts) -> Recipe {
    let how = if by_name {
        " The class is what stands before the first `_` of a file's name."
    } else {
        ""
    };
    let about = format!("speech in {}: {n}.{how}", names::classes(facts.classes.len()));
    let model = "[model]
name = \"fastconformer\"        # NEST's encoder, small enough for a CPU
d_model = 96
n_heads = 4
n_layers = 4
subsampling_channels = 32
"
    .to_owned();
    let batch = batch_size(facts.n_train, 16);
    let rest = format!(
        "
[train]
epochs = 30
batch_size = {batch}

{ADAMW}
[checkpoint]
monitor = \"val/accuracy\"
mode = \"max\"
"
    );
    Recipe { about, model, rest }
}

fn sounds(n: &str, facts: &DataFacts) -> Recipe {
    let about = format!("speech without classes: {n}.");
    let why = "NEST learns without labels what the masked parts of disturbed speech are. Its \
               encoder is what you want: `ddprun checkpoint export`, then `model.pretrained` of a \
               `fastconformer` with the same sizes.";
    let model = format!(
        "{}[model]
name = \"nest\"
d_model = 96
n_heads = 4
n_layers = 4
subsampling_channels = 32
codebook_size = 64            # more for more hours of speech
",
        comment(why)
    );
    let batch = batch_size(facts.n_train, 16);
    let rest = format!(
        "
[train]
epochs = 100
batch_size = {batch}

{ADAMW}
[checkpoint]
monitor = \"val/loss\"
"
    );
    Recipe { about, model, rest }
}
