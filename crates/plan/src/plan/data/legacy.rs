//! Plans of before transforms were kinds: `{"name": "resize", "height": 224, "width": 224}`; and of
//! when what is held back was an option of some data sets.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::config::kind::{Choice, Options};

/// The transforms of a plan, in today's form or in that of earlier versions.
pub(super) fn transforms<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Choice>, D::Error> {
    let entries = Vec::<Map<String, Value>>::deserialize(from)?;
    entries.into_iter().map(|entry| choice(entry).map_err(D::Error::custom)).collect()
}

/// What is held back, taken out of the options of a data set; plans of before there were options
/// have none.
pub(super) fn split(options: Option<&mut Value>) -> Value {
    let mut options = options.and_then(Value::as_object_mut);
    let mut take = |key| options.as_mut().and_then(|options| options.remove(key));
    json!({
        "val_fraction": take("val_fraction"),
        "test_fraction": take("test_fraction"),
        "folds": take("folds"),
        "fold": take("fold").unwrap_or_else(|| 0.into()),
        "seed": take("split_seed").unwrap_or_else(|| 0.into()),
    })
}

fn choice(mut entry: Map<String, Value>) -> Result<Choice, serde_json::Error> {
    let is_older = entry.keys().any(|key| key != "name" && key != "options");
    if !is_older {
        return serde_json::from_value(Value::Object(entry));
    }
    let name = entry.remove("name").unwrap_or_default();
    let name = name.as_str().unwrap_or_default();
    let sides = (entry.remove("height"), entry.remove("width"));
    let mut options: Options = entry.into_iter().collect();
    if let (Some(height), Some(width)) = sides {
        options.insert("size".to_owned(), json!([height, width]));
    }
    let name = if name == "resize_shorter" { "resize" } else { name };
    Ok(Choice { name: name.to_owned(), options })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::SplitPlan;

    #[track_caller]
    fn check(stored: &str, name: &str, options: &str) {
        let entry: Map<String, Value> = serde_json::from_str(stored).unwrap();
        let found = choice(entry).unwrap();
        assert_eq!(found.name, name);
        assert_eq!(serde_json::to_string(&found.options).unwrap(), options);
    }

    #[test]
    fn what_was_held_back_by_an_option_still_is() {
        let mut options = json!({"train_dir": "t", "folds": 5, "fold": 2, "split_seed": 7});
        let plan: SplitPlan = serde_json::from_value(split(Some(&mut options))).unwrap();
        assert_eq!(plan, SplitPlan { folds: Some(5), fold: 2, seed: 7, ..SplitPlan::NONE });
        assert_eq!(options, json!({"train_dir": "t"}));
        let none: SplitPlan = serde_json::from_value(split(None)).unwrap();
        assert_eq!(none, SplitPlan::NONE);
    }

    #[test]
    fn transforms_of_earlier_versions_keep_their_numbers() {
        check(r#"{"name": "resize_shorter", "size": 256}"#, "resize", r#"{"size":256}"#);
        check(
            r#"{"name": "random_crop", "height": 32, "width": 24, "padding": 4}"#,
            "random_crop",
            r#"{"padding":4,"size":[32,24]}"#,
        );
        check(
            r#"{"name": "random_horizontal_flip", "p": 0.5}"#,
            "random_horizontal_flip",
            r#"{"p":0.5}"#,
        );
        check(
            r#"{"name": "normalize", "options": {"mean": [0.5], "std": [0.5]}}"#,
            "normalize",
            r#"{"mean":[0.5],"std":[0.5]}"#,
        );
    }
}
