//! The kinds of clusters that come with ddprun.

use crate::registry::Registered;
use crate::{ClusterFamily, Clusters, Kubernetes, Local, Slurm, Ssh};

impl Registered for ClusterFamily {
    fn registered() -> Clusters {
        let mut all = Clusters::empty();
        all.add::<Slurm>();
        all.add::<Kubernetes>();
        all.add::<Ssh>();
        all.add::<Local>();
        all
    }
}
