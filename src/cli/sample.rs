//! `ddprun sample [RUN]`: text from a run's best checkpoint, or the actions of its policy.

use std::path::Path;

use clap::Parser;
use serde_json::{Value, json};

use crate::checkpoint::OpenCheckpoint;
use crate::cli::args::{Args, SampleArgs, Verb};
use crate::cli::{answer, verbatim};
use crate::kinds::Kinds;
use crate::plan::{Modality, Plan};
use crate::record::to_stderr;
use crate::runs::choose_checkpoint;
use crate::session::source_of;
use crate::user_error::{ErrorPage, ExitCode};
use crate::worker::{
    self, Episode, PromptFormat, Sampling, parse_observations, refuse_observations,
};

/// Prints the prompt and its continuation, or the actions of a policy.
pub(crate) fn sample(args: &SampleArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let chosen = choose_checkpoint(args.run.as_deref(), args.latest, args.strict)?;
    let (plan, opened) = (&chosen.run()?.plan, &chosen.opened);
    if plan.data.source.modality == Modality::Behaviour {
        return sample_policy(args, plan, opened, kinds);
    }
    let format = PromptFormat::of(plan, source_of(plan, kinds)?.text())?;
    let prompt = format.encode(&args.prompt)?;
    if !(args.temperature > 0.0 && args.temperature.is_finite()) {
        let page =
            format!("error: `--temperature` must be greater than 0, not {}", args.temperature);
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let sampling = Sampling {
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
        end: format.end(),
    };
    let drawn = worker::sample(plan, opened, kinds, &prompt, &sampling)?;
    let page = format.page(&args.prompt, &prompt, &drawn);
    let object = || json!({ "prompt": args.prompt, "text": page, "tokens": drawn });
    verbatim("sample", object, || page.clone() + "\n")
}

/// Prints a sample of a run that is over, as `ddprun sample` does. Whatever is wrong with that must
/// not hide how the run ended.
pub(crate) fn at_the_end(tokens: u32, logs: &Path, kinds: &Kinds) {
    let (logs, tokens) = (logs.to_string_lossy(), tokens.to_string());
    let args = Args::try_parse_from(["ddprun", "sample", "--tokens", &tokens, "--", &logs]);
    let Ok(Args { verb: Some(Verb::Sample(args)), .. }) = args else { return };
    if let Err(refusal) = sample(&args, kinds) {
        to_stderr(&format!("warning: no text was sampled: {refusal}"));
    }
}

/// One action a line, numbers with commas between them, in the units of the data.
fn sample_policy(
    args: &SampleArgs,
    plan: &Plan,
    opened: &OpenCheckpoint,
    kinds: &Kinds,
) -> Result<ExitCode, ErrorPage> {
    if args.prompt.trim().is_empty() {
        let episodes = worker::roll_out(plan, opened, kinds, args.episodes, args.seed);
        return match episodes? {
            Some(episodes) => {
                answer("episodes", || episode_objects(&episodes), || episode_table(&episodes))
            }
            None => Err(refuse_observations("there is no simulation of this data", plan)),
        };
    }
    let seen = parse_observations(plan, &args.prompt)?;
    let actions = worker::act(plan, opened, kinds, seen, args.seed)?;
    let actions = actions.unwrap_or_default();
    let lines = || actions.iter().map(|action| numbers(action) + "\n").collect();
    answer("actions", || json!({ "actions": actions }), lines)
}

/// The observation and the action of each step.
fn episode_objects(episodes: &[Episode]) -> Value {
    let step = |deed: &worker::Transition| json!({ "observation": deed.observation, "action": deed.action });
    let episode = |episode: &Episode| {
        let steps: Vec<Value> = episode.transitions.iter().map(step).collect();
        json!({ "steps": steps, "end": episode.end() })
    };
    json!({ "episodes": episodes.iter().map(episode).collect::<Vec<_>>() })
}

/// A line for each step: its observation and its action.
fn episode_table(episodes: &[Episode]) -> String {
    let names = episodes.first().map_or(String::new(), |first| first.names().join(","));
    let head = format!("episode,step,{names}\n");
    let line = |episode: usize, (step, deed): (usize, &worker::Transition)| {
        format!("{episode},{step},{},{}\n", numbers(&deed.observation), numbers(&deed.action))
    };
    let lines = episodes.iter().enumerate().flat_map(|(number, episode)| {
        let steps = episode.transitions.iter().enumerate();
        // Where everything was left, with no action.
        let end = format!("{number},{},{},,\n", episode.transitions.len(), numbers(&episode.end()));
        steps.map(move |step| line(number, step)).chain(std::iter::once(end))
    });
    head + &lines.collect::<String>()
}

fn numbers(values: &[f32]) -> String {
    values.iter().map(|value| format!("{value:.3}")).collect::<Vec<_>>().join(",")
}
