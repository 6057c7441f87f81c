//! `train.batch_size * distributed.devices <= 256`: a rule between values, and its small language.
//!
//! Names are keys of the experiment; `+ - * / %`, comparisons, `and`, `or`, `not`, brackets,
//! numbers, quoted words, `true` and `false`. A rule about a key that has no value holds.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

use crate::config::sweep::Json;

/// A rule between values.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint {
    text: String,
    term: Term,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Value(Json),
    Name(String),
    Not(Box<Term>),
    Two(Box<Term>, &'static str, Box<Term>),
}

/// Operators, weakest first; those of one level bind from left to right.
const LEVELS: [&[&str]; 5] =
    [&["or"], &["and"], &["==", "!=", "<=", ">=", "<", ">"], &["+", "-"], &["*", "/", "%"]];

impl Serialize for Constraint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Constraint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|(what, _)| D::Error::custom(what))
    }
}

impl Constraint {
    /// Reads a rule.
    ///
    /// # Errors
    ///
    /// The reason, and the byte at which it shows.
    pub fn parse(text: &str) -> Result<Self, (String, usize)> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let term = parser.level(0)?;
        match parser.peek() {
            "" => Ok(Self { text: text.to_owned(), term }),
            rest => Err((format!("unexpected `{}`", token(rest)), parser.at)),
        }
    }

    /// True if the rule holds for the values that `value_of` returns for keys.
    pub fn holds(&self, value_of: &dyn Fn(&str) -> Option<Json>) -> bool {
        self.term.value(value_of).is_none_or(|value| value != Json::Bool(false))
    }

    /// The keys that it speaks of.
    pub fn names(&self) -> Vec<String> {
        let mut open = vec![&self.term];
        let mut found = Vec::new();
        while let Some(term) = open.pop() {
            match term {
                Term::Value(_) => {}
                Term::Name(name) => found.push(name.clone()),
                Term::Not(inner) => open.push(inner),
                Term::Two(left, _, right) => open.extend([&**right, &**left]),
            }
        }
        found
    }

    /// The rule as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Term {
    /// `None` where a key has no value, or values cannot be put together.
    fn value(&self, value_of: &dyn Fn(&str) -> Option<Json>) -> Option<Json> {
        match self {
            Self::Value(value) => Some(value.clone()),
            Self::Name(name) => value_of(name),
            Self::Not(inner) => Some(Json::Bool(!inner.value(value_of)?.as_bool()?)),
            Self::Two(left, sign, right) => {
                let (left, right) = (left.value(value_of), right.value(value_of));
                match *sign {
                    // A part that does not apply does not decide.
                    "and" => Some(Json::Bool(truth(left.as_ref()) && truth(right.as_ref()))),
                    "or" => Some(Json::Bool(truth(left.as_ref()) || truth(right.as_ref()))),
                    sign => combine(&left?, sign, &right?),
                }
            }
        }
    }
}

fn truth(value: Option<&Json>) -> bool {
    value.is_none_or(|value| *value != Json::Bool(false))
}

fn combine(left: &Json, sign: &str, right: &Json) -> Option<Json> {
    let numbers = left.as_f64().zip(right.as_f64());
    match sign {
        "==" => Some(Json::Bool(numbers.map_or(left == right, |(a, b)| a == b))),
        "!=" => Some(Json::Bool(numbers.map_or(left != right, |(a, b)| a != b))),
        _ => {
            let (a, b) = numbers?;
            Some(match sign {
                "<=" => Json::Bool(a <= b),
                ">=" => Json::Bool(a >= b),
                "<" => Json::Bool(a < b),
                ">" => Json::Bool(a > b),
                "+" => Json::from(a + b),
                "-" => Json::from(a - b),
                "*" => Json::from(a * b),
                "/" => Json::from(a / b),
                _ => Json::from(a % b),
            })
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

type Parsed = Result<Term, (String, usize)>;

/// Brackets in brackets end here.
const MAX_DEPTH: usize = 64;

impl<'a> Parser<'a> {
    /// The rest of the text, without white space at its start.
    fn peek(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    fn level(&mut self, level: usize) -> Parsed {
        let Some(signs) = LEVELS.get(level) else { return self.atom() };
        let mut left = self.level(level + 1)?;
        while let Some(sign) = self.sign(signs) {
            let right = self.level(level + 1)?;
            left = Term::Two(Box::new(left), sign, Box::new(right));
        }
        Ok(left)
    }

    fn sign(&mut self, signs: &[&'static str]) -> Option<&'static str> {
        let rest = self.peek();
        let is_next = |sign: &&&'static str| {
            let letters = sign.chars().all(|c| c.is_ascii_alphabetic());
            if letters { word(rest) == **sign } else { rest.starts_with(**sign) }
        };
        let sign = signs.iter().find(is_next)?;
        self.at += sign.len();
        Some(sign)
    }

    fn atom(&mut self) -> Parsed {
        let rest = self.peek();
        let here = self.at;
        let first = rest.chars().next();
        match first {
            None => Err(("ends unexpectedly".to_owned(), here.saturating_sub(1))),
            Some('(') => self.brackets(),
            Some(quote @ ('"' | '\'')) => {
                let end = rest[1..].find(quote).ok_or(("unterminated quote".to_owned(), here))?;
                self.at += end + 2;
                Ok(Term::Value(Json::from(&rest[1..=end])))
            }
            Some(_) => {
                let name = word(rest);
                self.at += name.len();
                match name {
                    "" => Err((format!("unexpected character `{}`", token(rest)), here)),
                    "true" | "false" => Ok(Term::Value(Json::Bool(name == "true"))),
                    "not" => Ok(Term::Not(Box::new(self.level(2)?))),
                    name => Ok(number(name).map_or_else(
                        || Term::Name(name.to_owned()),
                        |number| Term::Value(Json::from(number)),
                    )),
                }
            }
        }
    }

    fn brackets(&mut self) -> Parsed {
        let here = self.at;
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err((format!("is nested deeper than {MAX_DEPTH} levels"), here));
        }
        let inner = self.level(0)?;
        self.depth -= 1;
        if !self.peek().starts_with(')') {
            return Err(("missing `)`".to_owned(), here));
        }
        self.at += 1;
        Ok(inner)
    }
}

/// The word at the beginning of `text`, or else its first character.
fn token(text: &str) -> String {
    match word(text) {
        "" => text.chars().take(1).collect(),
        word => word.to_owned(),
    }
}

/// The name, number or word operator at the beginning of `text`; of a number also its exponent's
/// sign.
fn word(text: &str) -> &str {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
    let numeric = text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.');
    let mut before = ' ';
    let end = text.char_indices().find(|&(at, c)| {
        let sign = "+-".contains(c)
            && numeric
            && (matches!(before, 'e' | 'E') || at == 0)
            && text[at + 1..].starts_with(|c: char| c.is_ascii_digit() || c == '.');
        before = c;
        !plain(c) && !sign
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

fn number(word: &str) -> Option<f64> {
    let starts = word.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.');
    if starts { word.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn known(name: &str) -> Option<Json> {
        match name {
            "train.batch_size" => Some(json!(32)),
            "model.dim" => Some(json!(96)),
            "optimizer.name" => Some(json!("sgd")),
            "optimizer.lr" => Some(json!(0.01)),
            _ => None,
        }
    }

    #[track_caller]
    fn check(text: &str, expected: bool) {
        let constraint = Constraint::parse(text).unwrap();
        assert_eq!(constraint.holds(&known), expected, "{text}");
    }

    #[test]
    fn rules_follow_the_usual_order_of_operations() {
        check("train.batch_size * 2 + 1 == 65", true);
        check("1 + train.batch_size * 2 == 66", false);
        check("(1 + train.batch_size) * 2 == 66", true);
        check("model.dim % train.batch_size == 0", true);
        check("10 - 4 - 3 == 3", true);
        check("optimizer.lr <= 1e-2 and optimizer.lr > -1e+3", true);
        check("train.batch_size>=33 or optimizer.name == 'sgd'", true);
        check("not optimizer.name == \"sgd\"", false);
        check("optimizer.name != \"adamw\" and not (train.batch_size > 8)", false);
    }

    #[test]
    fn a_rule_about_a_key_without_a_value_holds() {
        check("optimizer.momentum > 0.5", true);
        check("optimizer.momentum > 0.5 and train.batch_size > 64", false);
    }

    #[test]
    fn what_is_no_rule_is_refused_at_its_place() {
        for (text, at) in [("1 +", 2), ("a.b = 3", 4), ("(a.b > 1", 0), ("a.b > 'x", 6), ("", 0)] {
            assert_eq!(Constraint::parse(text).unwrap_err().1, at, "{text}");
        }
        let (error, _) = Constraint::parse(&"(".repeat(100_000)).unwrap_err();
        assert!(error.contains("deep"), "{error}");
    }

    #[test]
    fn the_keys_of_a_rule_are_known_in_order() {
        let constraint = Constraint::parse("a.b * c.d <= 2 and not e.f == 'g.h'").unwrap();
        assert_eq!(constraint.names(), ["a.b", "c.d", "e.f"]);
    }
}
