//! Dates of tables and of series: one reader for both, and how regularly they follow each other.

mod clock;
mod form;
mod frequency;
#[cfg(test)]
mod tests;

pub(crate) use form::{
    Date, DateForm, FORMAT_KEY, FormInference, WrongDate, check_format, could_be_dates, dates,
    is_date, is_dated,
};
pub use frequency::FrequencyAlias;
pub(crate) use frequency::{Frequency, gaps};
