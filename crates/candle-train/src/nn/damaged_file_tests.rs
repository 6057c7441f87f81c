//! Safetensors files that are damaged: loaded whole or refused, and never half.

use std::path::Path;

use candle_core::Result;
use test_support::mutated;

use crate::nn::state_dict::{Strict, load_state_dict, save_state_dict};
use crate::nn::{Builder, Init, Params};

fn params(value: f64) -> Params {
    let builder = Builder::new(1);
    let build = || -> Result<()> {
        builder.pp("fc").param("weight", &[2, 3], Init::Constant(value))?;
        builder.pp("fc").param("bias", &[2], Init::Constant(value))?;
        builder.buffer("mean", &[1], value as f32)?;
        Ok(())
    };
    build().unwrap();
    builder.finish()
}

#[test]
fn a_damaged_file_of_weights_changes_all_of_a_model_or_nothing() {
    let whole = save_state_dict(&params(1.0)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let (mut loaded, mut refused) = (0, 0);
    let model = params(0.0);
    let before = save_state_dict(&model).unwrap();
    for bytes in mutated::inputs(&[whole, Vec::new()], 800, 66) {
        write(&path, &bytes);
        match load_state_dict(&model, &path, Strict::All) {
            Ok(_) => {
                loaded += 1;
                let reset = params(0.0);
                load_back(&model, &reset, &path);
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("weights.safetensors"), "{error}");
                assert!(
                    save_state_dict(&model).unwrap() == before,
                    "something was changed: {error}"
                );
            }
        }
    }
    // safetensors has no checksum: a turned bit in a weight is a weight. Checkpoints have hashes of
    // their own.
    assert!(loaded > 5 && refused > 300, "{loaded} loaded, {refused} refused");
}

/// Gives `model` the values of `from` again.
fn load_back(model: &Params, from: &Params, path: &Path) {
    write(path, &save_state_dict(from).unwrap());
    load_state_dict(model, path, Strict::All).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "a file of this test alone")]
fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}
