//! Weights under the names of the library that they are for.

use std::borrow::Cow;
use std::collections::BTreeMap;

use safetensors::tensor::{SafeTensorError, TensorView};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::nn::Params;
use crate::nn::state_dict::{Header, is_conv1d, unwrapped};

/// A library of PyTorch models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// timm.
    Timm,
    /// torchvision.
    Torchvision,
    /// Hugging Face transformers, with a `config.json`.
    Transformers,
}

impl Library {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Timm, Self::Torchvision, Self::Transformers];

    /// Name in messages and in [`Builder::also_called`](crate::nn::Builder::also_called).
    pub const fn words(self) -> &'static str {
        match self {
            Self::Timm => "timm",
            Self::Torchvision => "torchvision",
            Self::Transformers => "transformers",
        }
    }
}

/// Names and layout of weights for a library.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Naming {
    /// GPT-2's layout: linear layers are (inputs, outputs), all layers have biases, and the output
    /// layer is the embedding, without a name of its own.
    pub is_gpt2: bool,
    /// The model's `config.json`.
    pub config: Option<Value>,
}

impl Naming {
    /// The model's own names and layout, with a description.
    pub fn with_config(config: Value) -> Self {
        Self { config: Some(config), is_gpt2: false }
    }

    /// The error for a library that does not have the model.
    pub fn unknown() -> String {
        "has no such model".to_owned()
    }
}

/// Weights in the names and layout of a library.
#[derive(Debug)]
pub struct ExportedWeights {
    /// A safetensors file.
    pub weights: Vec<u8>,
    /// `config.json`, if the library needs one.
    pub config: Option<Value>,
    pub library: Option<Library>,
}

impl ExportedWeights {
    /// Weights as ddprun has them.
    pub fn own(weights: &[u8]) -> Self {
        Self { weights: weights.to_vec(), config: None, library: None }
    }
}

/// The library whose names the tensors of a file have, if these are not the model's own.
pub(super) fn library_of(file: &Header, params: &Params) -> Option<Library> {
    let is_gpt2 = file.iter().any(|(key, held)| {
        let ours = params.parameters().iter().find(|ours| {
            is_conv1d(ours.name()) && ours.name().ends_with(&unwrapped(key)) && key.contains("attn")
        });
        ours.is_some_and(|ours| {
            let reversed: Vec<usize> = held.shape.iter().rev().copied().collect();
            ours.shape() != held.shape && ours.shape() == reversed
        })
    });
    if is_gpt2 {
        return Some(Library::Transformers);
    }
    let others: BTreeMap<&str, &str> =
        params.other_names().iter().map(|name| (&*name.other, name.library)).collect();
    let found = file.keys().find_map(|key| {
        let key = unwrapped(key);
        let module = || key.rsplit_once('.').and_then(|(module, _)| others.get(module));
        others.get(&*key).or_else(module).copied()
    })?;
    Library::ALL.into_iter().find(|library| library.words() == found)
}

/// A tensor under its name in the library.
struct RenamedTensor<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

/// Converts `weights`, a state dict of the model of `params`, to the names and layout of `library`.
pub(super) fn convert(
    weights: &[u8],
    params: &Params,
    library: Library,
    naming: Naming,
) -> Result<ExportedWeights, String> {
    let in_words = |error: SafeTensorError| error.to_string();
    let file = SafeTensors::deserialize(weights).map_err(in_words)?;
    let mut tensors: Vec<RenamedTensor<'_>> = Vec::new();
    let held = file.tensors();
    for (name, view) in &held {
        let is_alias = params.aliases().iter().any(|(alias, _)| alias == name);
        if naming.is_gpt2 && is_alias {
            continue;
        }
        let dtype = view.dtype();
        let shape = view.shape().to_vec();
        let bytes = view.data();
        let (name, other) = params.name_in(library.words(), name).unwrap_or((name.clone(), None));
        let shape = other.map_or(shape, <[usize]>::to_vec);
        let is_transposed = naming.is_gpt2 && is_conv1d(&name);
        let (shape, bytes) = match shape[..] {
            [rows, columns] if is_transposed => {
                (vec![columns, rows], Cow::Owned(transposed(bytes, rows, columns)))
            }
            _ => (shape, Cow::Borrowed(bytes)),
        };
        tensors.push(RenamedTensor { name, dtype, shape, bytes });
    }
    if naming.is_gpt2 {
        add_biases(&mut tensors);
    }
    let views = tensors.iter().map(|RenamedTensor { name, dtype, shape, bytes }| {
        Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes)?))
    });
    let views: Vec<_> = views.collect::<Result<_, SafeTensorError>>().map_err(in_words)?;
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let weights = safetensors::serialize(views, Some(metadata)).map_err(in_words)?;
    Ok(ExportedWeights { weights, config: naming.config, library: Some(library) })
}

/// Transposes a matrix of f32.
fn transposed(bytes: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    let values = bytes.as_chunks::<4>().0;
    let indices = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    indices.flat_map(|index| values[index]).collect()
}

/// Adds biases of zero to the layers of GPT-2 that have none, which changes no result.
fn add_biases(tensors: &mut Vec<RenamedTensor<'_>>) {
    let is_linear_or_norm =
        |name: &str| is_conv1d(name) || name.contains(".ln_") && name.ends_with(".weight");
    let missing: Vec<RenamedTensor<'_>> = tensors
        .iter()
        .filter(|tensor| is_linear_or_norm(&tensor.name))
        .filter_map(|tensor| {
            let name = format!("{}.bias", tensor.name.strip_suffix(".weight")?);
            let is_there = tensors.iter().any(|other| other.name == name);
            let width = *tensor.shape.last()?;
            (!is_there).then(|| RenamedTensor {
                name,
                dtype: Dtype::F32,
                shape: vec![width],
                bytes: vec![0; 4 * width].into(),
            })
        })
        .collect();
    tensors.extend(missing);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::model::Models;
    use crate::model::tests::plan;
    use crate::nn::state_dict::{Strict, load_state_dict_bytes, save_state_dict};
    use crate::plan::ModelPlan;

    fn with(mut plan: ModelPlan, options: &[(&str, Value)]) -> ModelPlan {
        for (key, value) in options {
            plan.kind.set(key, value);
        }
        plan
    }

    /// The model's weights, and the same for `library`.
    fn exported(plan: &ModelPlan, library: Library) -> Result<(Vec<u8>, ExportedWeights), String> {
        let models = Models::default();
        let (_, params) = models.instantiate(plan, 1).unwrap();
        let own = save_state_dict(&params).unwrap();
        let written = models.export_for(plan, Some(library), &own)?;
        Ok((own, written))
    }

    /// "name 3 4" of each tensor, without counters.
    fn tensors(weights: &[u8]) -> BTreeSet<String> {
        let file = SafeTensors::deserialize(weights).unwrap();
        let line = |(name, view): (String, TensorView<'_>)| {
            let sides: Vec<String> = view.shape().iter().map(ToString::to_string).collect();
            [vec![name], sides].concat().join(" ")
        };
        let is_counter = |line: &String| line.ends_with("num_batches_tracked");
        file.tensors().into_iter().map(line).filter(|line| !is_counter(line)).collect()
    }

    /// `tests/golden/other_names.py` has them from timm and torchvision themselves.
    #[test]
    fn weights_have_the_names_and_shapes_of_the_other_library() {
        let golden = include_str!("../../../../tests/golden/other_names.json");
        let golden: Value = serde_json::from_str(golden).unwrap();
        for (name, golden) in golden.as_object().unwrap() {
            if ["convnext_small", "convnext_base", "efficientnet_b1", "vit_base"]
                .contains(&name.as_str())
            {
                // As the smaller ones, with more of the same.
                continue;
            }
            let plan = plan(name, &[3, 32, 32], 10);
            let is_mobile = name.starts_with("mobilenet_v3");
            let plan = if is_mobile { with(plan, &[("norm_eps", json!(1e-5))]) } else { plan };
            let library =
                if name.starts_with("vit") { Library::Torchvision } else { Library::Timm };
            let (own, written) = exported(&plan, library).unwrap();
            let expected = golden["tensors"].as_array().unwrap();
            let expected: BTreeSet<String> =
                expected.iter().map(|line| line.as_str().unwrap().to_owned()).collect();
            assert_eq!(tensors(&written.weights), expected, "{name}");
            // They come back as they were.
            let models = Models::default();
            let (_, params) = models.instantiate(&plan, 2).unwrap();
            let files = [("x".into(), written.weights)];
            load_state_dict_bytes(&params, "x".as_ref(), &files, Strict::All).unwrap();
            assert!(save_state_dict(&params).unwrap() == own, "{name}");
        }
    }

    #[test]
    fn a_library_that_computes_otherwise_or_has_no_such_model_is_refused() {
        let mobile = plan("mobilenet_v3_small", &[3, 32, 32], 10);
        let timms = with(mobile.clone(), &[("norm_eps", json!(1e-5))]);
        let refused = |plan: &ModelPlan, library| exported(plan, library).unwrap_err();
        let eps = refused(&timms, Library::Torchvision);
        assert!(eps.starts_with("torchvision has batch norms with eps = 0.001"), "{eps}");
        assert!(refused(&mobile, Library::Timm).starts_with("timm has batch norms"), "{eps}");
        let models = Models::default();
        let usual = |plan: &ModelPlan| {
            let (_, params) = models.instantiate(plan, 1).unwrap();
            models.export_for(plan, None, &save_state_dict(&params).unwrap()).unwrap().library
        };
        assert_eq!(usual(&timms), Some(Library::Timm));
        assert_eq!(usual(&mobile), Some(Library::Torchvision));
        let mlp = plan("mlp", &[4], 3);
        assert_eq!(refused(&mlp, Library::Timm), "timm has no such model");
        assert_eq!(usual(&mlp), None);
        let small = plan("resnet8", &[3, 32, 32], 10);
        assert!(refused(&small, Library::Timm).contains("no residual network with such a stem"));
        assert_eq!(usual(&plan("resnet18", &[3, 32, 32], 10)), Some(Library::Torchvision));
        let wide = plan("vit_tiny", &[3, 32, 64], 10);
        assert_eq!(refused(&wide, Library::Torchvision), "torchvision takes square images only");
    }

    #[test]
    fn gpt2_goes_back_to_transformers_turned_and_with_all_its_positions() {
        let options = [
            ("n_layers", json!(1)),
            ("n_heads", json!(2)),
            ("d_model", json!(6)),
            ("n_positions", json!(16)),
        ];
        for bias in [false, true] {
            let mut plan = with(plan("gpt", &[8], 11), &options);
            plan.target = vec![8];
            plan.kind.set("bias", bias);
            let (own, written) = exported(&plan, Library::Transformers).unwrap();
            let found = tensors(&written.weights);
            let expected = [
                "transformer.wpe.weight 16 6",
                "transformer.h.0.attn.c_attn.weight 6 18",
                "transformer.h.0.attn.c_attn.bias 18",
                "transformer.h.0.mlp.c_proj.weight 24 6",
                "transformer.ln_f.bias 6",
            ];
            for line in expected {
                assert!(found.contains(line), "{line}: {found:?}");
            }
            assert_eq!(found.len(), 16, "without a second name of the embedding: {found:?}");
            let config = written.config.unwrap();
            assert_eq!((&config["n_positions"], &config["n_embd"]), (&json!(16), &json!(6)));
            if bias {
                let models = Models::default();
                let (_, params) = models.instantiate(&plan, 2).unwrap();
                let files = [("x".into(), written.weights)];
                load_state_dict_bytes(&params, "x".as_ref(), &files, Strict::All).unwrap();
                assert!(save_state_dict(&params).unwrap() == own);
            }
        }
    }

    #[test]
    fn the_names_of_a_file_say_for_which_library_it_is() {
        let models = Models::default();
        let of = |plan: ModelPlan, library| {
            let (_, written) = exported(&plan, library).unwrap();
            let mut file = tempfile::NamedTempFile::new().unwrap();
            std::io::Write::write_all(&mut file, &written.weights).unwrap();
            let pretrained = Some(file.path().to_owned());
            models.library_of_weights(&ModelPlan { pretrained, ..plan })
        };
        let vit = || plan("vit_tiny", &[3, 32, 32], 10);
        assert_eq!(of(vit(), Library::Torchvision), Some(Library::Torchvision));
        assert_eq!(of(vit(), Library::Timm), None, "the model's own");
        let mut gpt =
            with(plan("gpt", &[8], 11), &[("n_layers", json!(1)), ("d_model", json!(12))]);
        gpt.target = vec![8];
        assert_eq!(of(gpt, Library::Transformers), Some(Library::Transformers));
    }
}
