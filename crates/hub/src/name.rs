//! Names of repositories and files of the hub.

use std::fmt;

use ddprun_plan::config::HUB;

/// Prefix of the name of a data repository.
const DATASETS: &str = "datasets/";
/// Beginnings of revisions with slashes in them: pull requests of the hub, and what it has converted
/// to parquet.
const WITH_SLASHES: [&str; 2] = ["refs/pr/", "refs/convert/"];

/// The two sorts of repositories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepoKind {
    /// `hf:ORG/NAME` where weights or a tokenizer are named.
    Model,
    /// `hf:ORG/NAME` where data are named, and `hf:datasets/ORG/NAME` everywhere.
    Dataset,
}

/// Text that begins with `hf:` and is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a name on the hub")]
pub struct BadName {
    pub name: String,
}

/// A repository: its sort, and `ORG/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    pub kind: RepoKind,
    pub id: String,
}

impl Repo {
    /// Folder of the repository in the cache, such as `models--timm--resnet18.a1_in1k`.
    pub(crate) fn folder(&self) -> String {
        let kind = match self.kind {
            RepoKind::Model => "models",
            RepoKind::Dataset => "datasets",
        };
        format!("{kind}--{}", self.id.replace('/', "--"))
    }

    /// Path of the repository's pages and files below the hub's address.
    pub(crate) fn url_path(&self) -> String {
        match self.kind {
            RepoKind::Model => self.id.clone(),
            RepoKind::Dataset => format!("{DATASETS}{}", self.id),
        }
    }

    /// Path of the repository in the hub's API.
    pub(crate) fn api_path(&self) -> String {
        match self.kind {
            RepoKind::Model => format!("api/models/{}", self.id),
            RepoKind::Dataset => format!("api/datasets/{}", self.id),
        }
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RepoKind::Model => write!(f, "{HUB}{}", self.id),
            RepoKind::Dataset => write!(f, "{HUB}{DATASETS}{}", self.id),
        }
    }
}

/// A repository, a revision of it and a file in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    pub repo: Repo,
    /// Branch, tag or commit; `None` means `main`.
    pub revision: Option<String>,
    /// Path of a file in the repository.
    pub file: Option<String>,
}

impl HubName {
    /// Parses `hf:ORG/NAME[@REVISION][/FILE]`; `None` if `text` does not begin with `hf:`.
    ///
    /// # Errors
    ///
    /// The name is not of this form, or could lead out of its folder in the cache.
    pub fn parse(text: &str, kind: RepoKind) -> Option<Result<Self, BadName>> {
        let name = text.strip_prefix(HUB)?;
        // `hf://` is how fsspec and pandas write it.
        let name = name.strip_prefix("//").unwrap_or(name);
        let (name, kind) = match name.strip_prefix(DATASETS) {
            Some(name) => (name, RepoKind::Dataset),
            None => (name, kind),
        };
        Some(
            parts(name)
                .map(|(id, revision, file)| Self { repo: Repo { kind, id }, revision, file })
                .ok_or_else(|| BadName { name: text.to_owned() }),
        )
    }

    /// The same file at this commit.
    #[must_use]
    pub fn at(&self, commit: &str) -> Self {
        Self { revision: Some(commit.to_owned()), ..self.clone() }
    }

    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repo.fmt(f)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        self.file.as_ref().map_or(Ok(()), |file| write!(f, "/{file}"))
    }
}

/// True if `revision` is a commit, which never changes.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `ORG/NAME`, the revision and the file.
fn parts(name: &str) -> Option<(String, Option<String>, Option<String>)> {
    let (org, rest) = name.split_once('/')?;
    let end = rest.find(['@', '/']).unwrap_or(rest.len());
    let (repo, rest) = rest.split_at(end);
    let (revision, file) = match rest.strip_prefix('@') {
        None => (None, rest),
        Some(rest) => {
            let start = WITH_SLASHES.into_iter().find(|start| rest.starts_with(start));
            let within = start.map_or(0, str::len);
            let end = rest[within..].find('/').map_or(rest.len(), |end| within + end);
            (Some(&rest[..end]), &rest[end..])
        }
    };
    let file = (!file.is_empty()).then(|| &file[1..]);
    let is_word = |word: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !word.is_empty()
            && word.bytes().all(is_allowed)
            && !word.starts_with('.')
            && !word.contains("--")
    };
    let is_path = |path: &str| {
        path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
            && !path.contains(['\\', '?', '#'])
            && !path.contains(char::is_control)
    };
    let fits =
        is_word(org) && is_word(repo) && revision.is_none_or(is_path) && file.is_none_or(is_path);
    let owned = |text: &str| text.to_owned();
    fits.then(|| (format!("{org}/{repo}"), revision.map(owned), file.map(owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<HubName> {
        HubName::parse(text, RepoKind::Model).and_then(Result::ok)
    }

    #[test]
    fn a_name_is_a_repository_a_revision_and_a_file() {
        let name = |id: &str, revision: Option<&str>, file: Option<&str>| HubName {
            repo: Repo { kind: RepoKind::Model, id: id.to_owned() },
            revision: revision.map(str::to_owned),
            file: file.map(str::to_owned),
        };
        let cases = [
            ("hf:timm/resnet18.a1_in1k", name("timm/resnet18.a1_in1k", None, None)),
            ("hf:a/b@v1.0", name("a/b", Some("v1.0"), None)),
            ("hf:a/b/sub/w.safetensors", name("a/b", None, Some("sub/w.safetensors"))),
            ("hf:a/b@refs/pr/3/w.bin", name("a/b", Some("refs/pr/3"), Some("w.bin"))),
            ("hf:a/b@refs/pr/3", name("a/b", Some("refs/pr/3"), None)),
            ("hf:a/b@refs/convert/parquet/x", name("a/b", Some("refs/convert/parquet"), Some("x"))),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), Some(expected.clone()), "{text}");
            assert_eq!(expected.to_string(), text);
        }
        assert_eq!(parse("hf://a/b").map(|name| name.to_string()).as_deref(), Some("hf:a/b"));
        let data = parse("hf:datasets/a/b/x.parquet").unwrap();
        assert_eq!(
            (data.repo.kind, data.to_string()),
            (RepoKind::Dataset, "hf:datasets/a/b/x.parquet".to_owned())
        );
        assert_eq!(data.repo.folder(), "datasets--a--b");
    }

    #[test]
    fn names_that_would_lead_elsewhere_are_refused() {
        let bad = [
            "hf:",
            "hf:gpt2",
            "hf:a/",
            "hf:/b",
            "hf:a/b/../c",
            "hf:a/b//c",
            "hf:a/b@",
            "hf:a/b@../../x",
            "hf:a/..",
            "hf:a/b/x?y",
            "hf:a b/c",
            "hf:a/b--c",
            "hf:a/b/",
        ];
        for text in bad {
            let refused = HubName::parse(text, RepoKind::Model).unwrap();
            assert!(matches!(refused, Err(BadName { .. })), "{text}");
        }
        assert!(HubName::parse("weights/a.safetensors", RepoKind::Model).is_none());
    }
}
