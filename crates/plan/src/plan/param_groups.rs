//! Parameter groups: parameters with a learning rate or a weight decay of their own, and those that
//! are trained for a part of the run only.

use crate::config::schema::{Group, NoDecay};
use crate::config::values::Interval;
use crate::config::{Loaded, Problem, closest};
use crate::plan::layer_decay::{Layers, layers, lr_factor};
use crate::plan::{ModelFacts, OptimizerPlan, ParameterGroup};

/// The optimizer with the groups of `[optimizer]`; without settings for groups there are none.
pub(super) fn decide(
    loaded: &Loaded,
    optimizer: OptimizerPlan,
    model: &ModelFacts,
    steps_per_epoch: u64,
) -> Result<OptimizerPlan, Vec<Problem>> {
    let config = &loaded.experiment.optimizer;
    let is_plain = config.groups.is_empty() && config.no_decay.is_empty();
    let interval = config.gradual_unfreezing.and_then(|every| match every {
        Interval::Never => None,
        Interval::Epochs(n) => Some(n.saturating_mul(steps_per_epoch)),
        Interval::Steps(n) => Some(n),
    });
    let by_layers = config.layer_decay.is_some() || interval.is_some();
    if is_plain && !by_layers && optimizer.matrices.is_none() {
        return Ok(optimizer);
    }
    let problems = unmatched(loaded, model);
    if !problems.is_empty() {
        return Err(problems);
    }
    let layers = by_layers.then(|| layers(model).ok_or_else(|| unlayered(loaded))).transpose()?;
    let settings =
        GroupSettings { loaded, model, layers, interval, steps_per_epoch, plan: &optimizer };
    let mut groups = Vec::<ParameterGroup>::new();
    let mut group_of = Vec::new();
    for (index, (_, shape)) in model.parameters.iter().enumerate() {
        let group = settings.group(index);
        let known = groups.iter().position(|other| other.has_settings_of(&group));
        let at = known.unwrap_or(groups.len());
        if known.is_none() {
            groups.push(group);
        }
        groups[at].n_state += settings.n_state(shape, groups[at].is_matrix);
        groups[at].n_tensors += 1;
        groups[at].n_parameters += shape.iter().product::<usize>();
        group_of.push(at);
    }
    if optimizer.matrices.as_ref().is_some_and(|matrices| matrices.only_hidden)
        && !groups.iter().any(|group| group.is_matrix && group.is_ever_trained())
    {
        return Err(vec![without_matrices(loaded)]);
    }
    match idle_at(&groups) {
        Some(step) => Err(vec![idle(loaded, step / steps_per_epoch.max(1))]),
        None => Ok(OptimizerPlan { groups, group_of, ..optimizer }),
    }
}

/// Settings that decide the group of a parameter.
struct GroupSettings<'a> {
    loaded: &'a Loaded,
    model: &'a ModelFacts,
    layers: Option<Layers>,
    /// Steps between the unfreezing of two layers.
    interval: Option<u64>,
    steps_per_epoch: u64,
    plan: &'a OptimizerPlan,
}

impl GroupSettings<'_> {
    fn group(&self, index: usize) -> ParameterGroup {
        let (name, shape) = &self.model.parameters[index];
        let config = &self.loaded.experiment.optimizer;
        let own = config.groups.iter().find(|group| matches(&group.pattern, name));
        let layer = self.layers.as_ref().map(|layers| layers.of(index));
        let exempt = self.is_exempt(name, shape);
        let decay = if exempt { 0.0 } else { self.plan.weight_decay };
        let steps = |epochs: u64| epochs.saturating_mul(self.steps_per_epoch);
        let frozen = own.is_some_and(|group| group.frozen == Some(true));
        let start = own.and_then(|group| group.unfreeze_at_epoch).map(steps);
        let turn =
            layer.zip(self.interval).map(|((_, above), n)| n.saturating_mul(u64::from(above)));
        let end = own.and_then(|group| group.freeze_at_epoch).map(steps);
        let own_decay = own.and_then(|group| group.weight_decay);
        let pattern = own.map(|group| group.pattern.clone());
        let names = [pattern, layer.map(|(name, _)| name.to_owned())];
        let mut names: Vec<String> = names.into_iter().flatten().collect();
        let matrices = self.plan.matrices.as_ref();
        let is_matrix = matrices.is_some_and(|matrices| matrices.holds(name, shape, self.model));
        let by_shape = matrices.filter(|_| !is_matrix).map_or(1.0, |all| all.others_lr_factor);
        if is_matrix {
            names.push("matrices".to_owned());
        }
        let name = if names.is_empty() { "others".to_owned() } else { names.join(", ") };
        let is_exempt = exempt && own_decay.is_none() && self.plan.weight_decay > 0.0;
        ParameterGroup {
            name: if is_exempt && !frozen { name + ", no decay" } else { name },
            lr_factor: own.and_then(|group| group.lr_factor).unwrap_or(1.0)
                * layer
                    .zip(config.layer_decay)
                    .map_or(1.0, |((_, above), by)| lr_factor(by, above))
                * by_shape,
            weight_decay: if frozen { 0.0 } else { own_decay.unwrap_or(decay) },
            unfreezes_at: if frozen { 0 } else { start.or(turn).unwrap_or(0) },
            freezes_at: if frozen { Some(0) } else { end },
            is_matrix,
            n_state: 0,
            n_tensors: 0,
            n_parameters: 0,
        }
    }

    /// Elements of the optimizer state of a parameter of this shape.
    fn n_state(&self, shape: &[usize], is_matrix: bool) -> usize {
        let whole: usize = shape.iter().product();
        match &self.plan.matrices {
            Some(matrices) if is_matrix => {
                matrices.state.iter().map(|tensor| tensor.elem_count(shape)).sum()
            }
            _ => self.plan.state.len() * whole,
        }
    }

    /// True if `no_decay` or `no_decay_on_1d` exempts the parameter from weight decay.
    fn is_exempt(&self, name: &str, shape: &[usize]) -> bool {
        let config = &self.loaded.experiment.optimizer;
        let is_bias = name.rsplit('.').next() == Some("bias");
        let is_1d = shape.len() <= 1;
        let is_embedding = || self.model.embeddings.iter().any(|embedding| embedding == name);
        let is = |word: &NoDecay| match word {
            NoDecay::Norm => is_1d && !is_bias,
            NoDecay::Bias => is_bias,
            NoDecay::Embedding => is_embedding(),
        };
        (config.no_decay_on_1d && is_1d) || config.no_decay.iter().any(is)
    }
}

/// Problems of patterns that match no parameter, or only those of an earlier pattern.
fn unmatched(loaded: &Loaded, model: &ModelFacts) -> Vec<Problem> {
    let groups = &loaded.experiment.optimizer.groups;
    let names = || model.parameters.iter().map(|(name, _)| name.as_str());
    let first = |name: &str| groups.iter().position(|group| matches(&group.pattern, name));
    let problem = |(index, group): (usize, &Group)| {
        let key = format!("optimizer.groups[{index}].match");
        let matched: Vec<&str> = names().filter(|name| matches(&group.pattern, name)).collect();
        let Some(earlier) = matched.iter().filter_map(|name| first(name)).max() else {
            let what = format!("matches no parameter of `{}`", loaded.experiment.model.name);
            return Some(loaded.problem(&key, what).help(nearest(&group.pattern, names())));
        };
        (earlier < index).then(|| {
            let what = format!(
                "matches only what `{}` matches, which comes first",
                groups[earlier].pattern
            );
            loaded.problem(&key, what).help("put the narrower pattern first")
        })
    };
    groups.iter().enumerate().filter_map(problem).collect()
}

/// A remedy for a pattern that matches nothing: the name, or the module, that was probably meant.
fn nearest<'a>(pattern: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    let starts = |name: &'a str| {
        let ends = name.match_indices('.').map(|(end, _)| end).chain([name.len()]);
        ends.map(|end| &name[..end]).collect::<Vec<_>>()
    };
    let stem = pattern.trim_end_matches(['*', '.']);
    if let Some(found) = closest(stem, names.clone().flat_map(starts)) {
        return format!("did you mean `{found}`?");
    }
    let mut modules: Vec<&str> = names.map(|name| starts(name)[0]).collect();
    modules.dedup();
    modules.truncate(12);
    format!("begin it as one of its parameters: {}", modules.join(", "))
}

/// The first step at which nothing is trained.
fn idle_at(groups: &[ParameterGroup]) -> Option<u64> {
    let edges = groups.iter().flat_map(|group| [Some(group.unfreezes_at), group.freezes_at]);
    let mut edges: Vec<u64> = edges.flatten().chain([0]).collect();
    edges.sort_unstable();
    edges.into_iter().find(|&step| !groups.iter().any(|group| group.is_trained(step)))
}

fn idle(loaded: &Loaded, epochs: u64) -> Problem {
    let what = match epochs {
        0 => "leave nothing to train at first".to_owned(),
        1 => "leave nothing to train after 1 epoch".to_owned(),
        n => format!("leave nothing to train after {n} epochs"),
    };
    loaded.problem("optimizer.groups", what)
}

fn without_matrices(loaded: &Loaded) -> Problem {
    let experiment = &loaded.experiment;
    let rule = &experiment.optimizer.name;
    let model = &experiment.model.name;
    let what = format!("`{rule}` updates matrices of hidden layers, but `{model}` trains none");
    loaded
        .problem("optimizer.name", what)
        .help("choose `adamw`, which updates all other parameters")
}

/// Problems of a model without numbered layers, one for each key that needs them.
fn unlayered(loaded: &Loaded) -> Vec<Problem> {
    let name = &loaded.experiment.model.name;
    let config = &loaded.experiment.optimizer;
    let of = |key: &str, why: &str, instead: &str| {
        let what = format!("`{name}` has no numbered layers, such as `blocks.0`, {why}");
        loaded.problem(key, what).help(format!("use `[[optimizer.groups]]` with `{instead}`"))
    };
    let decay = config.layer_decay.map(|_| {
        of("optimizer.layer_decay", "by which the learning rate could decay", "lr_factor")
    });
    let gradual = config.gradual_unfreezing.map(|_| {
        let key = "optimizer.gradual_unfreezing";
        of(key, "to unfreeze one after another", "unfreeze_at_epoch")
    });
    decay.into_iter().chain(gradual).collect()
}

/// True if a parameter's name matches a pattern: a module's name matches all parameters in it, `*`
/// any characters, `?` one.
fn matches(pattern: &str, name: &str) -> bool {
    if pattern.contains(['*', '?']) {
        return glob(pattern.as_bytes(), name.as_bytes());
    }
    name.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Matches a glob in time proportional to pattern times name: only the newest `*` is ever tried
/// again.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let mut p = 0;
    let mut n = 0;
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_module_or_has_wildcards() {
        let check = |pattern, name, expected| {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        };
        check("layer4", "layer4.0.conv1.weight", true);
        check("layer4", "layer40.weight", false);
        check("fc.bias", "fc.bias", true);
        check("*.bias", "layer4.0.bn1.bias", true);
        check("*.bias", "layer4.0.bn1.bias_scale", false);
        check("layer?.*.conv1*", "layer4.0.conv1.weight", true);
        check("*bn*weight", "layer4.0.bn1.weight", true);
        check("*bn*weight", "layer4.0.conv1.weight", false);
        check("*", "x", true);
    }

    #[test]
    fn the_nearest_name_is_a_whole_name_or_the_beginning_of_one() {
        let names = ["conv1.weight", "layer4.0.conv1.weight", "fc.weight"];
        let check = |pattern, expected: &str| {
            assert_eq!(nearest(pattern, names.into_iter()), expected);
        };
        check("layr4", "did you mean `layer4`?");
        check("layer4.0.conv.*", "did you mean `layer4.0.conv1`?");
        check("fc.wieght", "did you mean `fc.weight`?");
        check("transformer", "begin it as one of its parameters: conv1, layer4, fc");
    }
}
