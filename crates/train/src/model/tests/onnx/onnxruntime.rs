//! Models as ONNX: their structure, and their numbers by onnxruntime. Packages of other models use it
//! too.

use std::path::Path;
use std::process::Command;

use candle_core::{Device, Tensor};
use serde_json::{Value as Json, json};

use crate::model::{Model, Models};
use crate::nn::{ForwardContext, Params};
use crate::onnx::{DimensionValue, GraphProto, ModelProto, OPSET, ValueInfoProto};
use crate::plan::{Flow, ModelPlan, Precision};
use crate::skipped::python;

/// Numbers without a pattern, from -1 to 1.
pub(crate) fn numbers(n: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| ((i as f64 + 1.0) * 12.9898 + seed as f64 * 78.233).sin() * 43_758.547;
    (0..n).map(|i| (2.0 * (number(i) - number(i).floor()) - 1.0) as f32).collect()
}

/// Moves all weights and statistics away from where they begin, as training does.
pub(crate) fn stir(params: &Params) {
    let parameters = params.parameters().iter().map(|param| (param.name(), param.var().unwrap()));
    let buffers = params.buffers().iter().map(|buffer| (buffer.name(), buffer.var().unwrap()));
    for (i, (name, var)) in parameters.chain(buffers).enumerate() {
        let noise = numbers(var.elem_count(), i);
        let noise = Tensor::from_vec(noise, var.dims(), &Device::Cpu).unwrap();
        let scale = if name.ends_with("running_var") { 0.5 } else { 0.05 };
        var.set(&(var.as_tensor() + (noise * scale).unwrap()).unwrap()).unwrap();
    }
}

/// A model with stirred weights.
fn stirred(models: &Models, plan: &ModelPlan) -> (Box<dyn Model>, Params) {
    let (model, params) = models.instantiate(plan, 3).unwrap();
    stir(&params);
    (model, params)
}

/// Inputs and outputs of the model for `n` samples.
fn run(plan: &ModelPlan, model: &dyn Model, graph: &GraphProto, n: usize) -> Json {
    let is_text = graph.input[0].name == "input_ids";
    let shape = [&[n], &plan.input[..]].concat();
    let count = shape.iter().product();
    let values: Vec<f32> = if is_text {
        (0..count).map(|i| ((i * 7 + n) % plan.outputs) as f32).collect()
    } else {
        samples(plan, n, numbers(count, n))
    };
    let x = Tensor::from_vec(values.clone(), &shape[..], &Device::Cpu).unwrap();
    let y = model.forward(&x, &ForwardContext::eval(Precision::Fp32)).unwrap();
    assert_eq!(y.rank(), dims(&graph.output[0]).len());
    let dtype = if is_text { "int64" } else { "float32" };
    let feed =
        json!({"name": graph.input[0].name, "dtype": dtype, "shape": shape, "values": values});
    let shape = y.dims().to_vec();
    json!({"feeds": [feed], "shape": shape, "expected": y.flatten_all().unwrap().to_vec1::<f32>().unwrap()})
}

/// Samples of a kind whose numbers mean something: categories of a table, lengths of recordings.
fn samples(plan: &ModelPlan, n: usize, mut values: Vec<f32>) -> Vec<f32> {
    let width = values.len() / n;
    for (sample, row) in values.chunks_exact_mut(width).enumerate() {
        if let Some(&Flow::Padded([steps, bands, _])) = plan.layers.first().map(|l| &l.input) {
            row[width - bands] = (steps - 5 * sample) as f32;
        }
        let mut start = width - plan.one_hot.iter().sum::<usize>();
        for &categories in &plan.one_hot {
            row[start..start + categories].fill(0.0);
            // The last sample has none that was seen in training.
            if sample + 1 < n || n == 1 {
                row[start + sample % categories] = 1.0;
            }
            start += categories;
        }
    }
    values
}

pub(crate) fn dims(info: &ValueInfoProto) -> Vec<DimensionValue> {
    let shape = info.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().shape.as_ref();
    shape.unwrap().dim.iter().map(|dim| dim.value.clone().unwrap()).collect()
}

/// Checks without Python: every operand is made before it is used, and initializers are those of
/// the state dict, all but the ones that evaluation does not use.
pub(crate) fn check_structure(graph: &GraphProto, params: &Params, unused: &[&str]) {
    let names = graph.initializer.iter().map(|tensor| tensor.name.as_str());
    let mut known: Vec<&str> = names.chain(graph.input.iter().map(|x| x.name.as_str())).collect();
    for node in &graph.node {
        let missing = node.input.iter().find(|name| !name.is_empty() && !known.contains(&&***name));
        assert_eq!(missing, None, "{}", node.name);
        known.extend(node.output.iter().map(String::as_str));
    }
    assert!(known.contains(&"output"));
    let parameters = params.parameters().iter().map(|param| (param.name(), param.var().unwrap()));
    let buffers = params.buffers().iter().map(|buffer| (buffer.name(), buffer.var().unwrap()));
    for (name, var) in parameters.chain(buffers) {
        let Some(tensor) = graph.initializer.iter().find(|tensor| tensor.name == name) else {
            assert!(unused.iter().any(|part| name.contains(part)), "{name} is missing");
            continue;
        };
        let shape: Vec<i64> = var.dims().iter().map(|&dim| dim as i64).collect();
        assert_eq!(tensor.dims, shape, "{name}");
        let adapter = format!("{}.lora_A.weight", name.trim_end_matches(".weight"));
        if params.parameters().iter().any(|param| param.name() == adapter) {
            continue;
        }
        let values = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(tensor.raw_data == bytes, "{name}");
    }
}

/// Writes the model and what it answers to one sample and to three.
pub(crate) fn write(
    folder: &Path,
    file: &str,
    plan: &ModelPlan,
    models: &Models,
    unused: &[&str],
) -> Json {
    let (model, params) = stirred(models, plan);
    let bytes = models.onnx(plan, model.as_ref()).unwrap();
    let read = ModelProto::read(&bytes).unwrap();
    assert_eq!(read.opset_import[0].version, OPSET);
    let graph = read.graph.unwrap();
    let name = |dim: &DimensionValue| matches!(dim, DimensionValue::Name(name) if name == "batch");
    assert!(graph.input.iter().chain(&graph.output).all(|info| name(&dims(info)[0])), "{file}");
    check_structure(&graph, &params, unused);
    crate::files::write_atomic(&folder.join(file), &bytes).unwrap();
    let mut runs: Vec<Json> = [1, 3].map(|n| run(plan, model.as_ref(), &graph, n)).into();
    if dims(&graph.input[0]).get(1) == Some(&DimensionValue::Name("sequence".to_owned())) {
        let shorter = ModelPlan { input: vec![plan.input[0] - 2], ..plan.clone() };
        runs.push(run(&shorter, model.as_ref(), &graph, 2));
    }
    json!({"file": file, "runs": runs})
}

/// Compares what was written with what onnxruntime makes of it.
pub(crate) fn compare(folder: &Path, cases: &[Json]) {
    let Some(python) = python("onnx, onnxruntime") else { return };
    let text = serde_json::to_vec(cases).unwrap();
    crate::files::write_atomic(&folder.join("cases.json"), &text).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/src/model/export/check.py");
    let output = Command::new(python).arg(script).arg(folder).output().unwrap();
    let [said, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said}{error}");
}
