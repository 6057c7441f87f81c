//! What sets the best trials of a sweep apart: for each parameter its importance, and its values
//! among the best tenth and among the others.

use serde_json::{Map, Value, json};

use crate::config::sweep::{Search, canonical, value_of};
use crate::record::text::{cut, hyperparameter, short};
use crate::sweep::ped_anova::{best_tenth, ped_anova};
use crate::sweep::ranking::{Ranking, best};
use crate::sweep::table::align;
use crate::sweep::trial::Trial;
use crate::terminal::counted;

/// Columns of a cell of words.
const MAX_CELL: usize = 24;

/// The parameters of a sweep, the most important first.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// Number of trials among the best, and of the others.
    pub n: (usize, usize),
    pub rows: Vec<ContrastRow>,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ContrastRow {
    pub key: String,
    /// Share of what decides whether a trial is among the best tenth.
    pub importance: f64,
    /// Value of the best trial; `None` if the parameter did not count in it.
    pub best: Option<Value>,
    /// Values of the trials among the best, and of the others.
    pub values: (Typical, Typical),
}

/// The values of a parameter in several trials.
#[derive(Clone, Debug, PartialEq)]
pub enum Typical {
    /// Numbers: the median, the least and the largest.
    Numbers { median: f64, least: f64, largest: f64 },
    /// The most frequent value, and its share.
    Most { value: Value, share: f64 },
    /// The parameter counted in none of them.
    None,
}

/// The contrast of a sweep's trials; `None` if there are too few to tell, or none is finished.
pub fn contrast(search: &Search, ranking: &Ranking, trials: &[Trial]) -> Option<Contrast> {
    let winner = best(trials, search.goal)?;
    let (top, rest) = best_tenth(ranking, trials);
    let mut rows: Vec<ContrastRow> = ped_anova(search, ranking, trials)
        .into_iter()
        .map(|(key, importance)| ContrastRow {
            best: value_of(&winner.values, &key).cloned(),
            values: (typical(&top, &key), typical(&rest, &key)),
            key,
            importance,
        })
        .collect();
    rows.sort_by(|a, b| b.importance.total_cmp(&a.importance));
    (!rows.is_empty()).then_some(Contrast { n: (top.len(), rest.len()), rows })
}

fn typical(trials: &[&Trial], key: &str) -> Typical {
    let values: Vec<&Value> =
        trials.iter().filter_map(|trial| value_of(&trial.values, key)).collect();
    let numbers: Option<Vec<f64>> = values.iter().map(|value| value.as_f64()).collect();
    if let Some(mut numbers) = numbers.filter(|numbers| !numbers.is_empty()) {
        numbers.sort_by(f64::total_cmp);
        let middle = numbers.len() / 2;
        let median = f64::midpoint(numbers[(numbers.len() - 1) / 2], numbers[middle]);
        return Typical::Numbers { median, least: numbers[0], largest: numbers[numbers.len() - 1] };
    }
    let same =
        |value: &Value| values.iter().filter(|other| canonical(other) == canonical(value)).count();
    // The first of equals.
    let most = values.iter().rev().max_by_key(|value| same(value));
    most.map_or(Typical::None, |value| Typical::Most {
        value: (*value).clone(),
        share: same(value) as f64 / values.len() as f64,
    })
}

impl Typical {
    fn words(&self) -> String {
        match self {
            Self::Numbers { median, least, largest } if least == largest => short(*median),
            Self::Numbers { median, least, largest } => {
                format!("{} ({} to {})", short(*median), short(*least), short(*largest))
            }
            Self::Most { value, share } => {
                format!("{} ({:.0} %)", cut(&hyperparameter(value), MAX_CELL), 100.0 * share)
            }
            Self::None => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Numbers { median, least, largest } => {
                json!({ "median": median, "min": least, "max": largest })
            }
            Self::Most { value, share } => json!({ "most": value, "share": share }),
            Self::None => Value::Null,
        }
    }
}

impl Contrast {
    /// The table for the terminal.
    pub fn page(&self) -> String {
        let head = ["parameter", "importance", "best", "best tenth", "others"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(self.rows.iter().map(|row| {
            let best = row.best.as_ref().map(|value| cut(&hyperparameter(value), MAX_CELL));
            vec![
                row.key.clone(),
                format!("{:.0} %", 100.0 * row.importance),
                best.unwrap_or_else(|| "-".to_owned()),
                row.values.0.words(),
                row.values.1.words(),
            ]
        }));
        let (best, others) = (counted(self.n.0 as u64, "trial"), self.n.1);
        format!("best tenth: {best}; others: {others}\n\n{}", align(&rows))
    }

    /// The importances in a line: `importance: optimizer.lr 90 %, model.width 10 %`.
    pub fn line(&self) -> String {
        let shares = self.rows.iter().filter(|row| row.importance >= 0.005);
        let words = shares.map(|row| format!("{} {:.0} %", row.key, 100.0 * row.importance));
        format!("importance: {}", words.collect::<Vec<String>>().join(", "))
    }

    pub fn json(&self) -> Value {
        let row = |row: &ContrastRow| {
            json!({
                "key": row.key,
                "importance": row.importance,
                "best": row.best,
                "best_tenth": row.values.0.json(),
                "others": row.values.1.json(),
            })
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let mut object = Map::new();
        object.insert("best_tenth".to_owned(), json!(self.n.0));
        object.insert("others".to_owned(), json!(self.n.1));
        object.insert("parameters".to_owned(), Value::Array(rows));
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sweep::{Domain, Parameter};
    use crate::sweep::example_sweeps::{search, trial, with_values};
    use crate::sweep::trial::State;

    #[test]
    fn the_best_are_set_apart_by_what_decides_and_the_table_says_so() {
        let names = Domain::Categorical { values: vec![json!("sgd"), json!("adamw")] };
        let parameters = vec![
            Parameter::new("optimizer.name", names),
            Parameter::new("optimizer.lr", Domain::Uniform { min: 0.0, max: 1.0 }),
        ];
        let search = Search { parameters, ..search("random") };
        let ranking = Ranking::plain(search.goal);
        let of = |number: u32| {
            let lr = f64::from(number * 37 % 100) / 100.0;
            let name = if number.is_multiple_of(3) { "sgd" } else { "adamw" };
            let values = json!({ "optimizer.name": name, "optimizer.lr": lr });
            with_values(trial(number, State::Finished, &[(lr - 0.5).abs()]), values)
        };
        let trials: Vec<Trial> = (1..=60).map(of).collect();
        let found = contrast(&search, &ranking, &trials).unwrap();
        assert_eq!((found.n, found.rows[0].key.as_str()), ((6, 54), "optimizer.lr"));
        assert!(found.rows[0].importance > 0.9);
        assert_eq!(found.rows[0].best, Some(json!(0.5)));
        let Typical::Numbers { least, largest, .. } = found.rows[0].values.0 else { panic!() };
        assert!(least > 0.4 && largest < 0.6, "{least} {largest}");
        insta::assert_snapshot!(found.page());
        assert!(found.line().starts_with("importance: optimizer.lr "), "{}", found.line());
        assert_eq!(found.json()["parameters"][1]["best_tenth"]["most"], "adamw");
        assert_eq!(contrast(&search, &ranking, &trials[..1]), None);
    }
}
