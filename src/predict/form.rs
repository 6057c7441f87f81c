//! The answers of a model -> rows: classes with probabilities, numbers in the units of the data,
//! time steps, losses of texts.

use crate::data::{InputItem, Inputs, OutputScale, PredictionKind};
use crate::plan::{Plan, Targets};
use crate::predict::error::Error;
use crate::predict::row::{Column, ColumnType, Value};
use crate::user_error::ExitCode;

/// Most classes of which all probabilities are given by default.
const MAX_CLASSES: usize = 20;
/// Classes that are given of more.
const TOP: usize = 5;
/// Probability above which a sample has a class, if it may have several.
const HAS: f32 = 0.5;

/// Result of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The outputs of the model.
    Answer(Vec<f32>),
    /// The mean loss of so many tokens.
    Loss(f64, u64),
    /// The reason why it could not be read.
    Unreadable(String),
}

/// Meaning of an answer.
#[derive(Clone, Debug, PartialEq)]
enum Meaning {
    /// One of these classes.
    Class(Vec<String>),
    /// Any of these classes.
    Classes(Vec<String>),
    Numbers(Vec<OutputScale>),
    /// So many time steps of each series.
    Series(Vec<OutputScale>, usize),
    Loss,
}

/// The columns of the rows, and how answers become them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Form {
    pub(crate) columns: Vec<Column>,
    meaning: Meaning,
    /// True if items are rows of their files.
    has_rows: bool,
    /// True if time steps have dates.
    has_dates: bool,
    /// Most likely classes that are given; `None` = the probability of each.
    top: Option<usize>,
}

impl Form {
    /// The form of the answers that a model of `plan` gives to `inputs`.
    pub(crate) fn of(plan: &Plan, inputs: &Inputs, top: Option<usize>) -> Result<Self, Error> {
        let meaning = meaning(plan, &inputs.answers)?;
        let n = match &meaning {
            Meaning::Class(classes) | Meaning::Classes(classes) => classes.len(),
            _ => 0,
        };
        if top.is_some() && n == 0 {
            let what = "`--top` is for classes, but this run predicts something else";
            return Err(Error::new(ExitCode::Refused, what));
        }
        let top = match top {
            None if n > MAX_CLASSES => Some(TOP),
            Some(top) if top >= n => None,
            top => top,
        };
        let has_rows = inputs.items.have_rows();
        let items = || (0..inputs.items.len()).map(|at| inputs.items.get(at));
        let has_dates =
            matches!(meaning, Meaning::Series(..)) && items().any(|item| !item.dates.is_empty());
        let mut form = Self { columns: Vec::new(), meaning, has_rows, has_dates, top };
        form.columns = form.columns();
        distinguish(&mut form.columns);
        Ok(form)
    }

    fn columns(&self) -> Vec<Column> {
        let text = |name: &str| Column::new(name, ColumnType::Text);
        let integer = |name: &str| Column::new(name, ColumnType::Integer);
        let number = |name: String| Column::new(name, ColumnType::Number);
        let mut all = vec![text("path")];
        all.extend(self.has_rows.then(|| integer("row")));
        match &self.meaning {
            Meaning::Class(classes) | Meaning::Classes(classes) => {
                let several = matches!(self.meaning, Meaning::Classes(_));
                all.extend(several.then(|| text("classes")));
                if let Some(top) = self.top {
                    all.extend((1..=top).flat_map(|rank| {
                        let end = if rank == 1 { String::new() } else { format!("_{rank}") };
                        [text(&format!("class{end}")), number(format!("probability{end}"))]
                    }));
                } else {
                    all.extend((!several).then(|| text("class")));
                    all.extend(classes.iter().map(|class| number(format!("p_{class}"))));
                }
            }
            Meaning::Numbers(units) => {
                all.extend(units.iter().map(|unit| number(unit.name.clone())));
            }
            Meaning::Series(units, _) => {
                all.push(integer("step"));
                all.extend(self.has_dates.then(|| text("date")));
                all.extend(units.iter().map(|unit| number(unit.name.clone())));
            }
            Meaning::Loss => {
                all.extend([integer("tokens"), number("loss".into()), number("perplexity".into())]);
            }
        }
        all.push(text("error"));
        all
    }

    /// The rows of an item, from the `outcomes` of its samples.
    pub(crate) fn rows(&self, item: &InputItem, outcomes: &[&Outcome]) -> Vec<Vec<Value>> {
        let mut head = vec![Value::text(item.file.display().to_string())];
        if self.has_rows {
            head.push(item.row.map_or(Value::Nothing, |row| Value::Integer(row as i64)));
        }
        let answers = self.answers(item, outcomes);
        let whole = |values: Vec<Value>, error| {
            head.iter().cloned().chain(values).chain([error]).collect::<Vec<_>>()
        };
        match answers {
            Ok(rows) => rows.into_iter().map(|row| whole(row, Value::Nothing)).collect(),
            Err(why) => {
                // The row names the file.
                let why = why.replacen(&format!(" `{}`", item.file.display()), "", 1);
                let empty = self.columns.len() - head.len() - 1;
                vec![whole(vec![Value::Nothing; empty], Value::text(why))]
            }
        }
    }

    /// The values of the rows between their names and the error, or the error.
    fn answers(&self, item: &InputItem, outcomes: &[&Outcome]) -> Result<Vec<Vec<Value>>, String> {
        item.samples.as_ref().map_err(Clone::clone)?;
        if self.meaning == Meaning::Loss {
            return loss(outcomes).map(|row| vec![row]);
        }
        let answer = match outcomes {
            [Outcome::Answer(answer)] => answer,
            [Outcome::Unreadable(why), ..] => return Err(why.clone()),
            _ => return Err("it was not predicted".to_owned()),
        };
        if let Some(value) = answer.iter().find(|value| !value.is_finite()) {
            return Err(format!("the model answers {value}"));
        }
        Ok(match &self.meaning {
            Meaning::Class(classes) => vec![self.class(classes, answer)],
            Meaning::Classes(classes) => vec![self.classes(classes, answer)],
            Meaning::Numbers(units) => vec![in_units(units, answer)],
            Meaning::Series(units, _) => self.steps(units, item, answer),
            Meaning::Loss => Vec::new(),
        })
    }

    fn class(&self, classes: &[String], answer: &[f32]) -> Vec<Value> {
        let probabilities = softmax(answer);
        let order = descending(answer);
        if let Some(top) = self.top {
            return ranked(classes, &probabilities, &order[..top]);
        }
        let first = order.first().map_or("", |&first| &classes[first]);
        let each = probabilities.into_iter().map(Value::of);
        std::iter::once(Value::text(first)).chain(each).collect()
    }

    fn classes(&self, classes: &[String], answer: &[f32]) -> Vec<Value> {
        let probabilities: Vec<f32> = answer.iter().map(|&score| sigmoid(score)).collect();
        let has = classes.iter().zip(&probabilities).filter(|(_, p)| **p > HAS);
        let has: Vec<&str> = has.map(|(class, _)| class.as_str()).collect();
        let each = match self.top {
            Some(top) => ranked(classes, &probabilities, &descending(answer)[..top]),
            None => probabilities.into_iter().map(Value::of).collect(),
        };
        std::iter::once(Value::text(has.join(";"))).chain(each).collect()
    }

    fn steps(&self, units: &[OutputScale], item: &InputItem, answer: &[f32]) -> Vec<Vec<Value>> {
        let steps = answer.chunks_exact(units.len()).enumerate();
        let step = |(at, values): (usize, &[f32])| {
            let mut row = vec![Value::Integer(at as i64 + 1)];
            if self.has_dates {
                let date = item.dates.get(at).and_then(Option::as_ref);
                row.push(date.map_or(Value::Nothing, Value::text));
            }
            row.extend(in_units(units, values));
            row
        };
        steps.map(step).collect()
    }
}

/// Renames columns of numbers that have the name of one of our own columns (`error`, `step`): names
/// are keys.
fn distinguish(columns: &mut [Column]) {
    let is_number = |column: &Column| column.kind == ColumnType::Number;
    let ours: Vec<String> =
        columns.iter().filter(|it| !is_number(it)).map(|it| it.name.clone()).collect();
    for column in columns.iter_mut().filter(|it| is_number(it)) {
        if ours.contains(&column.name) {
            column.name += "_predicted";
        }
    }
}

/// The meaning of the answers of a model.
fn meaning(plan: &Plan, answers: &PredictionKind) -> Result<Meaning, Error> {
    let outputs = plan.model.outputs;
    let names = |from: &[String]| -> Vec<String> {
        let name = |at: usize| from.get(at).cloned().unwrap_or_else(|| at.to_string());
        (0..outputs).map(name).collect()
    };
    let units = |given: &[OutputScale]| -> Vec<OutputScale> {
        let one = |at: usize| match (given.get(at), outputs) {
            (Some(unit), _) => unit.clone(),
            (None, 1) => OutputScale::plain("prediction"),
            (None, _) => OutputScale::plain(&format!("prediction_{}", at + 1)),
        };
        (0..outputs).map(one).collect()
    };
    let classes = &plan.data.classes;
    match (answers, plan.loss.targets) {
        (PredictionKind::TokenLoss, Targets::Classes) => Ok(Meaning::Loss),
        (PredictionKind::Series(given), _) => {
            Ok(Meaning::Series(given.clone(), plan.model.target.first().copied().unwrap_or(1)))
        }
        (PredictionKind::OfLoss(_), Targets::Classes) => Ok(Meaning::Class(names(classes))),
        (PredictionKind::OfLoss(_), Targets::MultiLabel) => Ok(Meaning::Classes(names(classes))),
        (PredictionKind::OfLoss(given), Targets::Numbers) => Ok(Meaning::Numbers(units(given))),
        _ => {
            let what = format!("the answers of `{}` are no predictions", plan.model.name());
            Err(Error::new(ExitCode::Refused, what))
        }
    }
}

impl Form {
    /// True if the losses of samples are predicted.
    pub(crate) fn wants_losses(&self) -> bool {
        self.meaning == Meaning::Loss
    }

    /// Length of the answer to a sample.
    pub(crate) fn width(&self) -> Option<usize> {
        match &self.meaning {
            Meaning::Class(classes) | Meaning::Classes(classes) => Some(classes.len()),
            Meaning::Numbers(units) => Some(units.len()),
            Meaning::Series(units, steps) => Some(units.len() * steps),
            Meaning::Loss => None,
        }
    }
}

/// Tokens, mean loss and perplexity of all windows of a text.
fn loss(outcomes: &[&Outcome]) -> Result<Vec<Value>, String> {
    let (mut sum, mut tokens) = (0.0, 0);
    for outcome in outcomes {
        match outcome {
            Outcome::Loss(mean, n) => {
                sum += mean * *n as f64;
                tokens += n;
            }
            Outcome::Unreadable(why) => return Err(why.clone()),
            Outcome::Answer(_) => {}
        }
    }
    // A mean of one window is that window's, to the bit.
    let mean = match outcomes {
        [Outcome::Loss(mean, _)] => *mean,
        _ => sum / tokens.max(1) as f64,
    };
    let number = |value: f64| {
        if value.is_finite() { Value::Number(value) } else { Value::Nothing }
    };
    Ok(vec![Value::Integer(tokens as i64), number(mean), number(mean.exp())])
}

fn in_units(units: &[OutputScale], values: &[f32]) -> Vec<Value> {
    units.iter().zip(values).map(|(unit, &value)| Value::of(unit.in_data_units(value))).collect()
}

/// Classes and their probabilities, in this order.
fn ranked(classes: &[String], probabilities: &[f32], order: &[usize]) -> Vec<Value> {
    let pair = |&at: &usize| [Value::text(&classes[at]), Value::of(probabilities[at])];
    order.iter().flat_map(pair).collect()
}

/// Places of the scores, the largest first; the first of equal ones.
fn descending(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> =
        scores.iter().map(|&score| (f64::from(score) - f64::from(largest)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| (weight / sum) as f32).collect()
}

fn sigmoid(score: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(score)).exp())) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_torch() {
        let close = |found: &[f32], torch: &[f32]| {
            found.iter().zip(torch).all(|(a, b)| (a - b).abs() <= f32::EPSILON * b)
        };
        // torch 2.15: torch.softmax(torch.tensor([1., 2., 4.]), 0), which sums in 32 bits.
        assert!(close(&softmax(&[1.0, 2.0, 4.0]), &[0.042_010_065, 0.114_195_19, 0.843_794_7]));
        assert_eq!(softmax(&[1000.0, 0.0]), [1.0, 0.0]);
        // torch.sigmoid(torch.tensor([-3., 0., 2.5]))
        let found: Vec<f32> = [-3.0, 0.0, 2.5].into_iter().map(sigmoid).collect();
        assert!(close(&found, &[0.047_425_874, 0.5, 0.924_141_8]), "{found:?}");
        assert_eq!(descending(&[1.0, 3.0, 3.0, -0.0, 0.0]), [1, 2, 0, 4, 3]);
    }

    #[test]
    fn a_number_is_never_called_as_another_column() {
        let column = |name: &str, kind| Column::new(name, kind);
        let mut columns = [
            column("path", ColumnType::Text),
            column("step", ColumnType::Integer),
            column("error", ColumnType::Number),
            column("step", ColumnType::Number),
            column("price", ColumnType::Number),
            column("error", ColumnType::Text),
        ];
        distinguish(&mut columns);
        let names = columns.map(|column| column.name);
        let expected = ["path", "step", "error_predicted", "step_predicted", "price", "error"];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_text_has_the_mean_over_its_tokens() {
        let windows = [Outcome::Loss(2.0, 3), Outcome::Loss(5.0, 1)];
        let all: Vec<&Outcome> = windows.iter().collect();
        let row = loss(&all).unwrap();
        assert_eq!(row[..2], [Value::Integer(4), Value::Number(2.75)]);
        let bad = Outcome::Unreadable("no".into());
        assert_eq!(loss(&[&windows[0], &bad]), Err("no".to_owned()));
    }
}
