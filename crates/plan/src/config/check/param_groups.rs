//! Groups of parameters: keys of one group that cannot be together.

use crate::config::check::Finding;
use crate::config::loaded::Loaded;
use crate::config::schema::Group;

/// What is wrong within each group.
pub(crate) fn together(loaded: &Loaded) -> Vec<Finding> {
    let groups = loaded.experiment.optimizer.groups.iter().enumerate();
    groups.flat_map(|(index, group)| within(index, group)).collect()
}

fn within(index: usize, group: &Group) -> Vec<Finding> {
    let key = |name: &str| format!("optimizer.groups[{index}].{name}");
    let given = [
        ("lr_factor", group.lr_factor.is_some()),
        ("weight_decay", group.weight_decay.is_some()),
        ("unfreeze_at_epoch", group.unfreeze_at_epoch.is_some()),
        ("freeze_at_epoch", group.freeze_at_epoch.is_some()),
    ];
    let keys = given.map(|(name, _)| key(name));
    let given = given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    if group.frozen == Some(true) {
        let idle =
            |name| Finding::new(key(name), "has no meaning: the group is frozen for the whole run");
        return given.map(|name| idle(name).about(key("frozen"))).collect();
    }
    let late =
        group.freeze_at_epoch.zip(group.unfreeze_at_epoch).filter(|(end, start)| end <= start);
    if let Some((_, start)) = late {
        let what = format!("must be more than `unfreeze_at_epoch`, {start}");
        return vec![Finding::new(key("freeze_at_epoch"), what).about(key("unfreeze_at_epoch"))];
    }
    if group.frozen.is_none() && given.count() == 0 {
        let finding = Finding::new(key("match"), "sets nothing for these parameters");
        let help = "set one, such as `lr_factor = 0.1`, `weight_decay = 0.0` or `frozen = true`";
        let finding = finding.help(help);
        let keys = keys.into_iter().chain([key("frozen")]);
        return vec![keys.fold(finding, Finding::about)];
    }
    Vec::new()
}
