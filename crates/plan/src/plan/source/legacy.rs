//! Plans of before data sets were kinds: `{"mnist": {"dir": ...}}`.

use serde_json::{Map, Value, json};

use crate::config::kind::{Choice, Modality, Options};

/// The source in today's form.
pub(super) fn upgraded(older: &Value) -> Value {
    let known = older.as_object().and_then(|forms| forms.iter().next());
    let Some((form, keys)) = known else { return older.clone() };
    let Some((name, modality, found)) = kind(form, keys) else { return older.clone() };
    let choice = Choice { name: name.to_owned(), options: options(form, keys) };
    json!({
        "line": choice.to_string(),
        "kind": choice,
        "modality": modality,
        "held": 0,
        "found": found,
    })
}

/// What the form is now, and what was found out.
fn kind(form: &str, keys: &Value) -> Option<(&'static str, Modality, Value)> {
    let nothing = json!({});
    Some(match form {
        "image_folder" => ("image_folder", Modality::Images, nothing),
        "mnist" => ("mnist", Modality::Images, nothing),
        "csv" => ("csv", Modality::Table, nothing),
        "csv_forecast" => ("csv_forecast", Modality::Series, nothing),
        "text" | "tokens" => ("tokens", Modality::Text, nothing),
        "instructions" => ("instructions", Modality::Text, nothing),
        "speech" => {
            let found = json!({ "rate": keys["rate"], "samples": keys["samples"] });
            ("speech", Modality::Speech, found)
        }
        "trajectories" => {
            let generated = &keys["from"]["push_t_like"];
            let policy = json!({
                "chunk": keys["chunk"],
                "ranges": keys["ranges"],
                "simulated": generated["seed"],
            });
            let name = if generated.is_null() { "trajectories" } else { "push_t_like" };
            (name, Modality::Behaviour, json!({ "policy": policy }))
        }
        _ => return None,
    })
}

/// Names of options that were called otherwise.
const RENAMED: [(&str, &str, &str); 9] = [
    ("image_folder", "train", "train_dir"),
    ("image_folder", "val", "val_dir"),
    ("speech", "train", "train_dir"),
    ("speech", "val", "val_dir"),
    ("csv", "train", "train_file"),
    ("csv", "val", "val_file"),
    ("tokens", "train", "train_file"),
    ("tokens", "val", "val_file"),
    ("tokens", "vocabulary", "vocab_size"),
];

/// What is no option: decided by the loss, or found out.
const NO_OPTIONS: [&str; 6] = ["classify", "rate", "samples", "from", "chunk", "ranges"];

fn options(form: &str, keys: &Value) -> Options {
    let renamed = |key: &String| {
        let other = RENAMED.iter().find(|(of, old, _)| *of == form && old == key);
        other.map_or_else(|| key.clone(), |(_, _, new)| (*new).to_owned())
    };
    let empty = Map::new();
    let given = keys.as_object().unwrap_or(&empty).iter();
    let mut options: Options = given
        .filter(|(key, value)| !NO_OPTIONS.contains(&key.as_str()) && !value.is_null())
        .map(|(key, value)| (renamed(key), value.clone()))
        .collect();
    match form {
        // Runs of before there was the key took dates as they were.
        "csv_forecast" => drop(options.entry("check_dates".to_owned()).or_insert(false.into())),
        "speech" => {
            let seconds = keys["samples"].as_f64().zip(keys["rate"].as_f64());
            let seconds = seconds.map_or(20.0, |(samples, rate)| samples / rate);
            options.insert("max_seconds".to_owned(), seconds.into());
        }
        "trajectories" => options.extend(behaviour(keys)),
        _ => {}
    }
    options
}

/// Where recorded or generated behaviour came from, and how it was cut.
fn behaviour(keys: &Value) -> Vec<(String, Value)> {
    let from = &keys["from"];
    let recorded = ["recorded", "npz"].iter().find_map(|form| from[*form].get("file"));
    let place = match recorded {
        Some(file) => ("file".to_owned(), file.clone()),
        None => ("episodes".to_owned(), from["push_t_like"]["episodes"].clone()),
    };
    let chunk = keys["chunk"].as_object().cloned().unwrap_or_default();
    chunk.into_iter().chain([place]).collect()
}

#[cfg(test)]
mod tests {
    use crate::plan::{Modality, SourcePlan};

    #[track_caller]
    fn read(older: &str) -> SourcePlan {
        serde_json::from_str(older).unwrap()
    }

    #[track_caller]
    fn check(older: &str, name: &str, options: &str) {
        let source = read(older);
        assert_eq!(source.kind.name, name);
        assert_eq!(serde_json::to_string(&source.kind.options).unwrap(), options);
        let again = serde_json::to_string(&source).unwrap();
        assert_eq!(read(&again), source);
    }

    #[test]
    fn each_form_of_earlier_versions_is_read() {
        check(
            r#"{"image_folder": {"train": "t", "val": "v"}}"#,
            "image_folder",
            r#"{"train_dir":"t","val_dir":"v"}"#,
        );
        check(r#"{"mnist": {"dir": "d"}}"#, "mnist", r#"{"dir":"d"}"#);
        check(
            r#"{"csv": {"train": "t", "val": "v", "target": "y", "classify": true}}"#,
            "csv",
            r#"{"target":"y","train_file":"t","val_file":"v"}"#,
        );
        check(
            r#"{"text": {"file": "f", "tokenizer": null, "seq_len": 8}}"#,
            "tokens",
            r#"{"file":"f","seq_len":8}"#,
        );
        check(
            r#"{"tokens": {"train": "t", "val": "v", "vocabulary": 9, "seq_len": 8}}"#,
            "tokens",
            r#"{"seq_len":8,"train_file":"t","val_file":"v","vocab_size":9}"#,
        );
        check(
            r#"{"csv_forecast": {"file": "f", "split": "7:1:2", "seq_len": 8, "pred_len": 2, "calendar": "hour"}}"#,
            "csv_forecast",
            r#"{"calendar":"hour","check_dates":false,"file":"f","pred_len":2,"seq_len":8,"split":"7:1:2"}"#,
        );
    }

    #[test]
    fn what_an_earlier_version_found_out_is_kept() {
        let speech = read(
            r#"{"speech": {"train": "t", "val": "v", "rate": 8000, "samples": 16000, "n_mels": 40}}"#,
        );
        assert_eq!((speech.modality, &speech.found["rate"]), (Modality::Speech, &8000.into()));
        assert_eq!(speech.kind.options["max_seconds"], 2.0);
        let chunk = r#"{"horizon": 16, "n_obs_steps": 2, "n_action_steps": 8, "val_ratio": 0.1}"#;
        let ranges = r#"{"observations": [[0, 1]], "actions": [[0, 2]]}"#;
        let of = |from: &str| {
            read(&format!(
                r#"{{"trajectories": {{"from": {from}, "chunk": {chunk}, "ranges": {ranges}}}}}"#
            ))
        };
        let recorded = of(r#"{"npz": {"file": "runs.npz"}}"#);
        assert_eq!(recorded.kind.name, "trajectories");
        assert_eq!(recorded.kind.options["file"], "runs.npz");
        assert_eq!(recorded.found["policy"]["ranges"]["actions"][0][1], 2);
        let generated = of(r#"{"push_t_like": {"episodes": 9, "seed": 3}}"#);
        assert_eq!(generated.kind.name, "push_t_like");
        assert_eq!(generated.kind.options["episodes"], 9);
        assert_eq!(generated.kind.options["horizon"], 16);
        assert_eq!(generated.found["policy"]["simulated"], 3);
    }
}
