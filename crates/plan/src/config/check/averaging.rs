//! Averages of the weights: what `[ema]`, `[swa]` and `[lookahead]` need, and that they exclude
//! each other.

use crate::config::check::finding::Finding;
use crate::config::loaded::Loaded;
use crate::config::values::Interval;

/// Findings about `[ema]`.
pub(crate) fn ema(loaded: &Loaded) -> Vec<Finding> {
    let mut found = Vec::new();
    let ema = &loaded.experiment.ema;
    if ema.power.is_some() && ema.decay.is_none() {
        let finding =
            Finding::new("ema.power", "needs `ema.decay`, the limit up to which the decay grows");
        found.push(finding.about("ema.decay").help("set it, such as `decay = 0.9999`"));
    }
    if ema.use_buffers.is_some() && ema.decay.is_none() {
        let finding =
            Finding::new("ema.use_buffers", "needs `ema.decay`: without it there is no average");
        found.push(finding.about("ema.decay").help("set it, such as `decay = 0.9999`"));
    }
    found
}

/// Findings about `[swa]`, and averages beside it.
pub(crate) fn swa(loaded: &Loaded) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let swa = &experiment.swa;
    let mut found = Vec::new();
    let mut needs = |key: &str, of: &str, help: &str| {
        let finding = Finding::new(format!("swa.{key}"), format!("needs `swa.{of}`"));
        found.push(finding.about(format!("swa.{of}")).help(help));
    };
    let of_rate = [
        ("anneal_epochs", swa.anneal_epochs.is_some()),
        ("anneal_strategy", swa.anneal_strategy.is_some()),
    ];
    let given = [("every", swa.every.is_some()), ("lr", swa.lr.is_some())];
    let given = given.into_iter().chain(of_rate).filter(|(_, is_given)| *is_given);
    if swa.start.is_none() {
        given.for_each(|(key, _)| needs(key, "start", "such as `start = \"75 epochs\"`"));
    } else if swa.lr.is_none() {
        let given = of_rate.into_iter().filter(|(_, is_given)| *is_given);
        given.for_each(|(key, _)| needs(key, "lr", "such as `lr = 0.05`"));
    }
    if swa.every == Some(Interval::Never) {
        let help = "leave out `swa.start` for no average";
        found.push(Finding::new("swa.every", "must be epochs or steps").help(help));
    }
    let averages = !matches!(swa.start, None | Some(Interval::Never));
    if averages && experiment.ema.decay.is_some() {
        let what = "cannot be combined with `ema.decay`: both average the weights";
        found.push(Finding::new("swa.start", what).about("ema.decay").help("choose one of them"));
    }
    if averages && swa.lr.is_some() && experiment.scheduler.monitor().is_some() {
        let name = &experiment.scheduler.name;
        let what =
            format!("`{name}` sets the learning rate by a metric: none is known to anneal from");
        let help = "choose a scheduler of steps or epochs, or leave out `swa.lr`";
        found.push(Finding::new("swa.lr", what).about("scheduler.name").help(help));
    }
    found
}

/// Findings about `[lookahead]`, and averages beside it.
pub(crate) fn lookahead(loaded: &Loaded) -> Vec<Finding> {
    let experiment = &loaded.experiment;
    let lookahead = &experiment.lookahead;
    let mut found = Vec::new();
    let given = [("alpha", lookahead.alpha.is_some()), ("power", lookahead.power.is_some())];
    for (key, _) in given.into_iter().filter(|(_, given)| *given && lookahead.k.is_none()) {
        let finding = Finding::new(format!("lookahead.{key}"), "needs `lookahead.k`");
        found.push(finding.about("lookahead.k").help("set it, such as `k = 5`"));
    }
    let swa = !matches!(experiment.swa.start, None | Some(Interval::Never));
    let others = [("ema.decay", experiment.ema.decay.is_some()), ("swa.start", swa)];
    for (other, _) in others.into_iter().filter(|(_, is_on)| *is_on && lookahead.k.is_some()) {
        let what = format!("cannot be combined with `{other}`: both average the weights");
        found.push(Finding::new("lookahead.k", what).about(other).help("choose one of them"));
    }
    found
}
