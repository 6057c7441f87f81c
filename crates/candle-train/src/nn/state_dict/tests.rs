use std::fs::File;
use std::io::Write as _;

use candle_core::Result as CandleResult;
use tempfile::NamedTempFile;
use test_support::{assert_refused, mutated};

use super::fit::COUNTER;
use super::*;
use crate::nn::{Builder, Init, Linear};

/// A model of `fc.weight` (2, 3), `fc.bias` (2), a buffer `mean` (1) and a counter.
fn params(value: f64) -> Params {
    let builder = Builder::new(1);
    let build = || -> CandleResult<()> {
        builder.pp("fc").param("weight", &[2, 3], Init::Constant(value))?;
        builder.pp("fc").param("bias", &[2], Init::Constant(value))?;
        builder.buffer("mean", &[1], value as f32)?;
        Ok(())
    };
    build().unwrap();
    builder.counter(COUNTER).set(value as i64);
    builder.finish()
}

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn state_dict(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> NamedTempFile {
    let views = tensors.iter().map(|(key, dtype, shape, bytes)| {
        (*key, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
    });
    file(&safetensors::serialize(views, None).unwrap())
}

fn values(params: &Params) -> Vec<f32> {
    let values = |var: &Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    tensors(params).unwrap().iter().flat_map(|(_, _, var)| values(var)).collect()
}

#[test]
fn what_was_saved_loads_bit_for_bit_and_equal_values_give_equal_bytes() {
    let saved = save_state_dict(&params(0.1)).unwrap();
    assert_eq!(saved, save_state_dict(&params(0.1)).unwrap());
    let other = params(7.0);
    let report = load_state_dict(&other, file(&saved).path(), Strict::All).unwrap();
    assert_eq!(report, LoadReport { loaded: 3, ..LoadReport::default() });
    assert_eq!((values(&other), other.counters()[0].get()), (vec![0.1; 9], 0));
}

/// The file of `params(0.5)` under other names.
fn renamed(name: impl Fn(&str) -> String) -> NamedTempFile {
    let saved = save_state_dict(&params(0.5)).unwrap();
    let views = SafeTensors::deserialize(&saved).unwrap().tensors();
    let views = views.into_iter().map(|(key, view)| (name(&key), view));
    file(&safetensors::serialize(views, None).unwrap())
}

#[test]
fn the_name_that_a_wrapper_gives_the_model_is_no_part_of_its_names() {
    for wrapper in ["model.", "net.", "module.model."] {
        let wrapped = renamed(|key| format!("{wrapper}{key}"));
        let model = params(0.0);
        load_state_dict(&model, wrapped.path(), Strict::All).unwrap();
        assert_eq!(values(&model), [0.5; 9], "{wrapper}");
    }
    let partly =
        renamed(|key| if key == "mean" { "model.men".into() } else { format!("model.{key}") });
    let error = load_state_dict(&params(0.0), partly.path(), Strict::All).unwrap_err();
    assert!(error.to_string().contains("unexpected `men`"), "{error}");
}

#[test]
fn numbers_that_are_none_are_refused_by_the_name_of_their_tensor() {
    let told = |dtype, bytes: &[u8]| {
        let (weight, bias) = (vec![0; 24], [0u8; 8].to_vec());
        let mean = [("mean", dtype, &[1][..], bytes.to_vec())];
        let others = [
            ("fc.weight", Dtype::F32, &[2, 3][..], weight),
            ("fc.bias", Dtype::F32, &[2][..], bias),
        ];
        let all: Vec<_> = others.into_iter().chain(mean).collect();
        let model = params(7.0);
        let result = load_state_dict(&model, state_dict(&all).path(), Strict::All);
        let is_as_before = values(&model) == [7.0; 9];
        result.map(drop).map_err(|error| (error.to_string(), is_as_before))
    };
    let nan = [
        (Dtype::F32, f32::NAN.to_le_bytes().to_vec()),
        (Dtype::F64, f64::NAN.to_le_bytes().to_vec()),
        (Dtype::F16, f16::NAN.to_le_bytes().to_vec()),
        (Dtype::BF16, bf16::NAN.to_le_bytes().to_vec()),
    ];
    for (dtype, bytes) in nan {
        let (said, is_as_before) = told(dtype, &bytes).unwrap_err();
        assert!(said.starts_with("`mean` in `") && said.ends_with("` holds NaN"), "{said}");
        assert!(is_as_before);
    }
    let (said, _) = told(Dtype::F32, &f32::NEG_INFINITY.to_le_bytes()).unwrap_err();
    assert!(said.ends_with("holds an infinite number"), "{said}");
    for value in [f32::MAX, f32::MIN_POSITIVE, -0.0] {
        assert_eq!(told(Dtype::F32, &value.to_le_bytes()), Ok(()));
    }
}

#[test]
fn what_git_lfs_left_is_named() {
    let pointer = file(b"version https://git-lfs.github.com/spec/v1\noid sha256:1f\nsize 9\n");
    let error = header(pointer.path()).unwrap_err();
    assert!(error.to_string().ends_with("is a git-lfs pointer, not the weights themselves"));
    assert!(error.help().unwrap().starts_with("run `git lfs pull`"));
}

#[test]
fn positions_of_images_of_another_size_are_resampled() {
    let grid = |sides| Grid { prefix: 1, sides };
    let of = |sides: [usize; 2]| {
        let builder = Builder::new(1);
        builder.is_grid_of_positions("pos_embed", grid(sides));
        let shape = [1, 1 + sides[0] * sides[1], 2];
        builder.param("pos_embed", &shape, Init::Normal(1.0)).unwrap();
        builder.finish()
    };
    let (square, wide) = (of([3, 3]), of([2, 4]));
    let saved = file(&save_state_dict(&square).unwrap());
    load_state_dict(&wide, saved.path(), Strict::All).unwrap();
    let expected = positions::resampled(&values(&square), grid([3, 3]), grid([2, 4]));
    assert_eq!(values(&wide), expected);
}

#[test]
fn half_and_double_become_f32_the_wrapper_is_stripped_and_counters_are_optional() {
    let half: Vec<u8> = (0..6).flat_map(|_| f16::from_f32(0.5).to_le_bytes()).collect();
    let brain: Vec<u8> = (0..2).flat_map(|_| bf16::from_f32(-2.0).to_le_bytes()).collect();
    let file = state_dict(&[
        ("module.fc.weight", Dtype::F16, &[2, 3], half),
        ("module.fc.bias", Dtype::BF16, &[2], brain),
        ("module.mean", Dtype::F64, &[1], 0.25f64.to_le_bytes().to_vec()),
    ]);
    let params = params(7.0);
    load_state_dict(&params, file.path(), Strict::All).unwrap();
    assert_eq!(values(&params), [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, -2.0, -2.0, 0.25]);
    assert_eq!(params.counters()[0].get(), 7);
}

#[test]
fn every_difference_is_listed_and_nothing_is_changed() {
    let zeros = |n: usize| vec![0; 4 * n];
    let file = state_dict(&[
        ("fc.weight", Dtype::F32, &[3, 2], zeros(6)),
        ("fc.bias", Dtype::F32, &[2], zeros(2)),
        ("head.scale", Dtype::F32, &[5], zeros(5)),
    ]);
    let params = params(7.0);
    let error = load_state_dict(&params, file.path(), Strict::All).unwrap_err().to_string();
    let expected = "does not fit the model:\n  missing `mean` [1]\n  unexpected `head.scale` [5]\n  \
                    `fc.weight` is [3, 2] in the file and [2, 3] in the model";
    assert!(error.ends_with(expected), "{error}");
    assert_eq!(values(&params), [7.0; 9]);
    let head = Strict::ExceptHead(&["fc.", "head."]);
    assert_refused(load_state_dict(&params, file.path(), head), "missing `mean` [1]");
}

#[test]
fn a_header_alone_tells_what_does_not_fit_and_ten_of_many_are_named() {
    let key = |i: usize| format!("layers.{i:02}.weight");
    let bytes = [0; 4];
    let views = (0..40).map(|i| (key(i), TensorView::new(Dtype::F32, vec![1], &bytes).unwrap()));
    let file = file(&safetensors::serialize(views, None).unwrap());
    let header = header(file.path()).unwrap();
    assert_eq!(header.len(), 40);
    let misfit = fit(&ExpectedTensors::of(&params(0.0)), &header, Strict::All).unwrap_err();
    assert_eq!((misfit.missing.len(), misfit.unexpected.len()), (3, 40));
    let error = Error::misfit(file.path(), misfit).to_string();
    assert_eq!(error.lines().count(), 1 + 10 + 1, "{error}");
    assert!(error.ends_with("and 33 more"), "{error}");
}

#[test]
fn a_pickle_is_told_with_the_lines_that_convert_it() {
    let error = header(file(b"PK\x03\x04\0\0\x08\x08 archive/data.pkl").path()).unwrap_err();
    assert!(error.to_string().contains("is a pickle, as `torch.save` writes it"), "{error}");
    let help = error.help().unwrap();
    assert!(help.contains("save_file({k:") && help.contains("torch.load(\""), "{help}");
}

#[test]
fn weights_of_other_programs_are_told_by_what_they_are() {
    let zip = |name: &str| {
        let length = u16::try_from(name.len()).unwrap().to_le_bytes();
        [&b"PK\x03\x04"[..], &[0; 22], &length, &[0; 2], name.as_bytes(), &[0; 64]].concat()
    };
    let told = |bytes: &[u8]| {
        let error = header(file(bytes).path()).unwrap_err();
        error.to_string() + ": " + &error.help().unwrap_or_default()
    };
    let numpy = told(&zip("a.npy"));
    assert!(numpy.contains("is an archive of NumPy (`.npz`), not a safetensors"), "{numpy}");
    assert!(numpy.contains("save_file(dict(numpy.load(\""), "{numpy}");
    for (bytes, what) in [
        (zip("model/data.pkl"), "is a pickle, as `torch.save` writes it"),
        (zip("metadata.json"), "is a model of Keras"),
        (b"\x89HDF\r\n\x1a\n....".to_vec(), "is an HDF5 file"),
        (b"\x93NUMPY\x01\0....".to_vec(), "is one array of NumPy (`.npy`)"),
        (b"GGUF\x03\0\0\0....".to_vec(), "is a GGUF file"),
        (b"\x80\x04\x95\0\0\0\0\0....".to_vec(), "is a pickle of Python"),
        (b"\x08\x08\x12\x07pytorch".to_vec(), "is an ONNX model"),
    ] {
        assert!(told(&bytes).contains(what), "{}", told(&bytes));
    }
}

#[test]
fn numbers_of_gpt2_are_turned_and_its_first_positions_taken() {
    let builder = Builder::new(1);
    let table = |name: &str, shape: &[usize]| {
        drop(builder.pp("transformer").pp(name).param("weight", shape, Init::Constant(9.0)));
    };
    table("wpe", &[1, 2]);
    table("h.0.attn.c_attn", &[3, 2]);
    table("h.0.attn.c_proj", &[2, 2]);
    let params = builder.finish();
    let numbers = |n: u8| (0..n).flat_map(|i| f32::from(i).to_le_bytes()).collect::<Vec<u8>>();
    let positions = ("wpe.weight", Dtype::F32, &[2usize, 2][..], numbers(4));
    let huggingface = state_dict(&[
        positions.clone(),
        ("h.0.attn.c_attn.weight", Dtype::F32, &[2, 3], numbers(6)),
        ("h.0.attn.c_proj.weight", Dtype::F32, &[2, 2], numbers(4)),
    ]);
    load_state_dict(&params, huggingface.path(), Strict::All).unwrap();
    let turned = [0.0, 1.0, 0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 0.0, 2.0, 1.0, 3.0];
    assert_eq!(values(&params), turned);
    let nanogpt = state_dict(&[
        positions,
        ("h.0.attn.c_attn.weight", Dtype::F32, &[3, 2], numbers(6)),
        ("h.0.attn.c_proj.weight", Dtype::F32, &[2, 2], numbers(4)),
    ]);
    load_state_dict(&params, nanogpt.path(), Strict::All).unwrap();
    let plain = [0.0, 1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 3.0];
    assert_eq!(values(&params), plain);
}

#[test]
fn a_head_of_another_size_keeps_its_values() {
    let file = state_dict(&[
        ("fc.weight", Dtype::F32, &[5, 3], vec![0; 60]),
        ("mean", Dtype::F32, &[1], vec![0; 4]),
    ]);
    let params = params(7.0);
    let report = load_state_dict(&params, file.path(), Strict::ExceptHead(&["fc."])).unwrap();
    assert_eq!((report.loaded, report.ignored), (1, vec!["fc.weight".to_owned()]));
    assert_eq!(report.kept, ["fc.weight", "fc.bias"]);
    assert_eq!(values(&params)[7..], [7.0, 0.0]);
}

#[test]
fn an_index_names_the_files_of_one_state_dict() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    };
    let part = |key: &str, shape: &[usize], value: f32| {
        let data = value.to_le_bytes().repeat(shape.iter().product());
        let view = TensorView::new(Dtype::F32, shape.to_vec(), &data).unwrap();
        safetensors::serialize([(key, view)], None).unwrap()
    };
    write("a.safetensors", &part("fc.weight", &[2, 3], 1.5));
    write("b.safetensors", &part("fc.bias", &[2], 2.5));
    write("c.safetensors", &part("mean", &[1], 3.5));
    let map = r#"{"metadata": {}, "weight_map": {"fc.weight": "a.safetensors",
        "fc.bias": "b.safetensors", "mean": "c.safetensors"}}"#;
    let index = write("model.safetensors.index.json", map.as_bytes());
    let params = params(7.0);
    assert_eq!(load_state_dict(&params, &index, Strict::All).unwrap().loaded, 3);
    assert_eq!(values(&params), [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 2.5, 2.5, 3.5]);
    std::fs::remove_file(folder.path().join("b.safetensors")).unwrap();
    let error = load_state_dict(&params, &index, Strict::All).unwrap_err().to_string();
    assert!(error.contains("b.safetensors` cannot be read"), "{error}");
    let other = write("other.index.json", b"[]");
    let error = load_state_dict(&params, &other, Strict::All).unwrap_err();
    assert!(matches!(error, Error::Index { .. }), "{error}");
}

#[test]
fn files_that_are_damaged_or_lie_are_refused() {
    let load =
        |bytes: &[u8]| load_state_dict(&params(1.0), file(bytes).path(), Strict::All).unwrap_err();
    let saved = save_state_dict(&params(1.0)).unwrap();
    assert!(matches!(load(b""), Error::Format { .. }));
    assert!(matches!(load(b"PK\x03\x04 and so on"), Error::Pickle { .. }));
    assert!(matches!(load(&saved[..saved.len() - 1]), Error::Format { .. }));
    assert!(matches!(load(b"\x02\0\0\0\0\0\0\0{]"), Error::Format { .. }));
    assert!(matches!(load(&u64::MAX.to_le_bytes()), Error::Header { header: u64::MAX, .. }));
    let integers = state_dict(&[
        ("fc.weight", Dtype::I64, &[2, 3], vec![0; 48]),
        ("fc.bias", Dtype::F32, &[2], vec![0; 8]),
        ("mean", Dtype::F32, &[1], vec![0; 4]),
    ]);
    let error = load_state_dict(&params(1.0), integers.path(), Strict::All).unwrap_err();
    assert!(matches!(error, Error::Dtype { .. }), "{error}");
}

#[test]
fn a_described_model_has_nothing_to_save() {
    let builder = Builder::describe();
    Linear::new(&builder, 2, 2).unwrap();
    assert_refused(
        save_state_dict(&builder.finish()),
        "has no values: the model was only described",
    );
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
