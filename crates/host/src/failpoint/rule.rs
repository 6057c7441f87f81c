//! Text -> rules: where, who, when, and what then. Pure.

use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Kill,
    Stop,
    Panic,
    Hang,
    /// SIGTERM.
    Term,
    /// SIGHUP.
    Hup,
    /// SIGTERM to the parent.
    TermParent,
    /// SIGKILL to the parent.
    KillParent,
    /// A bit of what is at the point is turned, where the point can do that.
    Flip,
    /// A device has no memory left, where the point uses one.
    Oom,
    /// The work that was begun at the point is waited for, where it can be.
    Wait,
    /// Milliseconds.
    Sleep(u64),
    Exit(i32),
}

/// Visit of a point by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    /// `None` = the parent.
    pub(super) rank: Option<u64>,
    pub(super) step: u64,
    pub(super) restart: u64,
    /// Number of this visit of the point by this process, from 1.
    pub(super) hit: u64,
}

/// One rule of `DDPRUN_FP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) point: String,
    pub(super) action: Action,
    who: RankFilter,
    /// `None` = any; so below.
    step: Option<u64>,
    restart: Option<u64>,
    hit: Option<u64>,
}

/// Processes that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankFilter {
    Anybody,
    Parent,
    Rank(u64),
}

impl RankFilter {
    fn is(self, rank: Option<u64>) -> bool {
        match self {
            Self::Anybody => true,
            Self::Parent => rank.is_none(),
            Self::Rank(number) => rank == Some(number),
        }
    }
}

impl Rule {
    /// All rules of a text.
    pub(super) fn all(text: &str) -> Result<Vec<Self>, String> {
        text.split(';').map(str::trim).filter(|rule| !rule.is_empty()).map(Self::from_str).collect()
    }

    /// True if the rule applies to this visit.
    pub(super) fn fits(&self, visit: &Visit) -> bool {
        self.who.is(visit.rank)
            && self.step.is_none_or(|step| step == visit.step)
            && self.restart.is_none_or(|restart| restart == visit.restart)
            && self.hit.is_none_or(|hit| hit == visit.hit)
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not `point=action@rank,step,restart,hit`");
        let (point, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (action, place) = rest.split_once('@').unwrap_or((rest, "*"));
        let mut words = place.split(',').map(str::trim);
        let who = match words.next() {
            Some("parent") => RankFilter::Parent,
            word => number(word).ok_or_else(wrong)?.map_or(RankFilter::Anybody, RankFilter::Rank),
        };
        let step = number(words.next()).ok_or_else(wrong)?;
        let restart = number(words.next().or(Some("0"))).ok_or_else(wrong)?;
        let hit = number(words.next()).ok_or_else(wrong)?;
        let action = action_of(action.trim()).ok_or_else(wrong)?;
        match words.next() {
            None => Ok(Self { point: point.trim().to_owned(), action, who, step, restart, hit }),
            Some(_) => Err(wrong()),
        }
    }
}

fn action_of(text: &str) -> Option<Action> {
    match text {
        "kill" => Some(Action::Kill),
        "stop" => Some(Action::Stop),
        "panic" => Some(Action::Panic),
        "hang" => Some(Action::Hang),
        "term" => Some(Action::Term),
        "hup" => Some(Action::Hup),
        "term(parent)" => Some(Action::TermParent),
        "kill(parent)" => Some(Action::KillParent),
        "flip" => Some(Action::Flip),
        "oom" => Some(Action::Oom),
        "wait" => Some(Action::Wait),
        _ => match text.strip_suffix(')')?.split_once('(')? {
            ("exit", code) => code.parse().ok().map(Action::Exit),
            ("sleep", time) => time.parse().ok().map(Action::Sleep),
            _ => None,
        },
    }
}

/// `*`, or nothing, is any number.
#[expect(clippy::option_option, reason = "no number, any number, this number")]
fn number(word: Option<&str>) -> Option<Option<u64>> {
    match word {
        None | Some("*") => Some(None),
        Some(word) => word.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    const VISIT: Visit = Visit { rank: Some(1), step: 7, restart: 0, hit: 2 };

    fn fits(rule: &str, visit: Visit) -> bool {
        rule.parse::<Rule>().unwrap().fits(&visit)
    }

    #[test]
    fn a_rule_is_about_a_rank_a_step_an_attempt_and_a_hit() {
        for rule in ["a=kill", "a=kill@1", "a=kill@1,7", "a=kill@*,7,0", "a=kill@1,*,*,2"] {
            assert!(fits(rule, VISIT), "{rule}");
        }
        for rule in ["a=kill@0", "a=kill@parent", "a=kill@1,8", "a=kill@1,7,1", "a=kill@1,7,0,1"] {
            assert!(!fits(rule, VISIT), "{rule}");
        }
        assert!(!fits("a=kill@1,7", Visit { restart: 1, ..VISIT }), "only the first attempt");
        assert!(fits("a=kill@parent", Visit { rank: None, ..VISIT }));
    }

    #[test]
    fn rules_are_separated_and_named() {
        let rules = Rule::all(" a.b = exit(3) @0 ; c=hang; ").unwrap();
        assert_eq!((rules[0].point.as_str(), rules[0].action), ("a.b", Action::Exit(3)));
        assert_eq!((rules[1].point.as_str(), rules[1].action), ("c", Action::Hang));
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in [
            "a",
            "a=explode",
            "a=exit(x)",
            "a=nap(1)",
            "a=sleep(-1)",
            "a=kill@x",
            "a=kill@1,2,3,4,5",
            "a=kill@1,,",
        ] {
            assert_refused(Rule::all(text), "is not `point=action@rank,step,restart,hit`");
        }
    }
}
