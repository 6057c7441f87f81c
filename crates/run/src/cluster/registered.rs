//! The kinds of clusters that come with ddprun.

use crate::cluster::{ClusterFamily, Clusters, Kubernetes, Local, Slurm, Ssh};
use crate::registry::Registered;

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
