//! Entries of lists, each of which chooses a kind.

use candle_core::{DType, Device, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::*;
use crate::config::kind::{Choice, Entry, Kind};
use crate::data::transform::{Area, Pixels, Transform};
use crate::model::layers::{Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::ForwardContext;
use crate::plan::{ComponentFacts, Flow, ModelPlan, Precision};
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
    assert_eq!(json, r#"[{"name":"random_crop","padding":0,"padding_mode":"constant","size":8}]"#);
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
            &format!("`{at}[0].scale`: must be [low, high]"),
            &format!("`{at}[0].ratio[0]`: must be greater than 0 and finite, not 0.0"),
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
fn what_changes_values_stands_after_normalize() {
    let at = "data.transforms.val";
    let normalize = "{name=normalize, mean=[0], std=[1]}";
    good(GOOD, &[&format!("{at}=[{normalize}, {{name=random_erasing}}]")]);
    transforms(
        &format!("{{name=random_erasing, scale=[0, 2]}}, {normalize}"),
        &[
            &format!("`{at}[0].name`: must stand at the end of its list, after `normalize`"),
            &format!("`{at}[0].scale`: must be [least, most], above 0 and at most 1"),
        ],
    );
}

#[test]
fn automatic_augmentation_is_checked() {
    let at = "data.transforms.val";
    transforms(
        "{name=rand_augment, magnitude=31}, {name=gaussian_blur, kernel_size=4}, {name=grayscale, \
         num_output_channels=2}",
        &[
            &format!("`{at}[0].magnitude`: must be less than `num_magnitude_bins`"),
            &format!("`{at}[1].kernel_size`: must be odd"),
            &format!("`{at}[2].num_output_channels`: must be 1 or 3"),
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
fn a_sink_is_a_name_or_a_table_of_name_and_options() {
    let tb = "{name=tensorboard, dir=tb}";
    let loaded = good(GOOD, &[&format!("logging.sinks=[csv, {tb}, {{name=jsonl}}]")]);
    let logging = serde_json::to_value(&loaded.experiment.logging).unwrap();
    let sinks = serde_json::to_string(&logging["sinks"]).unwrap();
    // What has no options is stored as it always was.
    assert_eq!(sinks, r#"["csv",{"name":"tensorboard","dir":"tb"},"jsonl"]"#);
    let stored = resolved(&loaded.experiment).unwrap();
    let again = load_text(Path::new("resolved.toml"), &stored, &[], vocabulary()).unwrap();
    assert_eq!(again.experiment.logging, loaded.experiment.logging);
    for (list, expected) in [
        (
            "[csv, excel]",
            "[1].name`: must be `jsonl`, `csv`, `tensorboard`, `curves`, `mlflow`, `wandb` or `command`, not `excel`",
        ),
        ("[{name=csv, dir=tb}]", "[0].dir`: belongs to `tensorboard`, but `name` is `csv`"),
        ("[{name=tensorboard, dri=tb}]", "[0].dri`: is not a key of an experiment"),
        ("[{name=tensorboard, dir='~/tb'}]", "[0].dir`: `~` and `$` are not expanded"),
        ("[{dir=tb}]", "[0].name`: is missing; there is no default"),
        ("[csv, jsonl, {name=csv}]", "`: names a sink twice"),
        ("[{name=wandb, project=' '}]", "[0].project`: must not be empty"),
        (
            "[{name=wandb, project=zoo/animals}]",
            "[0].project`: must not contain `/`, which W&B refuses; `project` and `entity` are keys of their own",
        ),
        ("[{name=wandb, entity='a#b'}]", "[0].entity`: must not contain `#`, which W&B refuses"),
        ("[{name=wandb, group=''}]", "[0].group`: must not be empty"),
        ("[3]", "[0]`: must be a table"),
        ("csv", "`: must be a list of names"),
    ] {
        check(&[&format!("logging.sinks={list}")], &[&format!("`logging.sinks{expected}")]);
    }
}

#[test]
fn the_schema_for_editors_takes_a_sink_as_a_name_or_a_table() {
    let schema = crate::config::json_schema(vocabulary());
    let choices = schema["definitions"]["sink"]["oneOf"].as_array().unwrap();
    assert!(choices.iter().any(|choice| choice["const"] == "csv"));
    let is_table =
        |choice: &&serde_json::Value| choice["properties"]["name"]["const"] == "tensorboard";
    let table = choices.iter().find(is_table).unwrap();
    assert_eq!(table["properties"]["dir"]["format"], "output-path");
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
    let transform = kinds.transforms.build(&Choice::of(&Invert { high: 9 }));
    let image = Pixels::new(1, [1, 2], vec![2, 9]);
    let area = Area::whole(image.size());
    assert_eq!(transform.unwrap().apply(image, area, None).unwrap().data, [7, 0]);
}

#[track_caller]
fn layers(list: &str, expected: &[&str]) {
    assert_eq!(told(GOOD, &[&format!("model={{name=graph, layers=[{list}]}}")]), expected);
}

#[test]
fn a_layer_is_checked_as_its_kind_at_any_depth() {
    let at = "model.layers[0]";
    layers(
        "{name=residual, layers=[{name=conv2d, kernel_size=0}], shortcut=[{name=dropout, p=1}]}",
        &[
            &format!("`{at}.layers[0].out_channels`: `conv2d` needs `out_channels`"),
            &format!("`{at}.layers[0].kernel_size`: must be from 1 to 8192, not 0"),
            &format!("`{at}.shortcut[0].p`: must be at least 0 and less than 1, not 1.0"),
        ],
    );
    layers(
        "{name=repeat, times=2, layers=[{name=relu}]}",
        &[&format!("`{at}.key`: `repeat` needs `key`")],
    );
    layers(
        "{name=sequential, layers=[{name=sequential, layers=[{name=rleu}]}]}",
        &[&format!("`{at}.layers[0].layers[0].name`: no layer is called `rleu`")],
    );
    layers(
        "{name=sequential, layers=[{name=relu, p=0.5}, {name=linear, out_features=0}]}",
        &[
            &format!(
                "`{at}.layers[0].p`: belongs to `attention`, `cross_attention`, `dropout` or \
                 `stochastic_depth`, but `name` is `relu`"
            ),
            &format!("`{at}.layers[1].out_features`: must be at least 1, not 0"),
        ],
    );
    layers(
        "{name=sequential, layers=[{name=conv2d, out_channels=2, kernel_size=1, init=zero}]}",
        &[&format!("`{at}.layers[0].init`: must be `torch` or `he_fan_out`, not `zero`")],
    );
}

#[test]
fn a_stored_graph_is_the_same_graph() {
    for name in ["graph_resnet18.toml", "graph_vit.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments").join(name);
        let before = load(&path, &[], vocabulary()).unwrap().experiment;
        let again = good(&resolved(&before).unwrap(), &[]).experiment;
        assert_eq!(before.model.layers, again.model.layers);
        assert!(changed_keys(&before, &again).is_empty());
    }
}

/// multiplies all values, in a user's program.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Scale {
    /// the factor.
    by: f64,
}

impl Kind for Scale {
    const NAME: &'static str = "scale";
}

impl Layer for Scale {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self { by: self.by }))
    }
}

impl Forward for Scale {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        x * self.by
    }
}

#[test]
fn a_users_layer_is_checked_planned_and_built_as_ours() {
    let mut kinds = Kinds::default();
    kinds.add_layer::<Scale>();
    let read = |entry: &str| {
        let word = format!("model={{name=graph, layers=[{entry}]}}");
        load_text(Path::new("exp.toml"), GOOD, &[word], &kinds.vocabulary())
    };
    let problems = read("{name=scale, yb=3}").unwrap_err();
    assert_eq!(
        problems.iter().find_map(crate::config::Problem::remedy),
        Some("did you mean `by`?")
    );
    let entries: Vec<Entry> = read("{name=scale, by=3}").unwrap().experiment.model.layers;
    let layers = kinds.layers(&entries, Flow::Vector(2), 2).unwrap();
    let graph = Choice { name: "graph".to_owned(), ..Choice::default() };
    let plan = ModelPlan { layers, ..ModelPlan::new(graph, &[2], 2) };
    let (model, _) = kinds.models.instantiate(&plan, 1).unwrap();
    let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
    let y = model.forward(&x, &ForwardContext::eval(Precision::Fp32)).unwrap();
    assert_eq!(y.to_vec2::<f32>().unwrap(), [[3.0, 3.0]]);
}

#[test]
fn layers_are_a_part_of_graph_only() {
    check(
        &["model.layers=[{name=relu}]"],
        &["`model.layers`: belongs to `graph`, but `name` is `resnet18`"],
    );
    check(&["model.name=graph"], &["`model.layers`: `graph` needs `layers`"]);
}
