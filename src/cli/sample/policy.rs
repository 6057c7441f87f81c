//! What a policy does: after given observations, or in the simulation of its data.

use serde_json::{Value, json};

use crate::checkpoint::Opened;
use crate::cli::answer;
use crate::cli::args::SampleArgs;
use crate::kinds::Kinds;
use crate::plan::Plan;
use crate::user_error::{ErrorPage, ExitCode};
use crate::worker::{self, Episode};

/// One action a line, numbers with commas between them, in the units of the data.
pub(super) fn sample(
    args: &SampleArgs,
    plan: &Plan,
    opened: &Opened,
    kinds: &Kinds,
) -> Result<ExitCode, ErrorPage> {
    let failed = |error: worker::Error| ErrorPage::from_error(&error);
    if args.prompt.trim().is_empty() {
        let episodes = worker::roll_out(plan, opened, kinds, args.episodes, args.seed);
        return match episodes.map_err(failed)? {
            Some(episodes) => answer("episodes", || objects(&episodes), || table(&episodes)),
            None => Err(refusal("there is no simulation of this data", plan)),
        };
    }
    if plan.model.cameras.is_some() {
        let page = "error: the policy sees images, which a prompt of numbers does not hold";
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let seen = observations(plan, &args.prompt)
        .ok_or_else(|| refusal("the prompt is not a list of observations", plan))?;
    let actions = worker::act(plan, opened, kinds, seen, args.seed).map_err(failed)?;
    let actions = actions.unwrap_or_default();
    let lines = || actions.iter().map(|action| numbers(action) + "\n").collect();
    answer("actions", || json!({ "actions": actions }), lines)
}

/// Each step: what was seen, and what was done.
fn objects(episodes: &[Episode]) -> Value {
    let step = |deed: &worker::Transition| json!({ "observation": deed.observation, "action": deed.action });
    let episode = |episode: &Episode| {
        let steps: Vec<Value> = episode.deeds.iter().map(step).collect();
        json!({ "steps": steps, "end": episode.end() })
    };
    json!({ "episodes": episodes.iter().map(episode).collect::<Vec<_>>() })
}

fn refusal(why: &str, plan: &Plan) -> ErrorPage {
    let [seen, numbers] = shape(plan);
    let page = format!(
        "error: {why}\n  do: give the last {seen} observations of {numbers} numbers each with \
         `--prompt`, oldest first"
    );
    ErrorPage::new(ExitCode::Refused, page)
}

/// Observations that the policy sees, and numbers of each.
fn shape(plan: &Plan) -> [usize; 2] {
    let input = &plan.model.input;
    [input.first().copied().unwrap_or(0), input.get(1).copied().unwrap_or(0)]
}

/// As many observations as the policy sees.
fn observations(plan: &Plan, text: &str) -> Option<Vec<Vec<f32>>> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let number = |word: &str| word.parse().ok().filter(|value: &f32| value.is_finite());
    let values: Vec<f32> = words.map(number).collect::<Option<_>>()?;
    let [seen, numbers] = shape(plan);
    (values.len() == seen * numbers).then(|| values.chunks(numbers).map(<[f32]>::to_vec).collect())
}

/// A line for each step: what was seen, and what was done.
fn table(episodes: &[Episode]) -> String {
    let names = episodes.first().map_or(String::new(), |first| first.names().join(","));
    let head = format!("episode,step,{names}\n");
    let line = |episode: usize, (step, deed): (usize, &worker::Transition)| {
        format!("{episode},{step},{},{}\n", numbers(&deed.observation), numbers(&deed.action))
    };
    let lines = episodes.iter().enumerate().flat_map(|(number, episode)| {
        let steps = episode.deeds.iter().enumerate();
        // Where everything was left, with no action.
        let end = format!("{number},{},{},,\n", episode.deeds.len(), numbers(&episode.end()));
        steps.map(move |step| line(number, step)).chain(std::iter::once(end))
    });
    head + &lines.collect::<String>()
}

fn numbers(values: &[f32]) -> String {
    values.iter().map(|value| format!("{value:.3}")).collect::<Vec<_>>().join(",")
}
