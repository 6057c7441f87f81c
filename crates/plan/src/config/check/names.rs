//! Words that must name something: models, metrics, folders.

use std::path::Path;

use crate::config::check::finding::Finding;
use crate::config::hooks::{HookEvent, placeholders_in};
use crate::config::kind::{BACKEND, SINKS};
use crate::config::layer::Source;
use crate::config::loaded::Loaded;
use crate::config::mirror::Mirror;
use crate::config::schema::AUTO_BACKEND;
use crate::config::suggest::closest;
use crate::config::suggest::remedy;
use crate::config::urls::{NO_URL, instead_of_url, is_hub_name, url_scheme};
use crate::config::vocabulary::Vocabulary;
use crate::config::wording::not_a_kind;

/// The only schema there is.
const SCHEMA: u32 = 1;

/// The form of a tag, as a remedy.
pub const TAG_FORM: &str =
    "use 1 to 64 letters, digits, `.`, `_`, `:`, `/`, `=` or `-`, starting with a letter or digit";

/// A whole file of another version makes no sense to check, but its number does.
pub(crate) fn schema_version(loaded: &Loaded) -> Vec<Finding> {
    let found = loaded.experiment.schema;
    if found == SCHEMA {
        return Vec::new();
    }
    let what = format!("this ddprun reads schema {SCHEMA}, the file is schema {found}");
    vec![Finding::new("schema", what)]
}

/// Names of runs that cannot be those of folders.
pub(crate) fn run_name(loaded: &Loaded) -> Vec<Finding> {
    let name = loaded.name();
    if is_folder_name(name) {
        return Vec::new();
    }
    let from = match loaded.sources.get("experiment.name") {
        Some(Source::FileName) => ", the file's name,",
        _ => "",
    };
    let what = format!("`{name}`{from} cannot name a folder");
    vec![Finding::new("experiment.name", what).help(FOLDER_NAME)]
}

/// True if a run's or a sweep's folder may have this name: it cannot lead out of the folder for
/// logs, is not hidden there, and is no flag on the command line.
pub(crate) fn is_folder_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=128).contains(&name.len()) && !name.starts_with(['.', '-']) && name.chars().all(plain)
}

/// The form of such names.
pub(crate) const FOLDER_NAME: &str =
    "use 1 to 128 letters, digits, `.`, `_` or `-`, starting with a letter, a digit or `_`";

/// True if a word can be a tag: `[A-Za-z0-9._:/=-]{1,64}`, beginning with a letter or a digit.
pub fn is_tag(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:/=-".contains(c);
    let begins = word.starts_with(|c: char| c.is_ascii_alphanumeric());
    begins && word.len() <= 64 && word.chars().all(plain)
}

/// Words that cannot be tags.
pub(crate) fn tags(loaded: &Loaded) -> Vec<Finding> {
    let tags = loaded.experiment.experiment.tags.iter().enumerate();
    let unfit = tags.filter(|(_, tag)| !is_tag(tag)).map(|(at, tag)| {
        let what = format!("`{tag}` cannot be a tag");
        Finding::new(format!("experiment.tags[{at}]"), what).help(TAG_FORM)
    });
    unfit.collect()
}

/// Metrics that are not measured, and figures expected of them.
pub(crate) fn metrics(loaded: &Loaded, vocabulary: &Vocabulary) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let known = vocabulary.watchable();
    // What is measured once, at the end of a run, so that nothing can be chosen by it.
    let is_test = |metric: &str| {
        metric == "test/success"
            || (metric.starts_with("test/") && vocabulary.mode_of(metric).is_some())
    };
    let monitors = [
        ("scheduler.monitor", experiment.scheduler.monitor()),
        ("checkpoint.monitor", Some(experiment.checkpoint.monitor.as_str())),
        ("early_stopping.monitor", Some(experiment.early_stopping.monitor.as_str())),
    ];
    let mut found: Vec<Finding> =
        monitors.into_iter().filter_map(|(key, metric)| unknown(key, metric?, &known)).collect();
    for (at, metric) in experiment.validation.metrics.iter().enumerate() {
        let key = format!("validation.metrics[{at}]");
        let measured = known.iter().filter_map(|name| name.strip_prefix("val/"));
        let measured: Vec<String> = measured.map(str::to_owned).collect();
        found.extend(unknown(&key, metric, &measured));
    }
    for (metric, expectation) in &experiment.expect {
        let key = format!("expect.\"{metric}\"");
        if !is_test(metric) {
            found.extend(unknown(&key, metric, &known));
        }
        let bounds = [expectation.at_least, expectation.at_most];
        if bounds.iter().flatten().next().is_none() {
            let help = "add one, such as `{ at_least = 0.9 }`";
            found.push(Finding::new(&key, "has neither `at_least` nor `at_most`").help(help));
        }
        let (least, most) = range_of(metric);
        let possible = |bound: &f64| bound.is_finite() && (least..=most).contains(bound);
        if !bounds.iter().flatten().all(possible) {
            let what = match (least.is_finite(), most.is_finite()) {
                (true, true) => format!("must be from {least} to {most}"),
                (true, false) => format!("must be at least {least}: it is never less"),
                (false, true) => format!("must be at most {most}: it is never more"),
                (false, false) => "must be finite".to_owned(),
            };
            found.push(Finding::new(&key, what));
        }
        if let [Some(least), Some(most)] = bounds
            && least > most
        {
            let what = format!("cannot be at least {least} and at most {most}");
            found.push(Finding::new(&key, what).help("exchange the two bounds, or remove one"));
        }
    }
    found
}

/// Range of a built-in metric, by its name; a loss may be anything.
fn range_of(metric: &str) -> (f64, f64) {
    let name = metric.rsplit('/').next().unwrap_or(metric);
    match name {
        "success" | "exact_match" | "precision" | "precision_micro" | "recall" | "recall_micro"
        | "f1" | "f1_micro" | "auroc" | "average_precision" => (0.0, 1.0),
        _ if name.ends_with("accuracy") => (0.0, 1.0),
        "r2" => (f64::NEG_INFINITY, 1.0),
        "mae" | "mae_unscaled" | "mase" | "mse" | "rmse" | "rmse_unscaled" | "bits_per_byte" => {
            (0.0, f64::INFINITY)
        }
        "perplexity" => (1.0, f64::INFINITY),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    }
}

fn unknown(key: &str, metric: &str, known: &[String]) -> Option<Finding> {
    let names = || known.iter().map(String::as_str);
    if known.is_empty() || names().any(|name| name == metric) {
        return None;
    }
    let finding = Finding::new(key, format!("`{metric}` is not a metric"));
    let over_classes = metric.strip_suffix("_macro").filter(|plain| names().any(|it| it == *plain));
    if let Some(plain) = over_classes {
        return Some(finding.help(format!("use `{plain}`, the mean over classes (macro)")));
    }
    Some(finding.help(remedy(metric, names())))
}

/// A backend that is not registered.
pub(crate) fn backend(loaded: &Loaded, vocabulary: &Vocabulary) -> Option<Finding> {
    let asked = &loaded.experiment.distributed.backend;
    let family = vocabulary.family(BACKEND)?;
    let names = std::iter::once(AUTO_BACKEND).chain(family.names());
    if names.clone().any(|name| name == asked) {
        return None;
    }
    let (what, help) = not_a_kind(family, asked, names);
    Some(Finding::new(BACKEND, what).maybe_help(help))
}

/// Words in braces that an event has no value for: the shell would get them as they are.
pub(crate) fn placeholders(loaded: &Loaded) -> Vec<Finding> {
    let mut found = Vec::new();
    for event in HookEvent::ALL {
        let Some(command) = loaded.experiment.hooks.command(event) else { continue };
        let known = event.placeholders();
        for word in placeholders_in(command) {
            if known.contains(&&*word) {
                continue;
            }
            let what = format!("there is no `{{{word}}}` here");
            let all: Vec<String> = known.iter().map(|word| format!("`{{{word}}}`")).collect();
            let help = closest(&word, known.iter().copied()).map_or_else(
                || format!("use {}", all.join(", ")),
                |meant| format!("did you mean `{{{meant}}}`?"),
            );
            found.push(Finding::new(format!("hooks.{}", event.name()), what).help(help));
        }
    }
    found
}

/// A mirror that is neither a folder nor a command that copies one.
pub(crate) fn mirror(loaded: &Loaded) -> Option<Finding> {
    const KEY: &str = "checkpoint.mirror";
    let text = loaded.experiment.checkpoint.mirror.as_deref()?;
    if let Some((what, help)) = Mirror::fault(text) {
        return Some(Finding::new(KEY, what).help(help));
    }
    match Mirror::of(text) {
        Mirror::Folder(path) => path_finding(KEY, &path, true),
        Mirror::Command(_) => None,
    }
}

/// Sinks that are named twice: both would write the same files.
pub(crate) fn sinks_twice(loaded: &Loaded) -> Vec<Finding> {
    let names: Vec<&str> =
        loaded.experiment.logging.sinks.iter().map(|sink| sink.name.as_str()).collect();
    let is_twice = (1..names.len()).any(|at| names[..at].contains(&names[at]));
    is_twice.then(|| Finding::new(SINKS, "names a sink twice")).into_iter().collect()
}

/// Paths that cannot be opened.
pub(crate) fn paths(loaded: &Loaded) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let all: [(&str, Option<&Path>); 3] = [
        ("model.pretrained", experiment.model.pretrained.as_deref()),
        ("checkpoint.dir", Some(&experiment.checkpoint.dir)),
        ("logging.dir", Some(&experiment.logging.dir)),
    ];
    let found = |(key, path): (&str, Option<&Path>)| {
        let is_written = key != "model.pretrained";
        path_finding(key, path?, is_written)
    };
    all.into_iter().filter_map(found).collect()
}

/// A finding about a URL where a path belongs; `None` if `text` is a path.
pub(super) fn url_finding(key: &str, text: &str) -> Option<Finding> {
    url_scheme(text).map(|scheme| {
        // What is written cannot be copied first.
        let is_output = ["logging.dir", "checkpoint.dir"].contains(&key) && scheme != "file";
        let help = if is_output {
            "write a folder, and have the runs copied from there by a command in `checkpoint.mirror`"
                .to_owned()
        } else {
            instead_of_url(scheme)
        };
        Finding::new(key, NO_URL).help(help)
    })
}

/// A finding about a path as it stands in the file, without access to any disk.
pub(super) fn path_finding(key: &str, path: &Path, is_written: bool) -> Option<Finding> {
    if path.to_str().is_some_and(is_hub_name) {
        let what = "is a name on the Hugging Face hub, which nothing is written to";
        return is_written.then(|| Finding::new(key, what).help("name a folder"));
    }
    if let Some(finding) = path.to_str().and_then(|text| url_finding(key, text)) {
        return Some(finding);
    }
    let shell = path.starts_with("~") || path.to_str().is_some_and(|text| text.contains('$'));
    if path.as_os_str().is_empty() {
        Some(Finding::new(key, "is empty"))
    } else if shell {
        let what = "`~` and `$` are not expanded";
        Some(Finding::new(key, what).help("write the whole path"))
    } else {
        None
    }
}
