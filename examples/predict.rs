//! Predictions of a run in a program of your own: `cargo run --example predict -- logs/RUN photos`.
#![expect(clippy::print_stdout, reason = "an example")]

use ddprun::kinds::Kinds;
use ddprun::predict::{Error, Predictor};

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let run = words.next().unwrap_or_default();
    let inputs: Vec<String> = words.collect();
    let mut model = Predictor::open(run, &Kinds::default())?;
    for row in model.predict(&inputs)?.iter() {
        println!("{} {} {}", row["path"], row["class"], row["error"]);
    }
    Ok(())
}
