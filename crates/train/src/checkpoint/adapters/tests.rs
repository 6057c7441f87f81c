//! Adapters that are written and come back.

use super::*;
use crate::nn::state_dict::{load_adapters, save_state_dict};
use crate::nn::{Adapted, Builder, Init, LoraConfig, Params};

/// Two layers (4, 6) with adapters of rank `r`, drawn with `seed`.
fn params(r: usize, seed: u64, targets: &[&str]) -> Params {
    let targets = targets.iter().map(|&target| target.to_owned()).collect();
    let config = LoraConfig { r, alpha: 4.0, dropout: 0.0, targets };
    let builder = Builder::new(seed);
    for name in ["q_proj", "v_proj"] {
        let layer = builder.frozen().pp("layers.0").pp(name);
        drop(Adapted::new(&layer, [4, 6], Init::Normal(0.5), Some(&config)).unwrap());
    }
    let params = builder.finish();
    // Those that begin as zeros are moved away from there.
    for param in params.parameters() {
        let noise = Init::Normal(0.3);
        let other = Builder::new(seed + 1).param(param.name(), param.shape(), noise).unwrap();
        param.var().unwrap().set(other.var().unwrap()).unwrap();
    }
    params
}

fn written(params: &Params, folder: &Path) -> (PathBuf, Vec<u8>) {
    let bytes = peft(&save_state_dict(params).unwrap()).unwrap();
    let path = folder.join("adapter_model.safetensors");
    crate::files::write_atomic(&path, &bytes).unwrap();
    (path, bytes)
}

#[test]
fn exported_adapters_come_back_to_the_bit_and_nothing_else_moves() {
    let folder = tempfile::tempdir().unwrap();
    let both = ["q_proj", "v_proj"];
    let (first, second) = (params(2, 1, &both), params(2, 7, &both));
    let (path, bytes) = written(&first, folder.path());
    let base = |params: &Params| {
        let all = params.buffers().iter();
        all.map(|b| b.var().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap())
            .collect::<Vec<_>>()
    };
    let before = base(&second);
    assert_ne!(written(&second, folder.path()).1, bytes);
    crate::files::write_atomic(&path, &bytes).unwrap();
    load_adapters(&second, &path).unwrap();
    assert_eq!(written(&second, folder.path()).1, bytes);
    assert_eq!((before.len(), base(&second)), (2, before));
}

#[test]
fn adapters_of_another_rank_or_of_other_layers_are_refused_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = written(&params(2, 1, &["q_proj", "v_proj"]), folder.path());
    let refusal = |params: &Params| {
        let before = save_state_dict(params).unwrap();
        let message = load_adapters(params, &path).unwrap_err().to_string();
        assert!(save_state_dict(params).unwrap() == before, "{message}");
        message
    };
    let message = refusal(&params(3, 2, &["q_proj", "v_proj"]));
    assert!(
        message.contains("lora_A.weight` is [2, 4] in the file and [3, 4] in the model"),
        "{message}"
    );
    let message = refusal(&params(2, 2, &["q_proj"]));
    assert!(message.contains("unexpected `layers.0.v_proj.lora_A.weight` [2, 4]"), "{message}");
    let fewer = written(&params(2, 1, &["v_proj"]), folder.path()).1;
    crate::files::write_atomic(&path, &fewer).unwrap();
    let message = refusal(&params(2, 2, &["q_proj", "v_proj"]));
    assert!(message.contains("missing `layers.0.q_proj.lora_A.weight` [2, 4]"), "{message}");
    crate::files::write_atomic(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(refusal(&params(2, 2, &["q_proj"])).contains("not a whole safetensors file"));
}
