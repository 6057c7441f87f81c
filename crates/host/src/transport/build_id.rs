//! Identity of the build of the program: two builds of one version need not understand each other.

use std::fs::File;
use std::sync::OnceLock;

/// "0.1.0 (build 3f9a2c81)": the version, and a hash of the program's file.
pub fn build_id() -> &'static str {
    static BUILD_ID: OnceLock<String> = OnceLock::new();
    BUILD_ID.get_or_init(|| {
        let hash = executable_hash().unwrap_or_else(|_| "unknown".to_owned());
        format!("{} (build {hash})", env!("CARGO_PKG_VERSION"))
    })
}

/// Hash of the file that this process runs, even if it was replaced since.
fn executable_hash() -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open("/proc/self/exe")?)?;
    Ok(hasher.finalize().to_hex()[..8].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_holds_the_version_and_the_hash_of_the_executable() {
        let id = build_id();
        assert!(id.starts_with(concat!(env!("CARGO_PKG_VERSION"), " (build ")), "{id}");
        assert_eq!(
            id,
            format!("{} (build {})", env!("CARGO_PKG_VERSION"), executable_hash().unwrap())
        );
    }
}
