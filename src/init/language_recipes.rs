//! Recipes for texts: a small GPT from scratch, or adapters of a language model.

use crate::init::names::{comment, count};
use crate::init::recipe::{Recipe, batch_size};
use crate::init::recognised::BaseModel;
use crate::plan::DataFacts;

/// The next character or token.
pub(super) fn text(about: &str, facts: &DataFacts) -> Recipe {
    let about = format!("{about}, and a vocabulary of {}.", count(facts.classes.len()));
    let model = "[model]
name = \"gpt\"                  # nanoGPT's recipe for a laptop: minutes on a CPU
n_layers = 4
n_heads = 4
d_model = 128
dropout = 0.0                 # 0.2 for more steps on a short text
bias = false
"
    .to_owned();
    let rest = format!(
        "
[train]
steps = 2000
batch_size = {}
clip_grad_norm = 1.0

[optimizer]
name = \"adamw\"
lr = 1e-3
betas = [0.9, 0.99]
weight_decay = 0.1
no_decay_on_1d = true

[scheduler]
name = \"cosine\"
interval = \"step\"
warmup = \"5 %\"
eta_min = 1e-4

[validation]
every = \"250 steps\"
batch_size = 64

[checkpoint]
every = \"250 steps\"

[logging]
every = \"50 steps\"
",
        batch_size(facts.n_train, 8)
    );
    Recipe { about, model, rest }
}

/// Answers, which adapters of the model `base` learn, or a small GPT where there is none.
pub(super) fn answers(about: &str, facts: &DataFacts, base: Option<&BaseModel>) -> Recipe {
    let Some(base) = base else { return from_scratch(about, facts) };
    let why = "Adapters beside the weights, which stay as they are: little memory, and a small \
               file in the end. The sizes of the model are read from `config.json` beside them.";
    let (targets, others) = base.family.adapter_layers();
    let model = format!(
        "{}[model]
name = \"llama\"
pretrained = \"{}\"

[model.lora]
r = 8                         # more for more than a change of style
alpha = 16.0
dropout = 0.05
targets = {targets:?} # more layers: {}
",
        comment(why),
        base.weights.display(),
        others.join(", ")
    );
    let batch_size = batch_size(facts.n_train, 4);
    let rest = format!(
        "
[train]
epochs = 3
batch_size = {batch_size}                # per rank
precision = \"amp\"             # bf16 where this machine is fast at it, else fp32

[optimizer]
name = \"adamw\"
lr = 3e-4
weight_decay = 0.0

[scheduler]
name = \"cosine\"
interval = \"step\"
warmup = \"3 %\"

[logging]
every = \"10 steps\"
"
    );
    Recipe { about: about_answers(about, facts), model, rest }
}

fn about_answers(about: &str, facts: &DataFacts) -> String {
    format!(
        "{about}, and a vocabulary of {}. The last tenth validates.",
        count(facts.classes.len())
    )
}

fn from_scratch(about: &str, facts: &DataFacts) -> Recipe {
    let why = "From scratch, a small model learns the form of answers and no facts. Put \
               `config.json` and `model.safetensors` of a language model beside its `tokenizer.json`, and \
               `ddprun init` writes adapters for it.";
    let small = text(about, facts);
    Recipe { about: about_answers(about, facts), model: comment(why) + &small.model, ..small }
}
