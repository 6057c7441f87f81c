//! The pages of `docs/learn`, typed: the blocks of a page run in order in a folder of their own, and
//! what they print is compared with what the page shows.
//!
//! | block | what is done with it |
//! |---|---|
//! | `sh` | typed into bash, which must end with 0; `sh exit=2` says another code |
//! | `sh ctrl-c` | started, and told to end once it has printed something |
//! | `sh later` | not typed: it needs a network, a GPU, a cluster, or an hour |
//! | `text` | what the block before it prints |
//! | `toml file=x.toml` | saved as that file |
//! | `text file=x.py` | saved as well |
//!
//! In what is printed, `...` on a line of its own stands for any lines, and `[..]` within one for any
//! words. Whole numbers are compared, but for those with a unit of time, size or speed; decimal
//! numbers, dates and ids are compared in their place alone, since they differ from machine to machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ddprun::kinds::Kinds;
use ddprun::nn::state_dict::save_state_dict;
use ddprun::plan::ModelPlan;
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::hub_server::HubServer;

use crate::docs::{Block, blocks, project, read};
use crate::harness::lab::{BINARY, Lab, children};
use crate::harness::running::{Ended, spawn, until};
use crate::skipped::skipped;

/// Lines that a page may have.
const MOST_LINES: usize = 120;

/// A page that is typed, and the variables with which it is.
struct Page<'a> {
    name: &'a str,
    lab: Lab,
    variables: Vec<(&'static str, String)>,
}

impl<'a> Page<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, lab: Lab::new(), variables: Vec::new() }
    }

    /// Names of the hub are fetched from this one.
    fn with_hub(mut self, hub: &HubServer) -> Self {
        self.variables.push(("HF_ENDPOINT", hub.endpoint.clone()));
        self.variables.push(("HF_HUB_OFFLINE", "0".to_owned()));
        self
    }

    /// Types the page from its first block to its last.
    fn type_all(&self) {
        // A reader begins in an empty folder.
        fs::remove_file(self.lab.path("small.toml")).unwrap();
        let mut printed: Option<String> = None;
        for block in blocks(&read(self.name)) {
            let place = format!("{}, block of line {}", self.name, block.line);
            if let Some(file) = block.option("file") {
                self.lab.write(file, &block.text);
                continue;
            }
            match block.language.as_str() {
                "sh" if block.says("later") => printed = None,
                "sh" => printed = Some(self.type_block(&block, &place)),
                "text" | "json" => {
                    let Some(printed) = printed.take() else { continue };
                    compare(&block.text, &printed, &place);
                }
                "rust" | "python" => {}
                other => panic!("{place}: `{other}` is neither typed nor saved"),
            }
        }
        self.lab.wait_for_all();
        self.lab.is_clean();
    }

    /// What a block prints, on stdout and stderr.
    fn type_block(&self, block: &Block, place: &str) -> String {
        let script = format!("set -euo pipefail\nexec 2>&1\n{}", block.text);
        let ended = if block.says("ctrl-c") {
            let running = spawn(self.shell(&format!("exec 2>&1\nexec {}", block.text)));
            until("the first words", || running.stdout().contains('\n'));
            running.signal(Signal::INT);
            running.wait()
        } else {
            spawn(self.shell(&script)).wait()
        };
        let expected = block.option("exit").map_or(0, |code| code.parse().unwrap());
        let Ended { code, stdout, .. } = ended;
        assert_eq!(code, expected, "{place}:\n{}\nprinted:\n{stdout}", block.text);
        stdout
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = self.lab.command("bash", &["-c", script]);
        let folder = Path::new(BINARY).parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let own = self.lab.path("bin").display().to_string();
        let path = format!("{own}:{folder}:{path}");
        command.env("PATH", path).env("HOME", self.lab.path("home"));
        command
            .env("COLUMNS", "100")
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Panics unless what was printed is what the page shows.
fn compare(shown: &str, printed: &str, place: &str) {
    let lines = |text: &str| {
        let lines = text.trim_end().lines().map(shape).collect::<Vec<_>>();
        lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>()
    };
    assert!(
        fits(&lines(shown), &lines(printed)),
        "{place} shows\n{shown}\nbut it printed\n{printed}"
    );
}

/// A line without what differs from machine to machine.
fn shape(line: &str) -> String {
    const UNITS: [&str; 14] = [
        "s",
        "s,",
        "s.",
        "ms",
        "min",
        "h",
        "samples/s",
        "bytes",
        "kB",
        "MB",
        "KiB",
        "MiB",
        "GiB",
        "ago",
    ];
    let is_part = |word: &str, unit: char| {
        let number = word.trim_end_matches([',', '.']).strip_suffix(unit);
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    // `1m 04s` is `64.0 s`.
    let whole = line.split_whitespace().filter(|word| !is_part(word, 'm') && !is_part(word, 'h'));
    let mut words: Vec<String> = Vec::new();
    for word in whole {
        if is_part(word, 's') {
            words.extend([
                "#".to_owned(),
                word.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned(),
            ]);
        } else {
            words.push(shape_of_word(word));
        }
    }
    for index in 1..words.len() {
        let is_number = words[index - 1].chars().all(|c| c.is_ascii_digit());
        if is_number && UNITS.contains(&words[index].as_str()) {
            "#".clone_into(&mut words[index - 1]);
        }
    }
    words.join(" ")
}

fn shape_of_word(word: &str) -> String {
    if word.len() > 3 && word.chars().all(|c| "-=─━".contains(c)) {
        return "---".to_owned();
    }
    let mut shaped = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let is_inside = shaped.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if !first.is_ascii_digit() || is_inside {
            shaped.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let is_over = |c: char| !(c.is_ascii_alphanumeric() || ".-:+".contains(c));
        let end = rest.find(is_over).unwrap_or(rest.len());
        let token = rest[..end].trim_end_matches(['.', '-', ':', '+']);
        shaped += if token.chars().all(|c| c.is_ascii_digit()) { token } else { "#" };
        rest = &rest[token.len()..];
    }
    shaped
}

/// True if the lines `printed` are those `shown`, whose wild cards stand for any.
fn fits(shown: &[String], printed: &[String]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (None, printed) => printed.is_none(),
        (Some((line, rest)), _) if line == "..." => {
            (0..=printed.len()).any(|n| fits(rest, &printed[n..]))
        }
        (Some((line, rest)), Some((other, others))) => line_fits(line, other) && fits(rest, others),
        (Some(_), None) => false,
    }
}

fn line_fits(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split("[..]");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    true
}

#[test]
fn wild_cards_and_numbers_are_compared_as_the_pages_need() {
    let fit = |shown: &str, printed: &str| {
        let lines = |text: &str| text.lines().map(shape).collect::<Vec<_>>();
        fits(&lines(shown), &lines(printed))
    };
    assert!(fit("a\n...\nd", "a\nb\nc\nd") && !fit("a\n...\nd", "a\nb\nc"));
    assert!(fit("after step 9 in 2.31 s, 4 samples/s", "after step 9 in 1m 04s, 5.2 samples/s"));
    assert!(fit("loss 2.31  in 4 s", "loss 0.07  in 12 s") && !fit("step 4", "step 5"));
    assert!(fit("run 20261123-020712-3b39b", "run 20261130-135501-00ab1"));
    assert!(fit("[..] of 9 [..]", "any of 9 words") && !fit("[..] of 9", "any of 8"));
}

#[test]
fn every_page_to_learn_from_is_short_and_is_typed_here() {
    let source = read("tests/cli/learn.rs");
    let pages = children(&project("docs/learn"));
    assert_eq!(pages.len(), 10, "{pages:?}");
    for page in pages {
        let name = page.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.lines().count() <= MOST_LINES, "{name} has more than {MOST_LINES} lines");
        assert!(source.contains(&format!("\"docs/learn/{name}\"")), "{name} is not typed");
        let begins = ["You will have", "minutes"];
        let head = text.lines().take(6).collect::<String>();
        assert!(begins.iter().all(|words| head.contains(words)), "{name} begins otherwise");
    }
}

#[test]
fn install() {
    Page::new("docs/learn/install.md").type_all();
}

#[test]
fn first_run() {
    Page::new("docs/learn/first-run.md").type_all();
}

/// Weights of a `resnet18` as nobody has trained it, under the name of a repository of timm.
#[test]
fn photos() {
    let lab = Lab::new();
    let words = ["plan", "--json", "small.toml", "model.name=resnet18", "~model.hidden"];
    let page = lab.run_to(0, &[&words[..], &["model.num_classes=1000"]].concat()).stdout;
    let page: Value = serde_json::from_str(&page).unwrap();
    let model: ModelPlan = serde_json::from_value(page["plan"]["model"].clone()).unwrap();
    let (_, params) = Kinds::default().models.instantiate(&model, 1).unwrap();
    let hub = HubServer::new();
    let weights = save_state_dict(&params).unwrap();
    hub.publish("timm/resnet18.a1_in1k", &[("model.safetensors", &weights)]);
    Page::new("docs/learn/photos.md").with_hub(&hub).type_all();
}

#[test]
fn table() {
    Page::new("docs/learn/table.md").type_all();
}

#[test]
fn series() {
    Page::new("docs/learn/series.md").type_all();
}

/// A Llama of two layers that has seen one step, with a tokenizer of single characters and the chat
/// template of the repository whose name it has.
#[test]
fn chat() {
    const BASE: &str = "schema = 1\n[model]\nname = 'llama'\nd_model = 16\nd_ff = 32\nn_layers = 2\n\
        n_heads = 2\nn_kv_heads = 1\nnum_classes = 99\n[data]\nname = 'tokens'\nfile = 'text.txt'\n\
        tokenizer = 'tokenizer.json'\nseq_len = 32\n[train]\nsteps = 1\nbatch_size = 4\n[optimizer]\n\
        name = 'adamw'\nlr = 1e-2\n";
    const TEMPLATE: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + \
        message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}\
        {{ '<|im_start|>assistant\n' }}{% endif %}";
    let lab = Lab::new();
    lab.write("base.toml", BASE);
    lab.write("text.txt", "we open at nine, and close at five\n".repeat(100));
    lab.write("tokenizer.json", characters(&["<|endoftext|>", "<|im_start|>", "<|im_end|>"]));
    lab.run_to(0, &["base.toml"]);
    let words =
        ["checkpoint", "export", "base", "out/model.safetensors", "--names", "transformers"];
    lab.run_to(0, &words);
    let settings = json!({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}).to_string();
    let file = |name: &str| fs::read(lab.path(name)).unwrap();
    let hub = HubServer::new();
    hub.publish(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        &[
            ("config.json", &file("out/config.json")),
            ("model.safetensors", &file("out/model.safetensors")),
            ("tokenizer.json", &file("tokenizer.json")),
            ("tokenizer_config.json", settings.as_bytes()),
        ],
    );
    Page::new("docs/learn/chat.md").with_hub(&hub).type_all();
}

/// A tokenizer whose tokens are these words, the printable characters and the line break.
fn characters(special: &[&str]) -> String {
    let characters = (' '..='~').chain(['\n']).map(String::from);
    let tokens = special.iter().map(|word| (*word).to_owned()).chain(characters);
    let vocabulary: serde_json::Map<String, Value> =
        tokens.zip((0..).map(|id| json!(id))).collect();
    let added = |(id, word): (usize, &&str)| {
        json!({"id": id, "content": word, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let added: Vec<Value> = special.iter().enumerate().map(added).collect();
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}})
    .to_string()
}

#[test]
fn sweep() {
    Page::new("docs/learn/sweep.md").type_all();
}

#[test]
fn cluster() {
    Page::new("docs/learn/cluster.md").type_all();
}

/// The crate of the page is the example of this name, which `cargo test` builds: `cargo run` starts it.
#[test]
fn candle() {
    const PAGE: &str = "docs/learn/candle.md";
    let source = read("examples/ported_model.rs");
    let shown = blocks(&read(PAGE)).into_iter().find(|block| block.language == "rust");
    assert_eq!(shown.unwrap().text, source, "{PAGE} shows another program than the example");
    let program = Path::new(BINARY).with_file_name("examples").join("ported_model");
    if !program.exists() {
        skipped("the example `ported_model` (`cargo test --test cli` does not build it)");
        return;
    }
    let page = Page::new(PAGE);
    let script = format!("#!/bin/sh\nshift 3\nexec {} \"$@\"\n", program.display());
    page.lab.write("bin/cargo", script);
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(page.lab.path("bin/cargo"), all).unwrap();
    page.type_all();
}

#[test]
fn json() {
    if Command::new("jq").arg("--version").output().is_err() {
        skipped("jq");
        return;
    }
    Page::new("docs/learn/json.md").type_all();
}
