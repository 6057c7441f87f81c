//! Entries of lists, each of which chooses a kind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::*;
use crate::config::kind::Kind;
use crate::data::transform::{Area, Pixels, Transform};
use crate::rng::Stream;

/// turns values around, in a user's program.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Invert {
    /// the highest value.
    #[schemars(range(min = 1, max = 255))]
    high: u8,
}

impl Default for Invert {
    fn default() -> Self {
        Self { high: 255 }
    }
}

impl Kind for Invert {
    const NAME: &'static str = "invert";
}

impl Transform for Invert {
    fn apply(&self, mut image: Pixels, _: Area, _: Option<&mut Stream>) -> Result<Pixels, String> {
        image.data.iter_mut().for_each(|value| *value = self.high.saturating_sub(*value));
        Ok(image)
    }
}

#[track_caller]
fn transforms(list: &str, expected: &[&str]) {
    check(&[&format!("data.transforms.val=[{list}]")], expected);
}

#[test]
fn an_entry_is_read_with_all_options_of_its_kind() {
    let loaded = good(GOOD, &["data.transforms.train=[{name=random_crop, size=8}]"]);
    let json = serde_json::to_string(&loaded.experiment.data.transforms.train).unwrap();
    assert_eq!(json, r#"[{"name":"random_crop","padding":0,"size":8}]"#);
}

#[test]
fn an_entry_is_checked_as_its_kind() {
    let at = "data.transforms.val";
    transforms(
        "{name=random_rotation}",
        &[&format!("`{at}[0].degrees`: `random_rotation` needs `degrees`")],
    );
    transforms(
        "{name=resize, size=0}, {name=random_rotation, degrees=200}",
        &[
            &format!("`{at}[0].size`: must be from 1 to 8192, not 0"),
            &format!("`{at}[1].degrees`: must be from 0 to 180, not 200.0"),
        ],
    );
    transforms(
        "{name=random_resized_crop, size=8, scale=[0.5, 0.1], ratio=[0, 1]}",
        &[
            &format!("`{at}[0].ratio[0]`: must be greater than 0 and finite, not 0.0"),
            &format!("`{at}[0].scale`: must be [low, high]"),
        ],
    );
    transforms(
        "{name=normalize, mean=[0], std=[1]}, {name=resize, size=8, padding=2}",
        &[
            &format!("`{at}[0].name`: must be the last of its list"),
            &format!("`{at}[1].padding`: belongs to `random_crop`, but `name` is `resize`"),
        ],
    );
}

#[test]
fn a_wrong_entry_has_no_consequences() {
    let told = |list: &str| told(GOOD, &[&format!("data.transforms.val=[{list}]")]);
    for (list, key) in [
        ("{name=rezise, size=8}", "[0].name"),
        ("{name=color_jiter, hue=3}", "[0].name"),
        ("{name=2, size=8}", "[0].name"),
        ("{name=resize, size=big}", "[0].size"),
        ("{size=8}", "[0].name"),
        ("{name=resize, siez=8}", "[0].siez"),
        ("8", "[0]"),
    ] {
        let told = told(list);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with(&format!("`data.transforms.val{key}`")), "{told:?}");
    }
}

#[test]
fn a_users_transform_is_checked_as_ours() {
    let mut kinds = Kinds::default();
    kinds.transforms.add::<Invert>();
    let read = |entry: &str| {
        let word = format!("data.transforms.val=[{entry}]");
        load_text(Path::new("exp.toml"), GOOD, &[word], &kinds.vocabulary())
    };
    let options = read("{name=invert}").unwrap().experiment.data.transforms.val[0].options.clone();
    assert_eq!(options["high"], 255);
    let problems = read("{name=invert, hihg=3}").unwrap_err();
    let remedy = problems.iter().find_map(crate::config::Problem::remedy);
    assert_eq!(remedy, Some("did you mean `high`?"));
    let problems = read("{name=invert, high=0}").unwrap_err().to_string();
    assert!(problems.contains("must be from 1 to 255, not 0"), "{problems}");
    let page = kinds.vocabulary();
    assert!(page.reference().contains("# \"invert\": turns values around"));
    let transform = kinds.transforms.build(&crate::config::kind::Choice::of(&Invert { high: 9 }));
    let image = Pixels { channels: 1, height: 1, width: 2, data: vec![2, 9] };
    let area = Area::whole(image.size());
    assert_eq!(transform.unwrap().apply(image, area, None).unwrap().data, [7, 0]);
}
