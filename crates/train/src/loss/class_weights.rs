//! Weights of labels by class: the option `class_weights` of losses.

use std::borrow::Cow;
use std::fmt;

use candle_core::{DType, Result, Tensor, bail};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::config::kind::Options;
use crate::config::values::unusable_weights;
use crate::ops::IGNORED_LABEL;
use crate::plan::{DataFacts, Unfit};
use crate::terminal::counted;

const BALANCED: &str = "balanced";

/// Weights of classes.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassWeights {
    /// "balanced": in proportion to one over the training samples of a class, as scikit-learn's.
    Balanced,
    /// One for each class, in label order.
    Each(Vec<f64>),
}

impl ClassWeights {
    /// The option `key` with the weights in numbers.
    pub(super) fn resolved(
        weights: Option<&Self>,
        key: &'static str,
        data: &DataFacts,
    ) -> std::result::Result<Options, Unfit> {
        let Some(weights) = weights else { return Ok(Options::new()) };
        let weights = match weights {
            Self::Each(weights) => weights.clone(),
            Self::Balanced => balanced(key, data)?,
        };
        if let Some(what) = unusable_weights(&weights) {
            return Err(Unfit { key, what: what.to_owned(), help: None });
        }
        let given = weights.len();
        let classes = data.classes.len();
        if given != classes {
            let weights = counted(given as u64, "weight");
            let classes = counted(classes as u64, "class");
            let what = format!("has {weights}, but the data has {classes}");
            let help = Some("give one weight for each class, in label order, or \"balanced\"");
            return Err(Unfit { key, what, help });
        }
        Ok(Options::from([(key.to_owned(), weights.into())]))
    }

    /// The weights, once they are decided.
    pub(super) fn numbers(&self) -> Result<&[f64]> {
        match self {
            Self::Each(weights) => Ok(weights),
            Self::Balanced => bail!("balanced weights are decided by the plan"),
        }
    }
}

/// samples / (classes x samples of the class), over the classes that have some; 0 for the others.
fn balanced(key: &'static str, data: &DataFacts) -> std::result::Result<Vec<f64>, Unfit> {
    let counts = &data.class_counts;
    if counts.is_empty() {
        let what = "cannot be balanced: this data does not count its classes".to_owned();
        return Err(Unfit { key, what, help: Some("give one weight for each class") });
    }
    let present = counts.iter().filter(|&&count| count > 0).count();
    let samples: u64 = counts.iter().sum();
    let weight = |&count: &u64| match count {
        0 => 0.0,
        count => samples as f64 / (present as f64 * count as f64),
    };
    Ok(counts.iter().map(weight).collect())
}

/// Class and weight of each label; an ignored label has the weight 0. Classes beyond the weights,
/// which only outputs without a class have, have the weight 0.
pub(super) fn of_labels(
    labels: &Tensor,
    weights: Option<&[f64]>,
    classes: usize,
) -> Result<Vec<(u32, f64)>> {
    let labels = labels.flatten_all()?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    let weighed = |label: i64| {
        if label == IGNORED_LABEL {
            return Ok((0, 0.0));
        }
        match usize::try_from(label) {
            Ok(class) if class < classes => Ok((class as u32, weight(weights, class))),
            _ => bail!("label {label} of {classes} classes"),
        }
    };
    labels.into_iter().map(weighed).collect()
}

/// Weight of a class.
pub(super) fn weight(weights: Option<&[f64]>, class: usize) -> f64 {
    weights.map_or(1.0, |weights| weights.get(class).copied().unwrap_or(0.0))
}

/// [`Loss::weight`](crate::loss::Loss::weight) of a batch of `samples`: the mean weight of its
/// labels, in samples.
pub(super) fn of_batch(targets: &Tensor, weights: &[f64], samples: usize) -> Result<f64> {
    let labels = of_labels(targets, Some(weights), weights.len())?;
    let sum: f64 = labels.iter().map(|(_, weight)| weight).sum();
    Ok(samples as f64 * sum / labels.len().max(1) as f64)
}

impl Serialize for ClassWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Balanced => serializer.serialize_str(BALANCED),
            Self::Each(weights) => weights.serialize(serializer),
        }
    }
}

struct ClassWeightsVisitor;

impl<'de> Visitor<'de> for ClassWeightsVisitor {
    type Value = ClassWeights;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`\"balanced\"`, or a list of one weight for each class")
    }

    fn visit_str<E: Error>(self, text: &str) -> std::result::Result<ClassWeights, E> {
        match text {
            BALANCED => Ok(ClassWeights::Balanced),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut seq: A,
    ) -> std::result::Result<ClassWeights, A::Error> {
        let mut weights = Vec::new();
        while let Some(weight) = seq.next_element::<f64>()? {
            weights.push(weight);
        }
        Ok(ClassWeights::Each(weights))
    }
}

impl<'de> Deserialize<'de> for ClassWeights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(ClassWeightsVisitor)
    }
}

impl JsonSchema for ClassWeights {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ClassWeights".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "const": BALANCED },
                { "type": "array", "items": { "type": "number", "minimum": 0 }, "minItems": 1 },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_weights_are_those_of_scikit_learn() {
        // compute_class_weight("balanced", classes=[0, 1, 2], y=[0] * 6 + [1] * 3 + [2])
        let counts = vec![6, 3, 1];
        let data = DataFacts { class_counts: counts, ..crate::loss::testing::three_classes() };
        let options = ClassWeights::resolved(Some(&ClassWeights::Balanced), "w", &data).unwrap();
        let weights: Vec<f64> = serde_json::from_value(options["w"].clone()).unwrap();
        let expected = [10.0 / 18.0, 10.0 / 9.0, 10.0 / 3.0];
        assert!(weights.iter().zip(expected).all(|(found, wanted)| (found - wanted).abs() < 1e-15));
        let absent = DataFacts { class_counts: vec![5, 0, 5], ..data.clone() };
        assert_eq!(balanced("w", &absent), Ok(vec![1.0, 0.0, 1.0]));
    }

    #[test]
    fn weights_that_no_class_has_are_refused() {
        let data = crate::loss::testing::three_classes();
        let refused =
            |weights| ClassWeights::resolved(Some(&weights), "w", &data).unwrap_err().what;
        let two = ClassWeights::Each(vec![1.0, 2.0]);
        assert_eq!(refused(two), "has 2 weights, but the data has 3 classes");
        assert!(refused(ClassWeights::Balanced).starts_with("cannot be balanced"));
    }
}
