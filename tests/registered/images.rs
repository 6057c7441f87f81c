//! A transform, a layer of `graph` and a sink of a user's program.
#![expect(clippy::expect_used, reason = "a test may stop")]

use std::path::Path;

use candle_core::{Device, Tensor};
use ddprun::config::kind::Choice;
use ddprun::config::{Loaded, load_text};
use ddprun::data::transform::{Area, Pixels};
use ddprun::data::{self, SurveyRequest};
use ddprun::kinds::Kinds;
use ddprun::nn::{ForwardContext, change_values};
use ddprun::plan::{Facts, Plan, Precision, Targets};
use ddprun::rng::{Key, Purpose};

use crate::{custom_layer, custom_sink, custom_transform};

/// An example with one word of it changed, or the page of what is wrong with it.
fn load(name: &str, change: (&str, &str), kinds: &Kinds) -> Result<Loaded, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let text = std::fs::read_to_string(&path).expect("the example");
    assert!(text.contains(change.0), "{} is not in {name}", change.0);
    let text = text.replacen(change.0, change.1, 1);
    load_text(&path, &text, &[], &kinds.vocabulary()).map_err(|problems| problems.page(false, 80))
}

#[track_caller]
fn refused(name: &str, kinds: &Kinds, change: (&str, &str), expected: &str) {
    load(name, ("", ""), kinds).expect("the example");
    let page = load(name, change, kinds).expect_err(expected);
    assert!(page.contains(expected) && page.contains("^^^"), "{page}");
}

#[test]
fn a_slip_in_the_options_of_a_users_transform_layer_and_sink_is_shown_in_the_file() {
    let kinds = custom_transform::kinds();
    let refuse = |change, expected| refused("custom_transform.toml", &kinds, change, expected);
    refuse(("share =", "shar ="), "did you mean `share`?");
    refuse(("share = 0.1", "share = 1.5"), "must be from 0 to 1, not 1.5");
    refuse(("\"salt_and_pepper\"", "\"salt_and_peper\""), "did you mean `salt_and_pepper`?");

    let kinds = custom_layer::kinds();
    let refuse = |change, expected| refused("custom_layer.toml", &kinds, change, expected);
    refuse(("key = \"response\"", "epss = 1e-5"), "did you mean `eps`?");
    refuse(("key = \"response\"", "eps = -1.0"), "must be at least 0 and finite, not -1.0");
    refuse(("\"global_response_norm\"", "\"global_respons_norm\""), "`global_response_norm`?");

    let kinds = custom_sink::kinds();
    let refuse = |change, expected| refused("custom_sink.toml", &kinds, change, expected);
    refuse(("\"markdown\"", "\"markdwn\""), "did you mean `markdown`?");
    refuse(("decimals =", "decimal ="), "did you mean `decimals`?");
    refuse(("decimals = 3", "decimals = 100"), "must be from 0 to 17, not 100");
}

#[test]
fn the_reference_page_explains_a_users_transform_layer_and_sink() {
    for (kinds, words) in [
        (custom_transform::kinds(), "share of the pixels that are replaced"),
        (custom_layer::kinds(), "Global response normalisation (Woo et al. 2023"),
        (custom_sink::kinds(), "a table in Markdown, a row for each evaluation"),
    ] {
        let vocabulary = kinds.vocabulary();
        assert!(vocabulary.reference().replace("\n# ", " ").contains(words), "{words}");
    }
}

#[test]
fn a_users_transform_draws_from_the_stream_of_its_sample() {
    let kinds = custom_transform::kinds();
    let loaded = load("custom_transform.toml", ("", ""), &kinds).expect("the example");
    let transforms = &loaded.experiment.data.transforms.train;
    let transform = kinds.transforms.build(&transforms[0].choice()).expect("it is registered");
    let gray = Pixels::new(3, [50, 40], vec![128; 6000]);
    let apply = |sample: Option<u64>| {
        let mut stream = sample.map(|sample| Key::new(7, Purpose::Augment, 0, sample).stream());
        let whole = Area::whole(gray.size());
        transform.apply(gray.clone(), whole, stream.as_mut()).expect("an image")
    };
    assert_eq!(apply(None), gray);
    assert_eq!(apply(Some(1)), apply(Some(1)));
    assert_ne!(apply(Some(1)), apply(Some(2)));
    let changed = apply(Some(1)).data.iter().filter(|&&value| value != 128).count();
    assert!((480..720).contains(&changed), "a tenth of 6,000 values, not {changed}");
}

/// What there is to know of an experiment on generated images, which are only counted.
fn facts(loaded: &Loaded, kinds: &Kinds) -> Facts {
    let data = &loaded.experiment.data;
    let choice = Choice { name: data.name.clone(), options: data.options.clone() };
    let request = SurveyRequest::new("custom", 0, Targets::Classes);
    let data = data::survey(&kinds.data, &choice, &request).expect("a survey");
    Facts { cores: 2, ..Facts::of(data) }
}

fn planned(loaded: &Loaded, kinds: &Kinds) -> Plan {
    Plan::new(loaded, &facts(loaded, kinds), kinds).expect("a plan")
}

#[test]
fn a_users_layer_is_planned_and_built_between_ddpruns_own() {
    let kinds = custom_layer::kinds();
    let loaded = load("custom_layer.toml", ("", ""), &kinds).expect("the example");
    let plan = planned(&loaded, &kinds);
    let layer = &plan.model.layers[2];
    assert_eq!((layer.path.as_str(), layer.own_parameters), ("response", 32));
    let parts = kinds.components(&plan, &Device::Cpu).expect("its kinds");
    let names: Vec<&str> = parts.params.parameters().iter().map(ddprun::nn::Param::name).collect();
    assert_eq!(names[2..4], ["response.gamma", "response.beta"]);

    let pool = "name = \"global_avg_pool\"\n";
    let change = format!("{pool}[[model.layers]]\nname = \"global_response_norm\"\n");
    let vector = load("custom_layer.toml", (pool, &change), &kinds).expect("a graph");
    let misfit = Plan::new(&vector, &facts(&vector, &kinds), &kinds);
    let misfit = misfit.expect_err("a vector").page(false, 80);
    assert!(misfit.contains("needs an image, but gets a vector of 32"), "{misfit}");
}

#[test]
fn a_users_layer_computes_what_its_paper_says() {
    let kinds = custom_layer::kinds();
    let loaded = load("custom_layer.toml", ("", ""), &kinds).expect("the example");
    let plan = planned(&loaded, &kinds);
    let layer = ddprun::plan::ModelPlan {
        layers: vec![plan.model.layers[2].clone(), plan.model.layers[5].clone()],
        ..plan.model
    };
    let (model, params) = kinds.models.instantiate(&layer, 0).expect("two layers");
    // The first of 16 channels is (3, 4, 0, 0), whose norm is 5; the mean norm is 5 / 16.
    let mut values = vec![0.0_f32; 64];
    values[..2].copy_from_slice(&[3.0, 4.0]);
    let x = Tensor::from_vec(values, (1, 16, 2, 2), &Device::Cpu).expect("an image");
    let mean = |gamma: f32| {
        let gammas = params.parameters()[0].var().expect("values");
        change_values(gammas, |values| values.fill(gamma)).expect("f32");
        let y = model.forward(&x, &ForwardContext::eval(Precision::Fp32)).expect("an answer");
        y.flatten_all().and_then(|y| y.to_vec1::<f32>()).expect("numbers")[0]
    };
    assert!((mean(0.0) - 1.75).abs() < 1e-5, "{}", mean(0.0));
    assert!((mean(0.5) - 1.75 * (1.0 + 0.5 * 16.0)).abs() < 1e-3, "{}", mean(0.5));
}
