//! Which program this is: two builds of one version may speak the same words and mean something else.

use std::fs::File;
use std::sync::OnceLock;

/// "0.1.0 (build 3f9a2c81)": the version, and a hash of the program's file.
pub(crate) fn identity() -> &'static str {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let build = build().unwrap_or_else(|_| "unknown".to_owned());
        format!("{} (build {build})", env!("CARGO_PKG_VERSION"))
    })
}

/// The file that this process runs, also if another has its name by now.
fn build() -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open("/proc/self/exe")?)?;
    Ok(hasher.finalize().to_hex()[..8].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_itself_and_says_its_version() {
        let known = identity();
        assert!(known.starts_with(concat!(env!("CARGO_PKG_VERSION"), " (build ")), "{known}");
        assert_eq!(known, format!("{} (build {})", env!("CARGO_PKG_VERSION"), build().unwrap()));
    }
}
