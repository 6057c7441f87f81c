//! Chats as transformers writes them (`tests/golden/chat.py`).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::tokenizer::Tokenizer;

#[derive(Deserialize)]
struct Golden {
    templates: BTreeMap<String, Template>,
}

#[derive(Deserialize)]
struct Template {
    template: String,
    chats: Vec<Entry>,
}

/// A chat, and what transformers made of it.
#[derive(Deserialize)]
struct Entry {
    messages: Vec<Json>,
    /// Tools, documents and others that the template is given.
    variables: Map<String, Json>,
    add_generation_prompt: bool,
    text: Option<String>,
    tokens: Option<Vec<u32>>,
    answers: Option<Vec<u32>>,
    error: Option<String>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../../../tests/golden/chat.json")).unwrap()
}

/// A folder with the tokenizer of the golden chats and a configuration.
fn folder(config: &Json) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let tokenizer = include_bytes!("../../../../tests/golden/chat/tokenizer.json");
    crate::files::write_atomic(&path, tokenizer).unwrap();
    let config_path = folder.path().join("tokenizer_config.json");
    crate::files::write_atomic(&config_path, config.to_string().as_bytes()).unwrap();
    (folder, path)
}

fn config(template: &str) -> Json {
    json!({"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"},
        "model_max_length": 9})
}

#[test]
fn texts_tokens_and_answers_are_those_of_transformers() {
    for (name, Template { template, chats }) in golden().templates {
        let (_folder, path) = folder(&config(&template));
        let (ours, words) =
            (ChatTemplate::open(&path, None).unwrap(), Tokenizer::open(&path).unwrap());
        for chat in chats {
            let asks = chat.add_generation_prompt;
            let rendered = ours.rendered(&chat.messages, &chat.variables, asks);
            if let Some(error) = chat.error {
                assert!(rendered.unwrap_err().contains(&error), "{name}");
                continue;
            }
            let rendered = rendered.unwrap();
            assert_eq!(Some(&rendered.text), chat.text.as_ref(), "{name}");
            let spans = words.encode_spans(&rendered.text).unwrap();
            let tokens: Vec<u32> = spans.iter().map(|(token, _)| *token).collect();
            assert_eq!(Some(tokens), chat.tokens, "{name}");
            let Some(expected) = chat.answers else { continue };
            let is_answer = |span: &Range<usize>| {
                let mut answers = rendered.answers.iter();
                answers.any(|answer| span.start < answer.end && answer.start < span.end)
            };
            let found: Vec<u32> = spans.iter().map(|(_, s)| u32::from(is_answer(s))).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn answers_are_what_they_add_where_the_template_does_not_mark_them() {
    let golden = golden();
    let (_folder, path) = folder(&json!({}));
    let template = ChatTemplate::open(&path, Some(Path::new("chatml"))).unwrap();
    let messages = &golden.templates["chatml"].chats[2].messages;
    let chat = template.chat(messages, &Map::new(), |_| true).unwrap();
    let answers: Vec<&str> = chat.answers.iter().map(|range| &chat.text[range.clone()]).collect();
    assert_eq!(answers, ["4<|im_end|>\n", "<think>\nhm\n</think>\n\n6<|im_end|>\n"]);
    // One that treats the last question otherwise cannot say what the first answer was.
    let (_folder, path) = folder(&config(&golden.templates["tools"].template));
    let tools = ChatTemplate::open(&path, None).unwrap();
    let refused = tools.chat(messages, &Map::new(), |_| true).unwrap_err();
    assert!(refused.contains("message 3") && refused.contains("{% generation %}"), "{refused}");
}

#[test]
fn a_template_is_found_where_transformers_puts_it() {
    let messages = [json!({"role": "user", "content": "hi"})];
    let prompt = |path: &Path, asked: Option<&Path>| {
        ChatTemplate::open(path, asked).map(|template| template.prompt(&messages).unwrap())
    };
    let named = json!([{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]);
    let (folder, path) = folder(&json!({ "chat_template": named }));
    assert_eq!(prompt(&path, None).unwrap(), "d");
    let file = folder.path().join("chat_template.jinja");
    crate::files::write_atomic(&file, b"{{ messages[0].content }}!").unwrap();
    assert_eq!(prompt(&path, None).unwrap(), "hi!");
    assert_eq!(prompt(&path, Some(&file)).unwrap(), "hi!");
    assert!(prompt(&path, Some(Path::new("chatml"))).unwrap().ends_with("assistant\n"));
    assert_eq!(ChatTemplate::files(&path, None).len(), 2);
}

#[test]
fn what_is_no_template_or_never_ends_is_refused() {
    let refused = |template: &str| {
        let (_folder, path) = folder(&config(template));
        let opened = ChatTemplate::open(&path, None).map_err(|error| error.to_string());
        opened.and_then(|template| template.prompt(&[])).unwrap_err()
    };
    let unclosed = refused("{% for x in messages %}");
    assert!(unclosed.contains("tokenizer_config.json`: it is no chat template"), "{unclosed}");
    let endless =
        "{% for x in range(99999) %}{% for y in range(99999) %}{{ x }}{% endfor %}{% endfor %}";
    assert!(!refused(endless).is_empty());
    let (_folder, path) = folder(&json!({}));
    let missing = ChatTemplate::open(&path, None).unwrap_err().to_string();
    assert!(missing.contains("no chat template stands beside it"), "{missing}");
}
