//! The data sets: a file or a folder for each.

pub(in crate::data) mod source;
mod holdout;
pub(in crate::data) mod image_folder;
mod mnist;
mod shapes;
pub(in crate::data) mod dates;
pub(in crate::data) mod tables;
mod image_table;
pub(in crate::data) mod forecast;
pub(in crate::data) mod text;
pub(in crate::data) mod speech;
pub(in crate::data) mod control;
mod registered;

pub(crate) use control::cameras;
pub use control::{Chunk, Policy, PushTLike, Ranges, Trajectories, scaled, unscaled};
pub use dates::FrequencyAlias;
pub(crate) use dates::{Date, Frequency, dates, is_date, is_dated};
pub use forecast::{Calendar, CsvForecast};
pub use image_folder::ImageFolder;
pub use image_table::ImageTable;
pub use mnist::Mnist;
pub use shapes::Shapes;
pub use source::{Asked, DataFamily, DataSource, DataSources, Files, Reading, Survey};
pub use speech::{LogMel, Speech};
pub use tables::{
    ColumnNames, Csv, DateFeature, DateFormats, Features, HandleUnknown, Jsonl, Missing,
    MissingValues,
};
pub(crate) use tables::{TargetCells, delimiter, other_separator};
pub(crate) use text::largest_token;
pub use text::{Chat, Instructions, TokenDtype, Tokens, encode, prompt};
