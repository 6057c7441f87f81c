//! `sweep.method = "grid"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Requirement};
use crate::config::sweep::{MAX_POINTS, Parameter, Search, Values, as_written, ordered};
use crate::sweep::method::Method;

/// every combination of listed or quantised values, the last parameter varying fastest. `trials`
/// may limit it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Grid {}

impl Kind for Grid {
    const NAME: &'static str = "grid";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::Parameters, Requirement::Points];
}

impl Method for Grid {
    fn points(&self, search: &Search) -> Option<Vec<Values>> {
        let mut found = Vec::new();
        expand(&ordered(&search.parameters), &mut Values::new(), &mut found);
        for values in &mut found {
            as_written(&search.parameters, values);
        }
        Some(found)
    }
}

fn expand(parameters: &[&Parameter], values: &mut Values, found: &mut Vec<Values>) {
    let Some((first, rest)) = parameters.split_first() else {
        found.push(values.clone());
        return;
    };
    if !first.is_active(values) {
        return expand(rest, values, found);
    }
    for point in first.domain.points(MAX_POINTS).unwrap_or_default() {
        values.push((first.key.clone(), point));
        expand(rest, values, found);
        values.pop();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::sweep::{Condition, Domain};
    use crate::sweep::example_sweeps::search;

    #[test]
    fn a_grid_holds_every_combination_with_the_last_parameter_fastest() {
        let mut search = search("grid");
        search.parameters = vec![
            Parameter::new("a", Domain::Categorical { values: vec![json!("x"), json!("y")] }),
            Parameter::new("b", Domain::IntUniform { min: 1, max: 2 }),
        ];
        let points = Grid {}.points(&search).unwrap();
        let pairs: Vec<String> = points.iter().map(|v| format!("{}{}", v[0].1, v[1].1)).collect();
        assert_eq!(pairs, ["\"x\"1", "\"x\"2", "\"y\"1", "\"y\"2"]);
    }

    #[test]
    fn a_parameter_whose_condition_does_not_hold_is_absent_and_makes_no_points() {
        let mut search = search("grid");
        let mut momentum =
            Parameter::new("m", Domain::Categorical { values: vec![json!(1), json!(2)] });
        momentum.when = vec![Condition { key: "a".into(), values: vec![json!("x")] }];
        let a = Parameter::new("a", Domain::Categorical { values: vec![json!("x"), json!("y")] });
        // Written before its parent, it is still decided after it.
        search.parameters = vec![momentum, a];
        let points = Grid {}.points(&search).unwrap();
        assert_eq!(points.len(), 3);
        assert_eq!(points[2], [("a".to_owned(), json!("y"))]);
        assert_eq!(points[0][0].0, "m");
    }
}
