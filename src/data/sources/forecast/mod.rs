//! Series in time.

mod calendar;
mod dates;
mod table;
mod windows;

pub use calendar::Calendar;
pub use windows::CsvForecast;
