//! Series in time.

mod calendar;
mod dates;
mod table;
mod csv_forecast;

pub use calendar::Calendar;
pub use csv_forecast::CsvForecast;
