//! Words where a path belongs: URLs, which are refused, and names on the Hugging Face hub.

/// The message for a URL where a path belongs.
pub const NO_URL: &str = "is a URL, but must be a path";

/// The scheme of a URL (`s3` of `s3://bucket/x.csv`); `None` if `text` is a path.
pub fn url_scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.trim_start().split_once("://")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let begins = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    (begins && scheme.chars().all(plain)).then_some(scheme)
}

/// Prefix of a name on the Hugging Face hub.
pub const HUB: &str = "hf:";

/// True of `hf:ORG/NAME/FILE`, a file on the Hugging Face hub, which is fetched before it is read.
pub fn is_hub_name(text: &str) -> bool {
    text.starts_with(HUB)
}

/// A remedy for a URL of this scheme: how to get its content as a file.
pub fn instead_of_url(scheme: &str) -> String {
    let how = match scheme.to_ascii_lowercase().as_str() {
        "file" => return "write the path without `file://`".to_owned(),
        "s3" | "s3a" | "s3n" => "`aws s3 cp`",
        "gs" | "gcs" => "`gcloud storage cp`",
        "az" | "abfs" | "abfss" | "wasb" | "wasbs" => "`azcopy copy`",
        "http" | "https" | "ftp" => "`curl -O`",
        "hdfs" => "`hdfs dfs -get`",
        _ => return "copy it to a disk, or mount it, and write the path".to_owned(),
    };
    format!("copy it to a disk, such as with {how}, or mount it, and write the path")
}
