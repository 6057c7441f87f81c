//! `ddprun sample [RUN]`: text from a run's best checkpoint, or what its policy does.

mod policy;

use std::path::Path;

use clap::Parser;
use serde_json::json;

use crate::cli::args::{Args, SampleArgs, Verb};
use crate::cli::verbatim;
use crate::data::{self, ChatTemplate, TextForm, Tokenizer};
use crate::kinds::Kinds;
use crate::plan::{Modality, Plan};
use crate::record::to_stderr;
use crate::runs::choose_checkpoint;
use crate::session::source_of;
use crate::user_error::{ErrorPage, ExitCode};
use crate::worker::{self, Sampling};

/// Prints the prompt and what the model makes of it, or the actions of a policy.
pub(crate) fn sample(args: &SampleArgs, kinds: &Kinds) -> Result<ExitCode, ErrorPage> {
    let chosen = choose_checkpoint(args.run.as_deref(), args.latest, args.strict)?;
    let (plan, opened) = (&chosen.run()?.plan, &chosen.opened);
    if plan.data.source.modality == Modality::Behaviour {
        return policy::sample(args, plan, opened, kinds);
    }
    let words = Words::of(plan, kinds)?;
    let prompt = words.read(&args.prompt)?;
    if !(args.temperature > 0.0 && args.temperature.is_finite()) {
        let page =
            format!("error: `--temperature` must be greater than 0, not {}", args.temperature);
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let asked = Sampling {
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
        end: words.end(),
    };
    let drawn = worker::sample(plan, opened, kinds, &prompt, &asked)
        .map_err(|error| ErrorPage::from_error(&error))?;
    let page = words.page(&args.prompt, &prompt, &drawn);
    let object = || json!({ "prompt": args.prompt, "text": page, "tokens": drawn });
    verbatim("sample", object, || page.clone() + "\n")
}

/// Prints what a run that is over has learnt to write, as `ddprun sample` does. Whatever is wrong
/// with that must not hide how the run ended.
pub(crate) fn at_the_end(tokens: u32, logs: &Path, kinds: &Kinds) {
    let (logs, tokens) = (logs.to_string_lossy(), tokens.to_string());
    let args = Args::try_parse_from(["ddprun", "sample", "--tokens", &tokens, "--", &logs]);
    let Ok(Args { verb: Some(Verb::Sample(args)), .. }) = args else { return };
    if let Err(refusal) = sample(&args, kinds) {
        to_stderr(&format!("warning: no text was sampled: {refusal}"));
    }
}

/// How a run's model reads and writes.
enum Words<'a> {
    /// Characters, of this vocabulary.
    Characters(&'a Plan),
    /// Numbers of tokens.
    Numbers(&'a Plan),
    /// Text in tokens.
    Text(Box<Tokenizer>),
    /// Chats, written by a template; a token ends answers.
    Chat(Box<Tokenizer>, Box<ChatTemplate>, Option<u32>),
    /// Answers to instructions, ended by a token.
    Answers(Box<Tokenizer>, Option<u32>),
}

impl<'a> Words<'a> {
    fn of(plan: &'a Plan, kinds: &Kinds) -> Result<Self, ErrorPage> {
        let open = |path: &Path| Tokenizer::open(path).map(Box::new);
        Ok(match source_of(plan, kinds)?.text() {
            Some(TextForm::Tokens(path)) => Self::Text(open(&path)?),
            Some(TextForm::Characters) => Self::Characters(plan),
            Some(TextForm::Numbers) => Self::Numbers(plan),
            Some(TextForm::Answers { tokenizer, eos_token }) => {
                let tokenizer = open(&tokenizer)?;
                let end = tokenizer.end(eos_token.as_deref());
                Self::Answers(tokenizer, end)
            }
            Some(TextForm::Chat { tokenizer: path, chat_template, eos_token }) => {
                let tokenizer = open(&path)?;
                let template = ChatTemplate::open(&path, chat_template.as_deref());
                let template = Box::new(template?);
                let end = tokenizer.end(eos_token.as_deref().or_else(|| template.eos_token()));
                Self::Chat(tokenizer, template, end)
            }
            None => {
                let what = format!("`{}` was trained neither on text nor as a policy", plan.name);
                let help = "use `ddprun predict`, which predicts for files";
                return Err(refuse(format!("{what}\n  do: {help}")));
            }
        })
    }

    /// The prompt in tokens.
    fn read(&self, text: &str) -> Result<Vec<u32>, ErrorPage> {
        let tokens = match self {
            Self::Characters(plan) => {
                let unknown = |c: char| {
                    refuse(format!("character `{}` is not in the vocabulary", c.escape_debug()))
                };
                data::encode(&plan.data.classes, text).map_err(unknown)?
            }
            Self::Numbers(plan) => {
                let n = plan.data.classes.len();
                let number =
                    |word: &str| word.parse().ok().filter(|&token: &u32| (token as usize) < n);
                let why =
                    || refuse(format!("the prompt `{text}` is not a list of token ids below {n}"));
                text.split_whitespace().map(number).collect::<Option<_>>().ok_or_else(why)?
            }
            Self::Text(tokenizer) => tokenizer.encode(text, false).map_err(refuse)?,
            Self::Chat(tokenizer, template, _) => {
                let asked = template.prompt(&[json!({"role": "user", "content": text})]);
                asked.and_then(|asked| tokenizer.encode(&asked, false)).map_err(refuse)?
            }
            Self::Answers(tokenizer, _) => {
                tokenizer.encode(&data::prompt(text, ""), true).map_err(refuse)?
            }
        };
        // Nothing comes of nothing: nanoGPT, too, begins with a line end.
        Ok(if tokens.is_empty() { vec![0] } else { tokens })
    }

    fn end(&self) -> Option<u32> {
        match self {
            Self::Answers(_, end) | Self::Chat(.., end) => *end,
            _ => None,
        }
    }

    /// The prompt and what was drawn after it: characters one after the other, numbers with spaces
    /// between them.
    fn page(&self, text: &str, prompt: &[u32], drawn: &[u32]) -> String {
        let all = prompt.iter().chain(drawn);
        match self {
            Self::Characters(plan) => {
                let word =
                    |&token: &u32| plan.data.classes.get(token as usize).map_or("", String::as_str);
                all.map(word).collect()
            }
            Self::Numbers(_) => all.flat_map(|token| [token.to_string(), " ".to_owned()]).collect(),
            Self::Text(tokenizer) => tokenizer.decode(&all.copied().collect::<Vec<_>>()),
            Self::Answers(tokenizer, _) | Self::Chat(tokenizer, ..) => {
                format!("{text}\n{}", tokenizer.decode(drawn).trim())
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
fn refuse(why: String) -> ErrorPage {
    ErrorPage::new(ExitCode::Refused, format!("error: {why}"))
}
