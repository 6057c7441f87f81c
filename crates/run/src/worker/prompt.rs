//! A prompt -> tokens or observations, and the tokens that a model draws -> text.

use std::path::Path;

use serde_json::json;

use crate::data::{self, ChatTemplate, TextForm, Tokenizer};
use crate::plan::Plan;
use crate::user_error::{ErrorPage, ExitCode};

/// The form in which a run's model reads and writes text.
pub enum PromptFormat<'a> {
    /// Characters of this vocabulary.
    Characters(&'a Plan),
    /// Token ids.
    Numbers(&'a Plan),
    /// Text in tokens.
    Text(Box<Tokenizer>),
    /// Chats, written by a template; a token ends answers.
    Chat(Box<Tokenizer>, Box<ChatTemplate>, Option<u32>),
    /// Answers to instructions, ended by a token.
    Answers(Box<Tokenizer>, Option<u32>),
}

impl<'a> PromptFormat<'a> {
    /// The form of the run's data.
    ///
    /// # Errors
    ///
    /// The run was not trained on text, or the tokenizer cannot be used.
    pub fn of(plan: &'a Plan, text: Option<TextForm>) -> Result<Self, ErrorPage> {
        let open = |path: &Path| Tokenizer::open(path).map(Box::new);
        Ok(match text {
            Some(TextForm::Tokens(path)) => Self::Text(open(&path)?),
            Some(TextForm::Characters) => Self::Characters(plan),
            Some(TextForm::Numbers) => Self::Numbers(plan),
            Some(TextForm::Answers { tokenizer: path, eos_token }) => {
                let tokenizer = open(&path)?;
                let end = data::end_of_answers(&tokenizer, &path, eos_token.as_deref())?;
                Self::Answers(tokenizer, Some(end))
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
                return Err(refuse(what).help("use `ddprun predict`, which predicts for files"));
            }
        })
    }

    /// Encodes a prompt in tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ErrorPage> {
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

    /// The token that ends an answer.
    pub fn end(&self) -> Option<u32> {
        match self {
            Self::Answers(_, end) | Self::Chat(.., end) => *end,
            _ => None,
        }
    }

    /// The prompt and the tokens `drawn` after it: characters one after the other, numbers with
    /// spaces between them.
    pub fn page(&self, text: &str, prompt: &[u32], drawn: &[u32]) -> String {
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

/// Parses the observations that a policy sees, oldest first, as numbers.
pub fn parse_observations(plan: &Plan, text: &str) -> Result<Vec<Vec<f32>>, ErrorPage> {
    if plan.model.cameras.is_some() {
        let why = "the policy sees images, which a prompt of numbers does not hold".to_owned();
        return Err(refuse(why));
    }
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let number = |word: &str| word.parse().ok().filter(|value: &f32| value.is_finite());
    let values: Option<Vec<f32>> = words.map(number).collect();
    let [seen, numbers] = shape(plan);
    let values = values.filter(|values| numbers > 0 && values.len() == seen * numbers);
    let observations = values.map(|values| values.chunks(numbers).map(<[f32]>::to_vec).collect());
    observations
        .ok_or_else(|| refuse_observations("the prompt is not a list of observations", plan))
}

/// The refusal of a prompt for a policy, with the prompt that it needs.
pub fn refuse_observations(why: &str, plan: &Plan) -> ErrorPage {
    let [seen, numbers] = shape(plan);
    refuse(why.to_owned()).help(format!(
        "give the last {seen} observations of {numbers} numbers each with `--prompt`, oldest first"
    ))
}

/// Number of observations that the policy sees, and of numbers in each.
fn shape(plan: &Plan) -> [usize; 2] {
    let input = &plan.model.input;
    [input.first().copied().unwrap_or(0), input.get(1).copied().unwrap_or(0)]
}
