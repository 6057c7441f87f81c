//! Dates of tables and of series: one reader for both, and how regularly they follow each other.

mod clock;
mod form;
mod frequency;
#[cfg(test)]
mod tests;

pub use form::{Date, dates, is_date, is_dated};
pub(crate) use form::{
    DateForm, FORMAT_KEY, FormInference, WrongDate, check_format, could_be_dates,
};
pub(crate) use frequency::gaps;
pub use frequency::{Frequency, FrequencyAlias};
