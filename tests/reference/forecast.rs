//! Forecasters against their originals: counts, keys, outputs, losses, gradients, trajectories.
//!
//! `golden/timebridge.json` comes from `TimeBridge` in PyTorch (f64; the steps on `ETTh1` in f32),
//! `golden/forecast_peers.json` from plain Python; the programs stand beside them. Weights and
//! inputs are functions of their names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::golden::{
    Collected, check_sum, fill, filled, model_plan, near, near_summary, number, with,
};
use crate::steps::{Gradients, Steps};
use candle_core::{Device, Result, Tensor};
use ddprun::config::values::SplitRule;
use ddprun::data::loader::{Loader, Request, Settings};
use ddprun::data::{CsvForecast, SurveyRequest, Transforms};
use ddprun::model::{Model, Models};
use ddprun::nn::{ForwardContext, Params};
use ddprun::ops::{self, GradientSink};
use ddprun::optim::Adam;
use ddprun::plan::{
    DataPlan, Modality, ModelPlan, OnBadSample, Precision, Sampler, SourcePlan, SplitPlan, Targets,
};
use ddprun::rng::{Key, Purpose};
use serde_json::{Value, json};
use test_support::skipped::skipped;

const ALPHA: f64 = 0.35;

fn timebridge() -> Value {
    serde_json::from_str(include_str!("../golden/timebridge.json")).unwrap()
}

/// A forecaster of `series` series with 4 features of the date.
fn plan(name: &str, (seen, next, series): (usize, usize, usize), sizes: &Value) -> ModelPlan {
    let (input, target) = (vec![seen, series + 4], vec![next, series]);
    with(model_plan(name, series, &input, target), sizes)
}

fn small() -> Value {
    json!({
        "d_model": 16, "n_heads": 4, "d_ff": 32, "period": 12, "num_p": 3, "stable_len": 3, "ia_layers": 1,
        "pd_layers": 1, "ca_layers": 1
    })
}

fn tiny() -> ModelPlan {
    plan("timebridge", (96, 24, 7), &small())
}

/// Values in [-1, 1) that depend on the name alone, in f32.
fn input(name: &str, dims: &[usize]) -> Tensor {
    let values: Vec<f32> =
        fill(name, dims.iter().product()).into_iter().map(|u| u as f32).collect();
    Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
}

/// Series and features of the date side by side.
fn window(series: &Tensor, marks: &Tensor) -> Tensor {
    Tensor::cat(&[series, &(marks * 0.5).unwrap()], 2).unwrap()
}

type LossOf = fn(&Tensor, &Tensor) -> Result<Tensor>;

fn both(y: &Tensor, target: &Tensor) -> Result<Tensor> {
    ops::time_frequency(y, target, ALPHA)
}

/// One pass of training: output, loss and gradients.
fn pass(
    model: &dyn Model,
    params: &Params,
    [x, target]: [&Tensor; 2],
    loss: LossOf,
) -> (Tensor, f64, Gradients) {
    let collected = Arc::new(Collected::default());
    let sink: Arc<dyn GradientSink> = collected.clone();
    params.begin_pass(Some(&sink));
    let key = Key::new(1, Purpose::Dropout, 0, 0);
    let y = model.forward(x, &ForwardContext::train(key, Precision::Fp32)).unwrap();
    let loss = loss(&y, target).unwrap();
    loss.backward().unwrap();
    params.end_pass();
    (y.detach(), f64::from(loss.to_scalar::<f32>().unwrap()), collected.by_index())
}

#[test]
fn timebridge_equals_pytorch() {
    let golden = &timebridge()["tiny"];
    let (model, params) = filled(&tiny());
    assert_eq!(params.elem_count(), 9172);
    let x = window(&input("input.x", &[2, 96, 7]), &input("input.mark", &[2, 96, 4]));
    let target = input("input.y", &[2, 24, 7]);
    let (y, loss, gradients) = pass(&*model, &params, [&x, &target], both);
    near_summary("output", &y, &golden["output"]);
    near("loss", loss, number(golden, "loss"), 1e-5);
    let time = ops::mae(&y, &target).unwrap().to_scalar::<f32>().unwrap();
    near("time part", f64::from(time), number(golden, "t_loss"), 1e-5);
    let frequency = ops::time_frequency(&y, &target, 1.0).unwrap().to_scalar::<f32>().unwrap();
    near("frequency part", f64::from(frequency), number(golden, "f_loss"), 1e-5);

    let expected = golden["grads"].as_object().unwrap();
    for (index, param) in params.parameters().iter().enumerate() {
        let name = param.name();
        let Some(gradient) = gradients.get(&index) else {
            assert!(name.contains("norm0."), "{name} has no gradient");
            continue;
        };
        let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let allowed = (1e-3 * number(&expected[name], "l2")).max(1e-6);
        near(name, l2, number(&expected[name], "l2"), allowed);
        near(name, check_sum(gradient), number(&expected[name], "check"), allowed);
    }
}

#[test]
fn twenty_steps_of_timebridge_equal_pytorch() {
    let (model, params) = filled(&tiny());
    let adam = Adam::default();
    let mut steps = Steps::new(&params, adam, 1e-3, (0.0, f64::INFINITY));
    let golden = timebridge();
    let losses = golden["tiny"]["adam_lr1e-3_losses_20_steps"].as_array().unwrap();
    assert_eq!(losses.len(), 20);
    for (step, expected) in losses.iter().enumerate() {
        let name = |what: &str| format!("step{step}.{what}");
        let series = input(&name("x"), &[2, 96, 7]);
        let x = window(&series, &input(&name("mark"), &[2, 96, 4]));
        let noise = (input(&name("y"), &[2, 24, 7]) * 0.1).unwrap();
        let target = ((series.narrow(1, 0, 24).unwrap() * 0.5).unwrap() + noise).unwrap();
        let (_, loss, gradients) = pass(&*model, &params, [&x, &target], both);
        near(&name("loss"), loss, expected.as_f64().unwrap(), 1e-5);
        steps.step(&params, &gradients);
    }
}

#[test]
fn parameters_and_keys_of_timebridge_are_the_authors() {
    let golden = timebridge();
    // Series, period, num_p, d_model, d_ff, heads, layers of each kind.
    let settings: [(&str, usize, [usize; 5], [usize; 3]); 9] = [
        ("ETTh1", 7, [24, 30, 128, 128, 8], [3, 1, 0]),
        ("ETTh2", 7, [48, 15, 128, 128, 4], [3, 1, 0]),
        ("ETTm1", 7, [48, 6, 64, 128, 4], [3, 1, 0]),
        ("ETTm2", 7, [48, 15, 64, 128, 4], [3, 1, 0]),
        ("weather", 21, [48, 12, 128, 128, 8], [1, 1, 1]),
        ("Solar", 137, [48, 12, 128, 128, 8], [1, 1, 1]),
        ("electricity", 321, [24, 4, 512, 512, 32], [1, 1, 2]),
        ("traffic", 862, [24, 8, 512, 512, 64], [1, 1, 3]),
        ("exchange", 8, [24, 30, 128, 128, 8], [3, 1, 0]),
    ];
    let describe = |seen, next, series, sizes: [usize; 5], layers: [usize; 3]| {
        let [period, num_p, d_model, d_ff, n_heads] = sizes;
        let [integrated, sampling, cointegrated] = layers;
        let sizes = json!({
            "period": period, "num_p": num_p, "d_model": d_model, "d_ff": d_ff, "n_heads": n_heads, "stable_len": 2,
            "ia_layers": integrated, "pd_layers": sampling, "ca_layers": cointegrated
        });
        Models::default().describe(&plan("timebridge", (seen, next, series), &sizes)).unwrap()
    };
    for (data, series, sizes, layers) in settings {
        for seen in [720, 96] {
            let mut sizes = sizes;
            if sizes[1] == 720 / sizes[0] {
                // As many patches as there are.
                sizes[1] = seen / sizes[0];
            }
            for next in [96, 192, 336, 720] {
                let facts = describe(seen, next, series, sizes, layers);
                let expected = &golden["param_counts"][format!("{data}_in{seen}")];
                let found: usize = facts.lengths().sum();
                assert_eq!(expected[next.to_string()], found, "{data}, {seen} to {next}");
            }
        }
    }
    let expected: Vec<(String, Vec<usize>)> =
        serde_json::from_value(golden["traffic_96_keys"].clone()).unwrap();
    let (_, series, sizes, layers) = settings[7];
    assert_eq!(expected.len(), 114);
    assert_eq!(describe(720, 96, series, sizes, layers).parameters, expected);
}

/// The first 20 steps on the real table, in the checkout or beside it.
#[test]
fn twenty_steps_on_etth1_equal_pytorch_where_the_table_is() {
    let folders = ["data/forecast", "../shared/data/forecast"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = folders.iter().map(|folder| root.join(folder).join("ETTh1.csv"));
    let Some(file) = files.find(|file| file.exists()) else {
        return skipped("the table `data/forecast/ETTh1.csv`");
    };
    equal_steps(file, &timebridge()["etth1"], (720, 96), 64);
}

/// The same on a table that is written here: hours of twenty months of seven series, in tenths.
#[test]
fn twenty_steps_on_windows_of_a_table_equal_pytorch() {
    let start = jiff::civil::date(2016, 7, 1).at(0, 0, 0, 0);
    let row = |hour: i64| {
        let date = start.checked_add(jiff::Span::new().hours(hour)).unwrap();
        let tenths =
            (0..7).map(|c| hour * (17 + 6 * c) % 997 - 400 + hour / 24 * (3 + c) % 53 * 10);
        let values: Vec<String> = tenths.map(|it| format!("{:.1}", it as f64 / 10.0)).collect();
        format!("{},{}\n", date.strftime("%Y-%m-%d %H:%M:%S"), values.join(","))
    };
    let rows: String = (0..14_400).map(row).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hours.csv");
    let text = format!("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n{rows}");
    ddprun::internals::files::write_atomic(&file, text.as_bytes()).unwrap();
    equal_steps(file, &timebridge()["drawn"], (96, 24), 8);
}

/// The steps of a `TimeBridge` on windows of the table `file`, in batches of so many.
fn equal_steps(file: PathBuf, golden: &Value, (seen, ahead): (usize, usize), batch: usize) {
    let table = CsvForecast { split: SplitRule::EttHour, ..CsvForecast::new(file, seen, ahead) };
    let n_train = 8640 - seen - ahead + 1;
    let data = DataPlan {
        source: SourcePlan::new("csv_forecast", Modality::Series),
        n_train,
        n_val: 2880 - ahead + 1,
        n_test: 2880 - ahead + 1,
        notes: vec![],
        classes: vec![],
        target_columns: Vec::new(),
        token_bytes: Vec::new(),
        split: SplitPlan::NONE,
        aug_repeats: 1,
        class_weights: Vec::new(),
        subset_of: None,
        sampler: Sampler::Shards,
        shuffle: false,
        drop_last: true,
        num_workers: 0,
        prefetch_factor: 1,
        on_bad_sample: OnBadSample::Error,
        max_bad_fraction: 0.1,
        train_transforms: vec![],
        val_transforms: vec![],
        mixup: None,
        pad_to_longest: false,
    };
    let request = SurveyRequest::new("x", 0, Targets::Numbers);
    let windows =
        ddprun::data::open(&table, &data, &request, &Transforms::default()).unwrap().train;
    assert_eq!(windows.len(), n_train);
    let sizes = json!({
        "d_model": 128, "n_heads": 8, "d_ff": 128, "period": 24, "num_p": seen / 24, "stable_len": 6, "ia_layers": 3,
        "pd_layers": 1, "ca_layers": 0
    });
    let (model, params) = filled(&plan("timebridge", (seen, ahead, 7), &sizes));
    let adam = Adam::default();
    let mut steps = Steps::new(&params, adam, 2e-4, (0.0, f64::INFINITY));
    for (step, expected) in golden["losses_20_steps_f32"].as_array().unwrap().iter().enumerate() {
        let at = |i: usize| (((step * batch + i) * 37) % n_train) as u32;
        let samples = (0..batch).map(at).collect();
        let request = Request { samples, epoch: None, ..Request::default() };
        let settings = Settings::new(&data, 0);
        let mut loader =
            Loader::start(windows.clone(), std::iter::once(request), settings).unwrap();
        let batch = loader.next().unwrap().unwrap().batch;
        let (_, loss, gradients) = pass(&*model, &params, [&batch.inputs, &batch.targets], both);
        near(&format!("loss of step {step}"), loss, expected.as_f64().unwrap(), 1e-3);
        steps.step(&params, &gradients);
    }
}

/// The peers on windows of 24 steps of 3 series, against the program beside the numbers.
fn check_peer(name: &str) {
    let golden: Value =
        serde_json::from_str(include_str!("../golden/forecast_peers.json")).unwrap();
    let golden = &golden[name];
    let sizes = json!({ "d_model": 8, "n_heads": 2, "d_ff": 16, "n_layers": 2, "patch_len": 8, "stride": 4 });
    let options = serde_json::from_value(sizes).unwrap();
    let sizes = json!(Models::default().with_options(name, &options).options);
    let (model, params) = filled(&plan(name, (24, 6, 3), &sizes));
    let keys: Vec<(String, Vec<usize>)> = serde_json::from_value(golden["keys"].clone()).unwrap();
    let parameters = params.parameters().iter();
    let found: Vec<_> = parameters.map(|p| (p.name().to_owned(), p.shape().to_vec())).collect();
    assert_eq!(found, keys);
    let x = window(&input("input.x", &[2, 24, 3]), &input("input.mark", &[2, 24, 4]));
    let target = input("input.y", &[2, 6, 3]);
    let (y, loss, gradients) = pass(&*model, &params, [&x, &target], ops::mse);
    near_summary(name, &y, &golden["output"]);
    near(name, loss, number(golden, "loss"), 1e-5);
    for (index, (key, _)) in keys.iter().enumerate() {
        let gradient = &gradients[&index];
        let l2 = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let expected = number(&golden["gradient_checks"], key);
        near(key, check_sum(gradient), expected, (1e-3 * l2).max(1e-6));
    }
}

#[test]
fn dlinear_equals_its_definition() {
    check_peer("dlinear");
    let count = |seen| {
        let plan = plan("dlinear", (seen, 96, 7), &json!({}));
        Models::default().describe(&plan).unwrap().lengths().sum::<usize>()
    };
    assert_eq!([count(96), count(336)], [18_624, 64_704]);
}

#[test]
fn itransformer_equals_its_definition() {
    check_peer("itransformer");
}

#[test]
fn patchtst_equals_its_definition() {
    check_peer("patchtst");
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_their_keys() {
    let refused = |plan: &ModelPlan| Models::default().describe(plan).unwrap_err();
    let bridge = |change: Value| refused(&with(tiny(), &change));
    let error = bridge(json!({ "n_heads": 5 }));
    assert!(error.contains("`d_model` = 16 cannot be divided among `n_heads` = 5"), "{error}");
    let error = bridge(json!({ "period": 36 }));
    assert!(error.contains("`seq_len` = 96 is not a multiple of `period` = 36"), "{error}");
    let patches = json!({ "patch_len": 200, "stride": 8 });
    let error = refused(&plan("patchtst", (96, 24, 7), &patches));
    assert!(error.contains("a `patch_len` of 200 is longer than `seq_len` = 96"), "{error}");
    let images = ModelPlan { input: vec![3, 8, 8], target: vec![], ..tiny() };
    let error = Models::default().describe(&images).unwrap_err();
    assert!(error.contains("use `data.name = \"csv_forecast\"`"), "{error}");
}
