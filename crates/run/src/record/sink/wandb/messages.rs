//! The part of `wandb_internal.proto` that a run needs, as protobuf messages: field numbers are
//! its.

use prost::Message;

/// A record of the log; one of its messages is set.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Record {
    /// Counted from 1.
    #[prost(int64, tag = "1")]
    pub num: i64,
    #[prost(message, optional, tag = "2")]
    pub history: Option<History>,
    #[prost(message, optional, tag = "3")]
    pub summary: Option<Items>,
    #[prost(message, optional, tag = "17")]
    pub run: Option<RunRecord>,
    #[prost(message, optional, tag = "18")]
    pub exit: Option<Exit>,
    #[prost(message, optional, tag = "21")]
    pub header: Option<Header>,
}

/// The row of a step.
#[derive(Clone, PartialEq, Message)]
pub(super) struct History {
    #[prost(message, repeated, tag = "1")]
    pub item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    pub step: Option<Step>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Step {
    #[prost(int64, tag = "1")]
    pub num: i64,
}

/// Changed entries of the summary or the configuration.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Items {
    #[prost(message, repeated, tag = "1")]
    pub update: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Item {
    #[prost(string, tag = "1")]
    pub key: String,
    /// Keys from the outermost to the innermost, in place of `key`.
    #[prost(string, repeated, tag = "2")]
    pub nested_key: Vec<String>,
    /// JSON with `NaN`, `Infinity` and `-Infinity`, as Python writes it.
    #[prost(string, tag = "16")]
    pub value_json: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunRecord {
    #[prost(string, tag = "1")]
    pub run_id: String,
    /// Empty = that of the account that uploads the run.
    #[prost(string, tag = "2")]
    pub entity: String,
    #[prost(string, tag = "3")]
    pub project: String,
    #[prost(message, optional, tag = "4")]
    pub config: Option<Items>,
    #[prost(string, tag = "6")]
    pub run_group: String,
    #[prost(string, tag = "7")]
    pub job_type: String,
    #[prost(string, tag = "8")]
    pub display_name: String,
    #[prost(string, repeated, tag = "10")]
    pub tags: Vec<String>,
    #[prost(string, tag = "13")]
    pub host: String,
    #[prost(message, optional, tag = "17")]
    pub start_time: Option<Time>,
}

/// `google.protobuf.Timestamp`
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Exit {
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
    /// Seconds.
    #[prost(int32, tag = "2")]
    pub runtime: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(message, optional, tag = "1")]
    pub version_info: Option<VersionInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VersionInfo {
    /// Version of the program that wrote the log.
    #[prost(string, tag = "1")]
    pub producer: String,
    /// Oldest version of W&B's client that can read it.
    #[prost(string, tag = "2")]
    pub min_consumer: String,
}
