//! TOML text -> `Experiment`, or all its problems at once, each with a caret into the file.
//!
//! ```text
//! file, extends, DDPRUN_*, key=value ─layers─▶ unknown keys ─▶ wrong values ─▶ rules ─▶ Loaded | Problems
//! ```
//!
//! A problem does not end the search: a misspelt key is given its right name, a wrong value is
//! removed, and the search goes on, so that all problems are reported at once.

mod check;
pub mod clusters;
mod extract;
mod faults;
mod json_schema;
mod keys;
pub mod kind;
mod layer;
mod load;
mod loaded;
mod key_aliases;
mod overrides;
mod problem;
mod reader;
mod resolved;
pub mod schema;
mod spans;
mod suggest;
pub mod sweep;
mod table;
mod text;
mod unknown_keys;
mod urls;
pub mod values;
mod vocabulary;
mod wording;
mod hooks;
mod mirror;
mod file_kind;

pub use check::{TAG_FORM, is_tag};
pub use file_kind::FileKind;
pub use hooks::{HookEvent, fill_placeholders, placeholders_in};
pub use json_schema::json_schema;
pub use keys::dotted;
pub use layer::Source;
#[doc(hidden)] // for the tests of what uses this package
pub use load::load_in;
pub use load::{load, load_alone, load_stored, load_text};
pub use loaded::{Loaded, PretrainedCheckpoint};
pub use mirror::Mirror;
pub use overrides::RESERVED;
pub use problem::{Problem, Problems};
pub use resolved::{Change, changed_keys, leaves, leaves_of, refuse_unsafe, resolved};
pub use resolved::{is_folder, no_use_in_evaluations, safe_on_resume};
pub use schema::Experiment;
pub use suggest::{closest, similar};
pub use urls::{HUB, NO_URL, instead_of_url, is_hub_name, url_scheme};
pub use vocabulary::{MetricSpec, Vocabulary};
