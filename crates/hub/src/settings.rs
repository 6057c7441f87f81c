//! Where the hub and its cache are: the environment variables of `huggingface_hub`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ddprun_host::files;

/// The public hub.
const ENDPOINT: &str = "https://huggingface.co";

/// Address, cache and rights.
#[derive(Clone, Debug)]
pub struct Config {
    /// `HF_ENDPOINT`, without a slash at its end.
    pub endpoint: String,
    /// `HF_HUB_CACHE`, or `hub` in `HF_HOME`, by default `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// `HF_TOKEN`, or what `hf auth login` has stored.
    pub token: Option<Token>,
    /// `HF_HUB_OFFLINE`: only what the cache holds is used.
    pub is_offline: bool,
    /// `DDPRUN_DATA_MIRROR`: a folder on the web that has the files of data sets, instead of those
    /// that are known.
    pub mirror: Option<String>,
    /// `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE`: certificates to trust instead of
    /// the built-in ones, in PEM.
    pub certificates: Option<PathBuf>,
}

/// A secret, and where it was found.
#[derive(Clone)]
pub struct Token {
    pub(crate) secret: String,
    /// The name of a variable, or the path of a file.
    pub(crate) origin: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token of {}", self.origin)
    }
}

impl Config {
    /// Reads the variables by `var`. An empty one counts as absent.
    pub fn from_env(var: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let path = |name: &str| var(name).map(PathBuf::from);
        let text = |name: &str| var(name).and_then(|value| value.into_string().ok());
        let cache_home =
            || path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
        let home = path("HF_HOME").or_else(|| cache_home().map(|cache| cache.join("huggingface")));
        let home = home.unwrap_or_else(|| PathBuf::from(".huggingface"));
        let cache = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].into_iter().find_map(path);
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let given = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter();
        let given = given.map(|name| (name, text(name))).find_map(|(name, secret)| {
            Some(Token { secret: secret?.trim().to_owned(), origin: name.to_owned() })
        });
        let certificates = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];
        Self {
            endpoint: text("HF_ENDPOINT")
                .unwrap_or_else(|| ENDPOINT.to_owned())
                .trim_end_matches('/')
                .to_owned(),
            cache: cache.unwrap_or_else(|| home.join("hub")),
            token: given.or_else(|| stored(&token_file)),
            is_offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().any(|name| {
                text(name).is_some_and(|value| {
                    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
                })
            }),
            mirror: text("DDPRUN_DATA_MIRROR").map(|url| url.trim_end_matches('/').to_owned()),
            certificates: certificates.into_iter().find_map(path),
        }
    }
}

/// The token that `hf auth login` has written into `file`.
fn stored(file: &Path) -> Option<Token> {
    let secret = files::read_to_string(file).ok()?.trim().to_owned();
    (!secret.is_empty()).then(|| Token { secret, origin: file.display().to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Config {
        Config::from_env(&|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_variables_of_huggingface_hub_decide() {
        let usual = config(&[("HOME", "/home/u")]);
        assert_eq!(usual.endpoint, "https://huggingface.co");
        assert_eq!(usual.cache, Path::new("/home/u/.cache/huggingface/hub"));
        assert!(usual.token.is_none() && !usual.is_offline);
        let cache = |variables: &[(&str, &str)]| config(variables).cache;
        assert_eq!(
            cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]),
            Path::new("/c/huggingface/hub")
        );
        assert_eq!(cache(&[("HF_HOME", "/f"), ("XDG_CACHE_HOME", "/c")]), Path::new("/f/hub"));
        assert_eq!(cache(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/x")]), Path::new("/x"));
        let given = config(&[
            ("HF_ENDPOINT", "http://127.0.0.1:1/"),
            ("HF_TOKEN", " t "),
            ("HF_HUB_OFFLINE", "yes"),
        ]);
        assert_eq!(given.endpoint, "http://127.0.0.1:1");
        assert!(given.is_offline && given.token.as_ref().is_some_and(|token| token.secret == "t"));
        assert_eq!(format!("{:?}", given.token), "Some(Token of HF_TOKEN)");
    }

    #[test]
    fn a_stored_token_is_found() {
        let home = tempfile::tempdir().unwrap();
        files::write_secret(&home.path().join("token"), b"hf_stored\n").unwrap();
        let home = home.path().to_str().unwrap();
        assert_eq!(config(&[("HF_HOME", home)]).token.unwrap().secret, "hf_stored");
        assert_eq!(
            config(&[("HF_HOME", home), ("HF_TOKEN", "given")]).token.unwrap().secret,
            "given"
        );
    }
}
