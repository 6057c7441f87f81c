//! The page of `ddprun plan`: what would happen, and where each value was written.

use serde_json::{Value, json};

use crate::config::kind::Modality;
use crate::config::{Loaded, Source, leaves};
use crate::plan::{
    DistributedPlan, EarlyStoppingPlan, Facts, LengthPlan, Memory, ParameterGroup, Plan, graph,
    precision,
};
use crate::terminal::{counted, escape, format_number, si_unit, thousands, wrapped};
use train_numbers::units::{Bytes, WorldSize};

/// Columns of the page.
const WIDTH: usize = 80;
/// Columns of the labels.
const LABEL: usize = 18;
/// Most characters of a value that are shown: a list may hold thousands.
const MAX_VALUE_LENGTH: usize = 160;

/// Memory and operations of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Memory of each rank.
    pub memory: Memory,
    /// Floating-point operations of the forward pass of one sample; `None` = not counted.
    pub flops: Option<u64>,
    /// True if the costs of a pass are estimated from the shapes of the weights, not measured.
    pub is_estimated: bool,
}

/// The plan as a page of text: first what would happen, then every key with its value and its
/// source.
pub fn page(plan: &Plan, loaded: &Loaded, facts: &Facts, costs: &Costs) -> String {
    let needs = &costs.memory;
    let mut rows: Vec<(&str, String)> = vec![
        ("batch", plan.batch_line()),
        ("learning rate", plan.lr_line().trim_start_matches("lr ").to_owned()),
        ("steps", plan.steps_line()),
        ("schedule", plan.schedule.line.clone()),
        ("optimizer", optimizer(plan)),
        ("model", model(plan, loaded)),
        ("", flops(costs)),
        ("memory", memory(needs) + &fits(plan, facts, needs)),
        ("data", data(plan)),
        ("", plan.data.source.line.clone()),
        ("ranks", ranks(plan)),
        ("loading", loading(plan)),
        (
            "validation",
            plan.validate_every.words() + &format!(", batches of {}", plan.val_batch_size),
        ),
        ("checkpoints", plan.checkpoint.line(plan.validate_every)),
    ];
    rows.extend(plan.mirror.as_ref().map(|mirror| ("mirror", mirror.line())));
    rows.extend(plan.sharding_line().map(|line| ("sharding", line)));
    rows.extend(plan.model.weights_line().map(|line| ("weights", line)));
    let early_stopping = plan.early_stopping.as_ref().map(EarlyStoppingPlan::line);
    rows.extend(early_stopping.map(|line| ("early stopping", line)));
    rows.extend(plan.arithmetic().into_iter().skip(2).map(|line| ("shards", line)));
    let warnings = plan.warnings(facts, needs);
    rows.extend(warnings.into_iter().map(|line| ("warning", line)));
    let head = format!("{} ({})\n\n", plan.name, loaded.path.display());
    let rows = rows.iter().map(|(label, text)| beside(&format!("  {label}"), LABEL, text));
    head + &rows.collect::<String>() + "\n" + &layers(plan) + &groups(plan) + &keys(plan, loaded)
}

/// The plan for programs: plan, memory, arithmetic, and each key with its value and its source.
pub fn json(plan: &Plan, loaded: &Loaded, facts: &Facts, costs: &Costs) -> Value {
    let keys: serde_json::Map<String, Value> = leaves(&loaded.experiment)
        .into_iter()
        .map(|(key, value)| {
            let value: Value = serde_json::from_str(&value).unwrap_or_default();
            let from = origin(loaded, &key);
            (key, json!({ "value": value, "source": from }))
        })
        .collect();
    json!({
        "format": 1,
        "arithmetic": plan.arithmetic(),
        "warnings": plan.warnings(facts, &costs.memory),
        "memory": costs.memory,
        "peak_memory": costs.memory.total(),
        "flops": costs.flops,
        "plan": plan,
        "keys": keys,
    })
}

/// The layers of a graph in columns.
fn layers(plan: &Plan) -> String {
    if plan.model.layers.is_empty() {
        return String::new();
    }
    columns(&graph::rows(&plan.model.layers), 2)
}

/// The groups of parameters in columns.
fn groups(plan: &Plan) -> String {
    let groups = &plan.optimizer.groups;
    if groups.is_empty() {
        return String::new();
    }
    let head = ["group", "trained", "tensors", "parameters", "lr", "weight decay"];
    let row = |group: &ParameterGroup| {
        let lr = plan.optimizer.lr * group.lr_factor;
        let numbers = if group.is_ever_trained() {
            [lr, group.weight_decay].map(format_number)
        } else {
            Default::default()
        };
        let [lr, decay] = numbers;
        let counts = [thousands(group.n_tensors), thousands(group.n_parameters)];
        let [tensors, parameters] = counts;
        [group.name.clone(), trained(group, &plan.length), tensors, parameters, lr, decay]
    };
    let rows: Vec<[String; 6]> =
        std::iter::once(head.map(str::to_owned)).chain(groups.iter().map(row)).collect();
    columns(&rows, 2)
}

/// "always", "never", "after 3 epochs", "for 10 epochs", "after 40 steps, not reached"
fn trained(group: &ParameterGroup, length: &LengthPlan) -> String {
    let per_epoch = length.steps_per_epoch.max(1);
    let epochs = |steps: u64| match steps % per_epoch {
        0 => counted(steps / per_epoch, "epoch"),
        _ => counted(steps, "step"),
    };
    let is_too_late = group.unfreezes_at >= length.total_steps;
    match (group.unfreezes_at, group.freezes_at) {
        _ if !group.is_ever_trained() => "never".to_owned(),
        (0, None) => "always".to_owned(),
        (start, _) if is_too_late => format!("after {}, not reached", epochs(start)),
        (start, None) => format!("after {}", epochs(start)),
        (0, Some(end)) => format!("for {}", epochs(end)),
        (start, Some(end)) => format!("after {}, until {}", epochs(start), end / per_epoch),
    }
}

/// A table, its first `left` columns flush left and the others flush right.
fn columns<const N: usize>(rows: &[[String; N]], left: usize) -> String {
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let cell = |(i, text): (usize, &String)| {
        let width = widths[i];
        if i < left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    };
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect::<String>() + "\n"
}

fn origin<'a>(loaded: &'a Loaded, key: &str) -> &'a Source {
    loaded.sources.get(key).unwrap_or(&Source::Defaults)
}

/// `label`, and beside it `text` from `column` on, in as many lines as it needs.
fn beside(label: &str, column: usize, text: &str) -> String {
    let gap = "\n".to_owned() + &" ".repeat(column);
    let lines: Vec<String> =
        text.lines().map(|line| wrapped(line, WIDTH.saturating_sub(column), 0)).collect();
    format!("{label:<column$}{}\n", lines.join("\n").replace('\n', &gap))
}

/// Every key and its value below the source that gave it, the strongest source first.
fn keys(plan: &Plan, loaded: &Loaded) -> String {
    let mut groups: Vec<(&Source, Vec<(String, String)>)> = Vec::new();
    for (key, value) in leaves(&loaded.experiment) {
        let from = origin(loaded, &key);
        let same = groups.iter().position(|(source, _)| source.to_string() == from.to_string());
        let at = same.unwrap_or_else(|| {
            groups.push((from, Vec::new()));
            groups.len() - 1
        });
        groups[at].1.extend(shown_values(plan, key, value));
    }
    groups.sort_by_key(|(source, _)| weakness(source));
    let keys = groups.iter().flat_map(|(_, rows)| rows);
    let column = keys.map(|(key, _)| key.chars().count()).max().unwrap_or(0) + 4;
    let rows = |rows: &[(String, String)]| -> String {
        rows.iter().map(|(key, value)| beside(&format!("  {key}"), column, &cut(value))).collect()
    };
    let groups: Vec<String> =
        groups.iter().map(|(source, keys)| format!("{source}:\n{}", rows(keys))).collect();
    groups.join("\n")
}

/// Position of a source on the page.
fn weakness(source: &Source) -> u8 {
    match source {
        Source::CommandLine(_) => 0,
        Source::Environment(_) => 1,
        Source::File(_) => 2,
        Source::FileName => 3,
        Source::Target => 4,
        Source::Defaults => 5,
    }
}

/// A key with its value, or the entries of a list of tables one by one.
fn shown_values(plan: &Plan, key: String, value: String) -> Vec<(String, String)> {
    match serde_json::from_str(&value) {
        Ok(Value::Array(items)) if items.iter().any(Value::is_object) => {
            let numbered = items.iter().enumerate();
            numbered.map(|(index, item)| (format!("{key}[{index}]"), entry(item))).collect()
        }
        _ => {
            let decided = decided(plan, &key).filter(|_| value == "\"auto\"");
            vec![(key, decided.map_or(value, |decided| format!("auto = {decided}")))]
        }
    }
}

/// The value that the plan gives to a key that is "auto".
fn decided(plan: &Plan, key: &str) -> Option<String> {
    let batch = &plan.batch;
    let distributed = &plan.distributed;
    Some(match key {
        "model.num_classes" => plan.model.outputs.to_string(),
        "data.num_workers" => plan.data.num_workers.to_string(),
        "train.batch_size" => batch.size.to_string(),
        "train.global_batch_size" => batch.global.to_string(),
        "train.gradient_accumulation_steps" => batch.accumulation.to_string(),
        "distributed.devices" => distributed.local_world().to_string(),
        "distributed.threads_per_rank" => distributed.threads_per_rank.to_string(),
        "distributed.shards" => batch.shards.to_string(),
        "distributed.min_world_size" => {
            distributed.smaller.last().unwrap_or(&distributed.world_size).to_string()
        }
        "distributed.backend" => distributed.backend.name.clone(),
        "validation.batch_size" => plan.val_batch_size.to_string(),
        _ => return None,
    })
}

/// `random_crop size=224 padding=4`
fn entry(item: &Value) -> String {
    let Value::Object(keys) = item else { return item.to_string() };
    let name = keys.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    keys.iter()
        .filter(|(key, _)| *key != "name")
        .fold(name, |text, (key, value)| format!("{text} {key}={}", inner(value)))
}

/// A value in an entry; a list of entries as their names: `[conv2d relu]`.
fn inner(value: &Value) -> String {
    let name = |item: &Value| Some(item.get("name")?.as_str()?.to_owned());
    match value {
        Value::Array(items) if items.iter().any(Value::is_object) => {
            format!("[{}]", items.iter().filter_map(name).collect::<Vec<_>>().join(" "))
        }
        value => value.to_string(),
    }
}

fn cut(value: &str) -> String {
    if value.chars().count() <= MAX_VALUE_LENGTH {
        return value.to_owned();
    }
    value.chars().take(MAX_VALUE_LENGTH - 3).collect::<String>() + "..."
}

fn optimizer(plan: &Plan) -> String {
    let place = if plan.optimizer.on_cpu { ", on the CPU" } else { "" };
    format!("{}{place}{}{}", plan.optimizer.rule, plan.clip.line(), plan.average_line())
}

fn model(plan: &Plan, loaded: &Loaded) -> String {
    let model = &plan.model;
    let precision = precision::words(plan, loaded.experiment.train.precision);
    let parameters = match model.base {
        None => "parameters".to_owned(),
        Some(base) => format!("trainable of {}", rounded(model.n_parameters + base.n_weights)),
    };
    format!(
        "{}: {} {parameters} in {} tensors, {} -> {}, {precision}",
        model.name(),
        thousands(model.n_parameters),
        model.n_tensors,
        product(&model.input),
        model.outputs
    )
}

/// "8.03 B", "135 M", "1,234": a number of parameters to three digits.
fn rounded(n: usize) -> String {
    let units = [(1e12, " T"), (1e9, " B"), (1e6, " M")];
    let Some((size, unit)) = units.into_iter().find(|(size, _)| n as f64 >= *size) else {
        return thousands(n);
    };
    let value = n as f64 / size;
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}{unit}")
}

fn flops(costs: &Costs) -> String {
    let estimated = if costs.is_estimated { ", estimated (too large to try)" } else { "" };
    costs.flops.map_or_else(|| "unknown FLOPs".to_owned(), operations) + estimated
}

/// "1.81 GFLOPs forward per sample"
fn operations(flops: u64) -> String {
    let (size, unit) = si_unit(flops as f64);
    let digits = if unit.is_empty() { 0 } else { 2 };
    format!("{:.digits$} {unit}FLOPs forward per sample", flops as f64 / size)
}

/// The parts of the memory of a rank, as many on a line as fit, and their sum.
fn memory(needs: &Memory) -> String {
    let activations = match needs.activations {
        Some(activations) if activations > needs.checkpoint => format!("activations {activations}"),
        Some(_) => format!("checkpoint {}", needs.checkpoint),
        None => "unknown activations".to_owned(),
    };
    let mapped = match needs.mapped {
        Bytes(0) => String::new(),
        mapped => format!(" + base, in its file, {mapped}"),
    };
    let parts = [
        format!("gradients {}", needs.gradients),
        format!("optimizer {}", needs.optimizer),
        format!("buffers {}{mapped}", needs.buffers),
        activations,
        format!("loading {}", needs.loading),
        format!("kept for reuse {}", needs.waiting),
        format!("program {}", needs.base),
    ];
    let mut lines = vec![format!("weights {}", needs.weights)];
    for part in parts {
        match lines.last_mut() {
            Some(line) if LABEL + line.len() + part.len() + 3 <= WIDTH => {
                *line += &format!(" + {part}");
            }
            _ => lines.push(format!("+ {part}")),
        }
    }
    lines.push(format!("= {} per rank", needs.total()));
    lines.join("\n")
}

/// Whether the ranks of this machine fit into its memory: ", fits into this machine's 23.54 GiB";
/// nothing for GPUs, or where the memory is not known.
fn fits(plan: &Plan, facts: &Facts, needs: &Memory) -> String {
    let distributed = &plan.distributed;
    let on_cpu = distributed.devices.iter().all(|device| device == "cpu");
    let Some(there) = facts.memory.filter(|_| on_cpu) else { return String::new() };
    let ranks = distributed.local_world().count() as u64;
    let all = needs.of_ranks(ranks);
    let together = if ranks > 1 { format!(", {all} in all") } else { String::new() };
    let fits = if all > there { "does not fit" } else { "fits" };
    format!("{together}: {fits} into this machine's {there}")
}

fn data(plan: &Plan) -> String {
    let data = &plan.data;
    let counts =
        format!("{} to train on, {} to validate", thousands(data.n_train), thousands(data.n_val));
    let tested = match data.n_test {
        0 => String::new(),
        n => format!(", {} to test", thousands(n)),
    };
    let counts = counts + &tested;
    if data.classes.is_empty() {
        return counts;
    }
    let some: Vec<_> = data.classes.iter().take(3).map(|class| escape(class)).collect();
    let more = if data.classes.len() > 3 { ", ..." } else { "" };
    let (n, some) = (data.classes.len(), some.join(", "));
    match data.source.modality {
        Modality::Text => format!("{counts}, a vocabulary of {} ({some}{more})", thousands(n)),
        _ => format!("{counts}, {} ({some}{more})", counted(n as u64, "class")),
    }
}

fn ranks(plan: &Plan) -> String {
    let distributed = &plan.distributed;
    // Those of this machine.
    let mut devices = distributed.devices.clone();
    devices.truncate(distributed.local_world().count());
    devices.dedup();
    let threads = counted(distributed.threads_per_rank as u64, "thread");
    let (world, devices) = (distributed.world_size, devices.join(", "));
    format!("{world} on {devices}, {threads} each, {}", exchange(distributed))
}

/// "5.00 GiB of shared memory", "NCCL between 2 machines"
fn exchange(distributed: &DistributedPlan) -> String {
    if distributed.world_size == WorldSize::ONE {
        return "alone".to_owned();
    }
    match (&distributed.capabilities.label, distributed.backend.mapping) {
        (Some(label), _) if distributed.nodes > 1 => {
            format!("{label} between {} machines", distributed.nodes)
        }
        (Some(label), _) => label.clone(),
        (None, Some(mapping)) => format!("{mapping} of shared memory"),
        (None, None) => distributed.backend.name.clone(),
    }
}

fn loading(plan: &Plan) -> String {
    let data = &plan.data;
    let workers = counted(data.num_workers as u64, "loader thread");
    let ahead = counted(data.prefetch_factor as u64, "batch");
    format!("{workers} per rank, {ahead} ahead each")
}

/// "3x224x224"
fn product(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}
