//! The data sets that come with ddprun.

use crate::registry::Registered;
use crate::sources::control::{PushTLike, Trajectories};
use crate::sources::forecast::CsvForecast;
use crate::sources::image_folder::ImageFolder;
use crate::sources::image_table::ImageTable;
use crate::sources::mnist::Mnist;
use crate::sources::shapes::Shapes;
use crate::sources::source::DataFamily;
use crate::sources::source::DataSources;
use crate::sources::speech::Speech;
use crate::sources::tables::{Csv, Jsonl};
use crate::sources::text::{Chat, Instructions, Tokens};

impl Registered for DataFamily {
    fn registered() -> DataSources {
        let mut all = DataSources::empty();
        all.add::<ImageFolder>();
        all.add::<ImageTable>();
        all.add::<Mnist>();
        all.add::<Shapes>();
        all.add::<Csv>();
        all.add::<Jsonl>();
        all.add::<CsvForecast>();
        all.add::<Tokens>();
        all.add::<Instructions>();
        all.add::<Chat>();
        all.add::<Trajectories>();
        all.add::<PushTLike>();
        all.add::<Speech>();
        all
    }
}
