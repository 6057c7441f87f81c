//! The searches and pruners that come with ddprun.

use crate::registry::Registered;
use crate::sweep::{
    Asha, Grid, List, LrRange, Median, MethodFamily, Methods, NoPruner, PrunerFamily, Pruners,
    Random, Tpe,
};

impl Registered for MethodFamily {
    fn registered() -> Methods {
        let mut all = Methods::empty();
        all.add::<Grid>();
        all.add::<Random>();
        all.add::<Tpe>();
        all.add::<List>();
        all.add::<LrRange>();
        all
    }
}

impl Registered for PrunerFamily {
    fn registered() -> Pruners {
        let mut all = Pruners::empty();
        all.add::<NoPruner>();
        all.add::<Asha>();
        all.add::<Median>();
        all
    }
}
