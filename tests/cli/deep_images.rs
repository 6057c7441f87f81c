//! Images of 16 bits: found by `init`, evaluated, predicted and
//! refused where a transform is of colours.

use std::fs;

use image::{ImageBuffer, Luma};
use serde_json::Value;

use crate::harness::lab::Lab;

/// Scans that differ only above 255, where 8 bits are white.
fn images() -> Lab {
    let lab = Lab::new();
    for (class, grey) in [("dark", 9_000_u16), ("light", 30_000)] {
        for index in 0..10_u16 {
            let ending = if index % 2 == 0 { "png" } else { "tif" };
            let path = lab.write(&format!("scans/{class}/{index}.{ending}"), "");
            let value = |x, y| Luma([grey + 700 * index + 40 * (x + 2 * y) as u16]);
            ImageBuffer::from_fn(14, 12, value).save(path).unwrap();
        }
    }
    lab
}

/// The experiment that `init` writes for them, in `small.toml`, of three epochs.
pub(crate) fn scans() -> Lab {
    let lab = images();
    lab.run_to(0, &["init", "scans"]);
    let text = fs::read_to_string(lab.path("scans.toml")).unwrap();
    assert!(text.contains("pixel_dtype = \"uint16\""), "{text}");
    lab.write("small.toml", text.replace("name = \"scans\"", "name = \"small\""));
    lab
}

#[test]
fn scans_are_evaluated_predicted_and_described_to_other_programs() {
    let lab = images();
    lab.run_to(0, &["init", "scans"]);
    let slowly = "scheduler.warmup=1 epoch";
    lab.run_to(0, &["scans.toml", "experiment.name=deep", "train.epochs=6", slowly]);
    let found = lab.run_to(0, &["eval", "deep", "--json", "--part", "val"]).stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["metrics"]["val/accuracy"], 1.0, "{found}");
    let all = ["scans/dark/0.png", "scans/dark/1.tif", "scans/light/0.png", "scans/light/1.tif"];
    let args = [&["predict", "deep"], &all[..], &["--out", "preds.csv"]].concat();
    lab.run_to(0, &args);
    let rows = fs::read_to_string(lab.path("preds.csv")).unwrap();
    let classes: Vec<&str> =
        rows.lines().skip(1).map(|row| row.split(',').nth(1).unwrap()).collect();
    assert_eq!(classes, ["dark", "dark", "light", "light"], "{rows}");
    lab.run_to(0, &["checkpoint", "export", "deep", "model.onnx"]);
    let said = fs::read_to_string(lab.path("preprocessing.json")).unwrap();
    assert!(said.contains("\"pixel_dtype\": \"uint16\""), "{said}");
}

#[test]
fn scans_cut_to_8_bits_are_noticed_and_transforms_of_colours_refused() {
    let lab = images();
    lab.run_to(0, &["init", "scans"]);
    let said = lab.run_to(0, &["plan", "scans.toml", "data.pixel_dtype=uint8"]).stdout;
    assert!(said.contains("has pixels of 16 bits, which are cut to"), "{said}");
    let text = fs::read_to_string(lab.path("scans.toml")).unwrap();
    let text = text.replacen("random_horizontal_flip", "color_jitter", 1);
    lab.write("colours.toml", text);
    let refused = lab.run_to(2, &["colours.toml"]);
    refused.says(&["is defined for images of 8 bits", "name = \"color_jitter\""]);
}
