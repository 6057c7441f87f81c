//! Conversations in their forms, and what of them counts.

use std::path::Path;

use super::*;
use crate::plan::OnBadSample;
use crate::user_error::UserError;
use crate::{Dataset, IGNORED, Target};

const CHECK: EntryCheck = EntryCheck::Survey(OnBadSample::Error);

impl Chat {
    fn opened(&self) -> Splits {
        self.splits(&SplitPlan::NONE, CHECK).unwrap().0
    }

    fn refused(&self) -> Error {
        self.splits(&SplitPlan::NONE, CHECK).err().unwrap()
    }

    /// Notes of a survey.
    fn notes(&self, on_bad_sample: OnBadSample) -> Vec<String> {
        self.splits(&SplitPlan::NONE, EntryCheck::Survey(on_bad_sample)).unwrap().2
    }

    /// The counted tokens of the first sample, as text.
    fn learnt(&self) -> String {
        let next = load(&*self.opened().train).1;
        let counted: Vec<u32> = next.into_iter().filter(|&token| token != IGNORED).collect();
        let words = Tokenizer::open(&self.tokenizer).unwrap().vocabulary();
        let word =
            |token: u32| words[token as usize].replace('\u{120}', " ").replace('\u{10a}', "~");
        counted.into_iter().map(word).collect()
    }

    /// All tokens of the first sample, as text, up to the padding.
    fn shown(&self) -> String {
        let (seen, _) = load(&*self.opened().train);
        let words = Tokenizer::open(&self.tokenizer).unwrap().vocabulary();
        let word =
            |token: f32| words[token as usize].replace('\u{120}', " ").replace('\u{10a}', "~");
        seen.into_iter().map(word).collect()
    }
}

/// Conversations in a file beside the tokenizer of `tests/golden/chat.py`.
fn source(folder: &Path, text: &str) -> Chat {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        crate::files::write_atomic(&path, bytes).unwrap();
        path
    };
    let tokenizer = include_bytes!("../../../../../../tests/golden/chat/tokenizer.json");
    Chat {
        file: write("chats.jsonl", text.as_bytes()),
        tokenizer: write("tokenizer.json", tokenizer),
        chat_template: Some("chatml".into()),
        seq_len: 64,
        val_ratio: 0.5,
        packing: false,
        mask_prompt: true,
        eos_token: Some("<|im_end|>".to_owned()),
        sample_tokens: None,
    }
}

const MESSAGES: &str =
    r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]}"#;
const SHARE_GPT: &str =
    r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "bc"}]}"#;
const ALPACA: &str = r#"{"instruction": "a", "input": "", "output": "bc"}"#;

fn load(data: &dyn Dataset) -> (Vec<f32>, Vec<u32>) {
    let mut values = Vec::new();
    match data.load(0, None, &mut values).unwrap() {
        Target::Classes(next) => (values, next),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_forms_are_the_same_conversation_of_which_the_answer_counts() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [MESSAGES, SHARE_GPT, ALPACA];
    let mut seen = Vec::new();
    for line in lines {
        let splits = source(folder.path(), &format!("{line}\n\n{line}\n")).opened();
        seen.push((load(&*splits.train), load(&*splits.val)));
    }
    let list = format!("[{}]", lines.join(", "));
    let mut of_list = source(folder.path(), &list);
    of_list.val_ratio = 0.3;
    seen.push((load(&*of_list.opened().train), load(&*of_list.opened().val)));
    assert!(seen.iter().all(|(train, val)| *train == seen[0].0 && val == train));
    let tokenizer = Tokenizer::open(&of_list.tokenizer).unwrap();
    let answer = tokenizer.encode("bc<|im_end|>\n", false).unwrap();
    let (shown, next) = &seen[0].0;
    let counted: Vec<u32> = next.iter().copied().filter(|&token| token != IGNORED).collect();
    assert_eq!(counted, answer);
    let at = next.iter().position(|&token| token == answer[0]).unwrap();
    assert_eq!(shown[at + 1], answer[0] as f32, "each token is followed by the next");
    let whole = Chat { mask_prompt: false, ..of_list };
    let (_, all) = load(&*whole.opened().train);
    let counted = all.iter().filter(|&&token| token != IGNORED).count();
    let text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nbc<|im_end|>\n";
    assert_eq!(counted + 1, tokenizer.encode(text, false).unwrap().len());
}

#[test]
fn a_conversation_that_cannot_be_used_is_named_by_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |line: &str, expected: &str| {
        let error = source(folder.path(), &format!("{MESSAGES}\n{line}")).refused();
        assert!(error.help().unwrap().contains("data.on_bad_sample = \"skip\""), "{error}");
        let error = error.to_string();
        assert!(error.contains("chats.jsonl`, line 2: ") && error.contains(expected), "{error}");
    };
    refused("hello", "it is not JSON");
    refused("[]", "it is not a JSON object");
    refused("{}", "it has neither `messages`, nor `conversations`, nor `instruction`");
    refused(r#"{"messages": [{"content": "a"}]}"#, "its message 1 has no `role`");
    refused(r#"{"messages": [{"role": "user", "content": "a"}]}"#, "there is nothing to learn");
    refused(
        r#"{"conversations": [{"from": "cat", "value": "a"}]}"#,
        "a turn of it is from \"cat\"",
    );
    let one = source(folder.path(), MESSAGES).refused().to_string();
    assert!(one.contains("leaves 0 of its 1 conversations"), "{one}");
    let no_end = Chat { eos_token: Some("<stop>".into()), ..source(folder.path(), MESSAGES) };
    let error = no_end.refused().to_string();
    assert!(error.contains("it has no token `<stop>`"), "{error}");
}

#[test]
fn conversations_are_held_back_at_random_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let chat = source(folder.path(), &[MESSAGES; 4].join("\n"));
    let of = |split: SplitPlan| chat.splits(&split, CHECK).unwrap().0;
    let split = SplitPlan { test_fraction: Some(0.5), ..SplitPlan::NONE };
    let splits = of(split);
    assert_eq!((splits.train.len(), splits.val.len(), splits.test.unwrap().len()), (1, 2, 1));
    let names: std::collections::BTreeSet<String> = (0..4)
        .map(|fold| of(SplitPlan { folds: Some(4), fold, ..SplitPlan::NONE }).val.name(0))
        .collect();
    assert_eq!(names.len(), 4, "each validates once");
}

#[test]
fn answers_beyond_the_end_of_a_sample_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let text = [MESSAGES; 4].join("\n");
    let of = |seq_len: usize| Chat { seq_len, ..source(folder.path(), &text) };
    let error = of(3).refused();
    assert!(error.to_string().contains("none of the 2 conversations to train on"), "{error}");
    assert_eq!(error.key(), Some("data.seq_len"));
    assert!(error.help().unwrap().contains("half of the answers begin after"), "{error}");
    assert_eq!(of(64).notes(OnBadSample::Error), Vec::<String>::new());
    let long = MESSAGES.replacen("\"a\"", &format!("\"{}\"", "a ".repeat(80)), 1);
    let one = Chat {
        val_ratio: 0.25,
        ..source(folder.path(), &[&long, MESSAGES, MESSAGES, MESSAGES].join("\n"))
    };
    let notes = one.notes(OnBadSample::Error);
    let [cut, note] = &notes[..] else { panic!("{notes:?}") };
    assert!(cut.starts_with("1 of 4 conversations are longer than `data.seq_len = 64`"), "{cut}");
    assert!(note.starts_with("1 of 4 conversations without a token that counts"), "{note}");
    assert!(note.contains("cuts their answers off"), "{note}");
}

#[test]
fn answers_that_the_tokenizer_has_no_tokens_for_are_not_said_to_be_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let chat = Chat {
        eos_token: Some("<|endoftext|>".to_owned()),
        ..source(folder.path(), &[MESSAGES; 4].join("\n"))
    };
    let tokenizer = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {"<|endoftext|>": 0, "i": 1}, "merges": []}}"#;
    crate::files::write_atomic(&chat.tokenizer, tokenizer.as_bytes()).unwrap();
    let error = chat.refused().to_string();
    assert!(error.contains("no answers to learn for which the tokenizer has tokens"), "{error}");
}

/// A template for tools, which marks no answers.
const TOOLS: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}\
    [{{ message.role }}]{{ message.content }}{% for call in message.tool_calls or [] %}\
    {{ call.function | tojson }}{% endfor %};{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}";

/// Conversations for that template, two of the same.
fn with_tools(folder: &Path, line: &str) -> Chat {
    let template = folder.join("tools.jinja");
    crate::files::write_atomic(&template, TOOLS.as_bytes()).unwrap();
    let chat = source(folder, &[line; 2].join("\n"));
    Chat { chat_template: Some(template), seq_len: 400, ..chat }
}

#[test]
fn tools_are_given_to_the_template_in_any_of_their_forms() {
    let folder = tempfile::tempdir().unwrap();
    let openai = r#"{"type": "function", "function": {"name": "f"}}"#;
    let call = r#"{"name": "f", "arguments": {"x": 1}}"#;
    let messages = r#""messages": [{"role": "user", "content": "a"}, {"role": "assistant",
        "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
        {"role": "tool", "content": "2"}, {"role": "assistant", "content": "b"}]"#;
    let messages = messages.replace("CALL", call).replace('\n', "");
    let text = |json: &str| serde_json::to_string(json).unwrap();
    let turns = format!(
        r#""conversations": [{{"from": "human", "value": "a"}}, {{"from": "function_call",
        "value": {}}}, {{"from": "observation", "value": "2"}}, {{"from": "gpt", "value": "b"}}]"#,
        text(call)
    );
    let turns = turns.replace('\n', "");
    let bare = r#"[{"name": "f"}]"#;
    let expected = format!(
        "[{openai}][user]a;[assistant]{};[tool]2;[assistant]b;",
        r#"{"name": "f", "arguments": {"x": 1}}"#
    );
    for line in [
        format!(r#"{{{messages}, "tools": [{openai}]}}"#),
        format!(r#"{{{messages}, "tools": {}}}"#, text(&format!("[{openai}]"))),
        format!(r#"{{{turns}, "tools": {}}}"#, text(bare)),
        format!(r#"{{{turns}, "tools": {bare}}}"#),
    ] {
        let chat = with_tools(folder.path(), &line);
        // The last token is only expected.
        let expected = expected.strip_suffix(';').unwrap();
        assert!(chat.shown().starts_with(expected), "{line}\n{}", chat.shown());
        assert_eq!(chat.learnt(), format!("{call};b;"), "both answers");
    }
    for none in ["[]", "null", "\"\""] {
        let line = format!(r#"{{{messages}, "tools": {none}}}"#);
        assert!(with_tools(folder.path(), &line).shown().starts_with("[user]a;"), "{none}");
    }
}

#[test]
fn what_the_template_would_drop_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |more: &str, expected: &str| {
        let line = MESSAGES.replacen('{', &format!("{{{more}, "), 1);
        let error = source(folder.path(), &format!("{MESSAGES}\n{line}")).refused().to_string();
        assert!(error.contains("line 2: ") && error.contains(expected), "{error}");
    };
    refused(
        r#""tools": [{"type": "function"}]"#,
        "it has `tools`, which the chat template does not",
    );
    refused(r#""tools": "[{""#, "its `tools` are text that is not JSON");
    refused(r#""tools": [3]"#, "its `tools` are not a list of objects");
    refused(r#""functions": [{"name": "f"}]"#, "it has `functions`: write them as `tools`");
    refused(r#""images": ["a.png"]"#, "it has `images`, but only text is learnt");
    refused(
        r#""chat_template_kwargs": {"enable_thinking": false}"#,
        "set `enable_thinking`, which",
    );
    let of_message = |more: &str, expected: &str| {
        let line = MESSAGES.replace("\"content\": \"bc\"", &format!("\"content\": \"bc\", {more}"));
        let error = source(folder.path(), &format!("{MESSAGES}\n{line}")).refused().to_string();
        assert!(error.contains("line 2: its message 2") && error.contains(expected), "{error}");
    };
    of_message(
        r#""tool_calls": [{"function": {"name": "f"}}]"#,
        "has `tool_calls`, which the chat",
    );
    of_message(r#""reasoning_content": "hm""#, "has `reasoning_content`, which the chat template");
    of_message(r#""weight": 0.5"#, "has `weight` 0.5, which is neither 0 nor 1");
    of_message(r#""weight": 1, "train": false"#, "is to be learnt and not to be learnt (`train`)");
    of_message(r#""train_detail": [{"train": true}]"#, "an answer is learnt whole, or not at all");
    // What has no meaning for the model is told once.
    let line = MESSAGES.replacen('{', r#"{"id": 7, "score": null, "#, 1);
    let line = line.replace(r#""role": "user""#, r#""name": "Ann", "role": "user""#);
    let notes = source(folder.path(), &[&*line; 2].join("\n")).notes(OnBadSample::Error);
    assert_eq!(notes, ["keys of conversations that have no effect: `id`, `messages.name`"]);
}

#[test]
fn answers_are_learnt_or_not_as_each_says() {
    let folder = tempfile::tempdir().unwrap();
    let of = |first: &str, second: &str| {
        let say = |role: &str, text: &str, more: &str| {
            format!(r#"{{"role": "{role}", "content": "{text}"{more}}}"#)
        };
        let messages = [
            say("user", "a", ""),
            say("assistant", "b", first),
            say("user", "c", r#", "weight": 0"#),
            say("assistant", "d", second),
        ];
        let line = format!(r#"{{"messages": [{}]}}"#, messages.join(", "));
        source(folder.path(), &[&*line; 2].join("\n"))
    };
    for not in [r#", "weight": 0"#, r#", "train": false"#, r#", "loss": false, "weight": 0.0"#] {
        assert_eq!(of(not, "").learnt(), "d<|im_end|>~", "{not}");
        assert_eq!(of("", not).learnt(), "b<|im_end|>~", "{not}");
        // Without a mask, all but that answer is learnt; the first token follows nothing.
        let whole = Chat { mask_prompt: false, ..of(not, "") };
        let all = "user~a<|im_end|>~<|im_start|>assistant~<|im_start|>user~c<|im_end|>~\
                   <|im_start|>assistant~d<|im_end|>~";
        assert_eq!(whole.learnt(), all, "{not}");
    }
    assert_eq!(
        of(r#", "weight": 1"#, r#", "training": true"#).learnt(),
        "b<|im_end|>~d<|im_end|>~"
    );
    let none = of(r#", "weight": 0"#, r#", "weight": 0"#).refused().to_string();
    assert!(none.contains("they have no answers to learn"), "{none}");
    let user = MESSAGES.replace(r#""role": "user""#, r#""train": true, "role": "user""#);
    let error = source(folder.path(), &format!("{MESSAGES}\n{user}")).refused().to_string();
    assert!(error.contains("its message 1 is to be learnt, but only answers"), "{error}");
    // A template that marks answers is asked which of them these are.
    let marked = "{% for message in messages %}{{ message.role }}:{% if message.role == 'assistant' %}\
        {% generation %}{{ message.content }};{% endgeneration %}{% else %}{{ message.content }};\
        {% endif %}{% endfor %}";
    let template = folder.path().join("marked.jinja");
    crate::files::write_atomic(&template, marked.as_bytes()).unwrap();
    let marked = Chat { chat_template: Some(template), ..of(r#", "weight": 0"#, "") };
    assert_eq!(marked.learnt(), "d;");
}

#[test]
fn alpacas_system_and_history_are_turns_before_the_question() {
    let folder = tempfile::tempdir().unwrap();
    let of = |line: &str| source(folder.path(), &[line; 2].join("\n"));
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}~{text}<|im_end|>~");
    let line = r#"{"instruction": "c", "input": null, "output": "d", "system": "s",
        "history": [["a", "b"]]}"#
        .replace('\n', "");
    let expected =
        [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")];
    let expected: String = expected.map(|(role, text)| turn(role, text)).concat();
    let chat = of(&line);
    assert!(chat.shown().starts_with(expected.strip_suffix('~').unwrap()), "{}", chat.shown());
    assert_eq!(chat.learnt(), "b<|im_end|>~d<|im_end|>~");
    let own = MESSAGES.replacen('{', r#"{"system": "s", "#, 1);
    assert!(of(&own).shown().starts_with(&turn("system", "s")), "{}", of(&own).shown());
    let refused =
        |line: &str| source(folder.path(), &format!("{MESSAGES}\n{line}")).refused().to_string();
    assert!(
        refused(r#"{"instruction": "a", "output": "b", "history": [["c"]]}"#).contains("pairs")
    );
    assert!(refused(r#"{"instruction": "a", "output": 3}"#).contains("its `output` is not text"));
}

#[test]
fn lines_that_cannot_be_used_are_skipped_one_by_one_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let lines = ["{\"messages\": [", MESSAGES, "{}", MESSAGES, MESSAGES, MESSAGES];
    let chat = source(folder.path(), &lines.join("\n"));
    let error = chat.refused().to_string();
    assert!(error.contains("line 1: it is not JSON") && error.contains("(2 of 6"), "{error}");
    let [note] = &chat.notes(OnBadSample::Skip)[..] else { panic!("one note") };
    let expected = "2 of 6 conversations cannot be used and are skipped; line 1: it is not JSON";
    assert!(note.starts_with(expected), "{note}");
    let splits = chat.splits(&SplitPlan::NONE, EntryCheck::Open).unwrap().0;
    assert_eq!((splits.train.len(), splits.val.len()), (3, 3));
    assert!(splits.train.load(0, None, &mut Vec::new()).is_err());
    splits.train.load(1, None, &mut Vec::new()).unwrap();
    let long = MESSAGES.replace("\"a\"", &format!("\"{}\"", "a".repeat(2 << 20)));
    let long = source(folder.path(), &[&*long, MESSAGES, MESSAGES, MESSAGES].join("\n"));
    assert_eq!(long.opened().train.len(), 2);
}

#[test]
fn a_template_of_another_tokenizer_is_doubted() {
    let folder = tempfile::tempdir().unwrap();
    let chat = source(folder.path(), &[MESSAGES; 4].join("\n"));
    assert_eq!(chat.notes(OnBadSample::Error), Vec::<String>::new());
    let other = Chat { eos_token: Some("</s>".to_owned()), ..chat.clone() };
    let [note] = &other.notes(OnBadSample::Error)[..] else { panic!("one note") };
    assert!(note.contains("does not end answers with `</s>`"), "{note}");
    assert!(note.ends_with("set `data.eos_token = \"<|im_end|>\"`"), "{note}");
    let template = folder.path().join("phi.jinja");
    let phi = "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}</s>\
               {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    crate::files::write_atomic(&template, phi.as_bytes()).unwrap();
    let phi = Chat { chat_template: Some(template), ..other };
    let [note] = &phi.notes(OnBadSample::Error)[..] else { panic!("one note") };
    assert!(note.contains("`<|user|>` (8 tokens), `<|assistant|>` (13 tokens)"), "{note}");
}
