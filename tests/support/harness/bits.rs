//! What a run leaves of its training, to the bit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use crate::harness::lab::Lab;

/// What a run leaves of its training.
#[derive(PartialEq)]
pub(crate) struct Bits {
    model: Vec<u8>,
    optimizer: Vec<u8>,
    state: String,
    history: String,
    /// `metrics.csv` without the speed.
    metrics: Vec<Vec<String>>,
}

/// The bits of the only run of a lab.
pub(crate) fn bits(lab: &Lab) -> Bits {
    let checkpoint = |name: &str| fs::read(lab.checkpoints().join("latest").join(name)).unwrap();
    Bits {
        model: checkpoint("model.safetensors"),
        optimizer: checkpoint("optimizer.safetensors"),
        state: String::from_utf8(checkpoint("state.json")).unwrap(),
        history: fs::read_to_string(lab.run_folder().join("training_history.json")).unwrap(),
        metrics: metrics(&lab.run_folder().join("metrics.csv")),
    }
}

fn metrics(path: &Path) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(path).unwrap();
    let mut rows: Vec<Vec<String>> =
        reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
    let speed = rows[0].iter().position(|name| name == "samples_per_second").unwrap();
    for row in &mut rows {
        row.remove(speed);
    }
    rows
}

impl Bits {
    pub(crate) fn must_be(&self, other: &Self) {
        assert_eq!(self.history, other.history, "training_history.json");
        assert_eq!(self.metrics, other.metrics, "metrics.csv");
        self.must_have_the_weights_of(other);
        assert!(self.optimizer == other.optimizer, "optimizer.safetensors");
        assert_eq!(self.state, other.state, "state.json");
    }

    /// As [`Bits::must_be`], of a run that was evaluated at other steps.
    pub(crate) fn must_have_the_weights_of(&self, other: &Self) {
        assert!(self.model == other.model, "model.safetensors");
    }
}

/// The bits of an undisturbed run of the experiment in `lab` with these changes. It runs once,
/// whichever tests ask for it.
pub(crate) fn undisturbed(lab: &Lab, changes: &[&str]) -> Arc<Bits> {
    type Known = BTreeMap<String, Arc<OnceLock<Arc<Bits>>>>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let experiment = fs::read_to_string(lab.path("small.toml")).unwrap();
    let key = format!("{experiment}\n{}", changes.join("\n"));
    let known = KNOWN.lock().unwrap().entry(key).or_default().clone();
    let found = known.get_or_init(|| {
        lab.run_to(0, &[&["small.toml"], changes].concat());
        let bits = bits(lab);
        let cells: Vec<&String> = bits.metrics.iter().flatten().collect();
        assert!(cells.len() > 20 && cells.iter().all(|cell| !cell.contains("NaN")), "{cells:?}");
        Arc::new(bits)
    });
    found.clone()
}

/// Every checkpoint of a lab is what was written.
pub(crate) fn must_be_whole(lab: &Lab) {
    lab.run_to(0, &["checkpoint", "verify"]);
}
