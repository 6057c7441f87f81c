//! `ddprun sample [RUN]`: text from a run's best checkpoint, or what its policy does.

mod policy;

use crate::cli::args::SampleArgs;
use crate::cli::evaluate::checkpoint_of;
use crate::cli::prepare::find_run;
use crate::cli::{Refusal, to_stdout};
use crate::data;
use crate::model::Registry;
use crate::plan::{Plan, SourcePlan};
use crate::worker::{self, Sampling, exit};

/// Prints the prompt and what the model makes of it, or the actions of a policy.
pub(crate) fn sample(args: &SampleArgs, registry: &Registry) -> Result<u8, Refusal> {
    let description = find_run(args.run.as_deref())?;
    let plan = &description.plan;
    if let SourcePlan::Trajectories { .. } = plan.data.source {
        let opened = checkpoint_of(&description.run, args.latest)?;
        return policy::sample(args, plan, &opened, registry);
    }
    let prompt = prompt(plan, &args.prompt)?;
    if !(args.temperature > 0.0 && args.temperature.is_finite()) {
        let page =
            format!("error: `--temperature` must be greater than 0, not {}", args.temperature);
        return Err(Refusal::new(exit::REFUSED, page));
    }
    let opened = checkpoint_of(&description.run, args.latest)?;
    let asked = Sampling {
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
    };
    let drawn = worker::sample(plan, &opened, registry, &prompt, &asked)
        .map_err(|error| Refusal::of(error.exit_code(), &error, error.help()))?;
    to_stdout(&(written(plan, &prompt) + &written(plan, &drawn) + "\n"))
}

/// The prompt as tokens of the run's vocabulary.
fn prompt(plan: &Plan, text: &str) -> Result<Vec<u32>, Refusal> {
    let refuse = |why: String| Refusal::new(exit::REFUSED, format!("error: {why}"));
    let vocabulary = &plan.data.classes;
    let tokens = match plan.data.source {
        SourcePlan::Text { .. } => {
            let unknown =
                || refuse(format!("the model never saw a character of the prompt `{text}`"));
            data::encode(vocabulary, text).ok_or_else(unknown)?
        }
        SourcePlan::Tokens { .. } => {
            let number =
                |word: &str| word.parse().ok().filter(|&n: &u32| (n as usize) < vocabulary.len());
            let why = || refuse(format!("the prompt `{text}` is not a row of token numbers"));
            text.split_whitespace().map(number).collect::<Option<_>>().ok_or_else(why)?
        }
        _ => return Err(refuse(format!("`{}` was not trained on text", plan.name))),
    };
    // Nothing comes of nothing: nanoGPT, too, begins with a line end.
    Ok(if tokens.is_empty() { vec![0] } else { tokens })
}

/// Characters one after the other, tokens with spaces between them.
fn written(plan: &Plan, tokens: &[u32]) -> String {
    let word = |&token: &u32| plan.data.classes.get(token as usize).map_or("", String::as_str);
    let words = tokens.iter().map(word);
    match plan.data.source {
        SourcePlan::Tokens { .. } => words.flat_map(|word| [word, " "]).collect(),
        _ => words.collect(),
    }
}
