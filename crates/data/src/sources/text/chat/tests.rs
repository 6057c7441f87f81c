//! Conversations in their forms, and what of them counts.

use crate::user_error::UserError;
use std::path::Path;

use super::*;
use crate::{Dataset, IGNORED, Target};

impl Chat {
    fn opened(&self) -> Splits {
        self.splits(&SplitPlan::NONE, CacheCheck::Whole).unwrap().0
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
        mask_prompt: true,
        eos_token: None,
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
        let error = source(folder.path(), &format!("{MESSAGES}\n{line}"))
            .splits(&SplitPlan::NONE, CacheCheck::Whole)
            .err()
            .unwrap();
        let error = error.to_string();
        assert!(error.contains("chats.jsonl`, line 2: ") && error.contains(expected), "{error}");
    };
    refused("hello", "it is not JSON");
    refused("[]", "it is not a JSON object");
    refused("{}", "it has neither `messages`, nor `conversations`, nor `instruction`");
    refused(r#"{"messages": [{"content": "a"}]}"#, "its message 1 has no `role`");
    refused(r#"{"messages": [{"role": "user", "content": "a"}]}"#, "there is nothing to learn");
    refused(r#"{"conversations": [{"from": "cat", "value": "a"}]}"#, "a turn of it is from `cat`");
    let one = source(folder.path(), MESSAGES)
        .splits(&SplitPlan::NONE, CacheCheck::Whole)
        .err()
        .unwrap()
        .to_string();
    assert!(one.contains("leaves 0 of its 1 conversations"), "{one}");
    let no_end = Chat { eos_token: Some("<stop>".into()), ..source(folder.path(), MESSAGES) };
    let error = no_end.splits(&SplitPlan::NONE, CacheCheck::Whole).err().unwrap().to_string();
    assert!(error.contains("it has no token `<stop>`"), "{error}");
}

#[test]
fn conversations_are_held_back_at_random_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let chat = source(folder.path(), &[MESSAGES; 4].join("\n"));
    let of = |split: SplitPlan| chat.splits(&split, CacheCheck::Whole).unwrap().0;
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
    let told = |chat: &Chat| chat.splits(&SplitPlan::NONE, CacheCheck::Whole);
    let error = told(&of(3)).err().unwrap();
    assert!(error.to_string().contains("none of the 2 conversations to train on"), "{error}");
    assert_eq!(error.key(), Some("data.seq_len"));
    assert!(error.help().unwrap().contains("half of the answers begin after"), "{error}");
    assert_eq!(told(&of(64)).unwrap().2, Vec::<String>::new());
    let long = MESSAGES.replacen("\"a\"", &format!("\"{}\"", "a ".repeat(80)), 1);
    let one = Chat {
        val_ratio: 0.25,
        ..source(folder.path(), &[&long, MESSAGES, MESSAGES, MESSAGES].join("\n"))
    };
    let notes = told(&one).unwrap().2;
    let [note] = &notes[..] else { panic!("{notes:?}") };
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
    let error = chat.splits(&SplitPlan::NONE, CacheCheck::Whole).err().unwrap().to_string();
    assert!(error.contains("no answers for which the tokenizer has tokens"), "{error}");
}
