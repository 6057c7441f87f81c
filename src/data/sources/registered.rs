//! The data sets that come with ddprun.

use crate::data::sources::control::{PushTLike, Trajectories};
use crate::data::sources::forecast::CsvForecast;
use crate::data::sources::image_folder::ImageFolder;
use crate::data::sources::image_table::ImageTable;
use crate::data::sources::mnist::Mnist;
use crate::data::sources::shapes::Shapes;
use crate::data::sources::source::DataSources;
use crate::data::sources::speech::Speech;
use crate::data::sources::tables::{Csv, Jsonl};
use crate::data::sources::text::{Chat, Instructions, Tokens};

impl Default for DataSources {
    /// Those that come with ddprun.
    fn default() -> Self {
        let mut all = Self::empty();
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
