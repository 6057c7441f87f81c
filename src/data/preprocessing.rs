//! What another program must know to prepare the inputs of a trained model: `preprocessing.json`.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::kind::Choice;
use crate::data::Error;
use crate::data::sources::DataSource;
use crate::data::tokenizer::TextForm;
use crate::plan::{Modality, Plan};

/// Version of the file.
const FORMAT: u32 = 1;

/// What is done to a sample of the validation data of `plan` before the model sees it, with all
/// numbers; and why something of it is not known.
pub fn preprocessing(plan: &Plan, source: &dyn DataSource) -> (Value, Option<Error>) {
    let (data, model) = (&plan.data, &plan.model);
    let (statistics, missing) = match source.preprocessing(&data.source.found) {
        Ok(statistics) => (statistics, None),
        Err(error) => (Map::new().into_iter().collect(), Some(error)),
    };
    let is_text = data.source.modality == Modality::Text;
    let (name, dtype) = if is_text { ("input_ids", "int64") } else { ("input", "float32") };
    let mut described = json!({
        "format": FORMAT,
        "ddprun": env!("CARGO_PKG_VERSION"),
        "model": model.name(),
        "options": model.kind.options,
        "modality": data.source.modality.words(),
        "input": { "name": name, "dtype": dtype, "shape": model.input },
        "outputs": model.outputs,
        "classes": data.classes,
        "data": { "name": data.source.kind.name, "statistics": statistics },
    });
    let transforms: Vec<Value> = data.val_transforms.iter().map(flat).collect();
    let scales = data.target_columns.iter();
    let targets: Vec<Value> =
        scales.map(|column| json!({ "name": column.name, "scale": column.scale })).collect();
    for (key, value) in [("transforms", transforms), ("targets", targets)] {
        if !value.is_empty() {
            described[key] = value.into();
        }
    }
    if let Some(text) = source.text() {
        described["text"] = words(&text);
    }
    (described, missing)
}

/// A transform with its name among its options.
fn flat(choice: &Choice) -> Value {
    let name = [("name".to_owned(), choice.name.clone().into())];
    let options = choice.options.iter().map(|(key, value)| (key.clone(), value.clone()));
    Value::Object(name.into_iter().chain(options).collect())
}

/// How text becomes tokens.
fn words(text: &TextForm) -> Value {
    let shown = |path: &Path| path.display().to_string();
    match text {
        TextForm::Characters => json!({ "tokens": "characters" }),
        TextForm::Numbers => json!({ "tokens": "numbers" }),
        TextForm::Tokens(tokenizer) => {
            json!({ "tokens": "tokenizer", "tokenizer": shown(tokenizer) })
        }
        TextForm::Chat { tokenizer, chat_template, eos_token } => json!({
            "tokens": "chat",
            "tokenizer": shown(tokenizer),
            "chat_template": chat_template.as_deref().map(shown),
            "eos_token": eos_token,
        }),
        TextForm::Answers { tokenizer, eos_token } => {
            json!({ "tokens": "answers", "tokenizer": shown(tokenizer), "eos_token": eos_token })
        }
    }
}
