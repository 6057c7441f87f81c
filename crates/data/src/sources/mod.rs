//! The data sets: a file or a folder for each, and their registration.

pub(crate) mod source;
pub(crate) mod holdout;
mod class_labels;
mod encoded_images;
mod name_pattern;
pub(crate) mod image_folder;
mod mnist;
mod shapes;
pub(crate) mod dates;
pub(crate) mod tables;
mod image_table;
pub(crate) mod hf_dataset;
mod named_files;
pub(crate) mod webdataset;
pub(crate) mod forecast;
pub(crate) mod text;
mod python;

use crate::registry::Registered;

pub use dates::FrequencyAlias;
pub use dates::{Date, Frequency, dates, is_date, is_dated};
pub use forecast::{Calendar, CsvForecast};
pub use hf_dataset::{HfDataset, ImageShards};

pub use image_folder::ImageFolder;
pub use image_table::ImageTable;
pub use mnist::Mnist;
pub use name_pattern::NamePattern;
pub use python::PythonData;
pub use shapes::Shapes;
pub use source::{
    DataFamily, DataSource, DataSources, Environment, Files, OpenRequest, Survey, SurveyRequest,
};
pub use tables::{
    ColumnNames, Csv, DateFeature, DateFormats, Features, HandleUnknown, Jsonl, Missing,
    MissingValues,
};
pub use tables::{TargetCells, delimiter, other_separator};
pub use text::largest_token;
pub use text::{
    Chat, Instructions, Preferences, TokenDtype, Tokens, encode, end_of_answers, prompt,
};
pub use webdataset::{TarShards, WebDataset};

impl Registered for DataFamily {
    fn registered() -> DataSources {
        let mut all = DataSources::empty();
        all.add::<ImageFolder>();
        all.add::<ImageTable>();
        all.add::<HfDataset>();
        all.add::<WebDataset>();
        all.add::<Mnist>();
        all.add::<Shapes>();
        all.add::<Csv>();
        all.add::<Jsonl>();
        all.add::<CsvForecast>();
        all.add::<Tokens>();
        all.add::<Instructions>();
        all.add::<Chat>();
        all.add::<Preferences>();
        all.add::<PythonData>();
        all
    }
}
