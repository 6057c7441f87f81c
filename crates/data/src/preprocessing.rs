//! The preparation of a trained model's inputs, for other programs: `preprocessing.json`.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Error;
use crate::config::kind::Choice;
use crate::plan::{Modality, Plan, TargetColumn, Targets};
use crate::sources::DataSource;
use crate::tokenizer::TextForm;
use crate::transform::Transforms;

/// Version of the file.
const FORMAT: u32 = 1;

/// Describes the preparation of a validation sample of `plan`, with all numbers, and why part of it
/// is not known.
pub fn preprocessing(
    plan: &Plan,
    source: &dyn DataSource,
    known: &Transforms,
) -> (Value, Option<Error>) {
    let data = &plan.data;
    let model = &plan.model;
    let (statistics, missing) = match source.preprocessing(&data.source.survey) {
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
    let transforms: Vec<Value> =
        data.val_transforms.iter().map(|choice| flat(choice, known)).collect();
    let scales = source.target_scales(&data.source.survey);
    let target = |(at, column): (usize, &TargetColumn)| {
        let mean = scales.get(at).map_or(0.0, |(mean, _)| *mean);
        json!({ "name": column.name, "mean": mean, "scale": column.scale })
    };
    let targets: Vec<Value> = data.target_columns.iter().enumerate().map(target).collect();
    for (key, value) in [("transforms", transforms), ("targets", targets)] {
        if !value.is_empty() {
            described[key] = value.into();
        }
    }
    if data.source.modality == Modality::Images {
        let white = if has_uint16(plan) { 65_535 } else { 255 };
        described["image"] = json!({
            "decode": "PIL.Image.open(file).convert(\"RGB\")",
            "divide_by": white,
            "layout": "channels, height, width",
        });
    }
    let meaning = match plan.loss.targets {
        // Preferences are those of a language model.
        Targets::Classes | Targets::Preferences => Some("softmax"),
        Targets::MultiLabel => Some("sigmoid"),
        Targets::Numbers | Targets::Series => None,
    };
    described["probabilities"] = meaning.into();
    if let Some(text) = source.text() {
        described["text"] = words(&text);
    }
    (described, missing)
}

fn has_uint16(plan: &Plan) -> bool {
    let options = &plan.data.source.kind.options;
    options.get("pixel_dtype").is_some_and(|dtype| dtype == "uint16")
}

/// A transform with its name among its options, and what else must be known of it.
fn flat(choice: &Choice, known: &Transforms) -> Value {
    let name = [("name".to_owned(), choice.name.clone().into())];
    let evaluated = known.build(choice).map(|transform| transform.evaluated()).unwrap_or_default();
    let options = choice.options.clone().into_iter().chain(evaluated);
    Value::Object(name.into_iter().chain(options).collect())
}

/// The tokenizer and template that text is made into tokens by, where they are files.
pub fn text_files(text: &TextForm) -> Vec<&Path> {
    match text {
        TextForm::Characters | TextForm::Numbers => Vec::new(),
        TextForm::Tokens(tokenizer) | TextForm::Answers { tokenizer, .. } => vec![tokenizer],
        TextForm::Chat { tokenizer, chat_template, .. } => {
            let template = chat_template.as_deref().filter(|template| template.is_file());
            std::iter::once(tokenizer.as_path()).chain(template).collect()
        }
    }
}

/// The `preprocessor_config.json` of Hugging Face's image processors, if one of them does the same
/// as `plan` to images: a resize, perhaps a center crop, and normalized shares of white.
pub fn image_processor(plan: &Plan) -> Option<Value> {
    let data = &plan.data;
    let is_usual = data.source.modality == Modality::Images
        && !has_uint16(plan)
        && plan.model.input.first() == Some(&3)
        && data.source.kind.options.get("exif").is_none_or(|exif| exif == "ignore");
    if !is_usual {
        return None;
    }
    let names: Vec<&str> = data.val_transforms.iter().map(|choice| choice.name.as_str()).collect();
    let (resize, crop, normalize) = match (&names[..], &data.val_transforms[..]) {
        (["resize", "normalize"], [resize, normalize]) => (resize, None, normalize),
        (["resize", "center_crop", "normalize"], [resize, crop, normalize]) => {
            (resize, Some(crop), normalize)
        }
        _ => return None,
    };
    let sides = |size: &Value| match size {
        Value::Array(sides) => json!({ "height": sides[0], "width": sides[1] }),
        side => json!({ "height": side, "width": side }),
    };
    let size = match resize.options.get("size")? {
        Value::Array(both) => sides(&Value::Array(both.clone())),
        side => json!({ "shortest_edge": side }),
    };
    // Pillow's numbers of its filters.
    let resample = match resize.options.get("interpolation").and_then(Value::as_str) {
        None | Some("bilinear") => 2,
        Some("bicubic") => 3,
        Some("lanczos") => 1,
        Some(_) => 0,
    };
    let mut config = json!({
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": true,
        "do_resize": true,
        "size": size,
        "resample": resample,
        "do_center_crop": crop.is_some(),
        "do_rescale": true,
        "rescale_factor": 1.0 / 255.0,
        "do_normalize": true,
        "image_mean": normalize.options.get("mean")?,
        "image_std": normalize.options.get("std")?,
    });
    if let Some(crop) = crop {
        config["crop_size"] = sides(crop.options.get("size")?);
    }
    Some(config)
}

/// Describes the tokenization of text.
fn words(text: &TextForm) -> Value {
    // They lie beside the description.
    let shown = |path: &Path| {
        let name = path.file_name().filter(|_| path.is_file()).unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
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
