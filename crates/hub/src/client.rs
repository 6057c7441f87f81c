//! Requests to the hub, and its answers as errors in words.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{HeaderMap, Response, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder};

use ddprun_host::files;

use crate::catalog::KnownFile;
use crate::error::Error;
use crate::name::{HubName, Repo};
use crate::settings::Config;

/// Longest silence of a server, before an answer and between two reads of one.
const SILENCE: Duration = Duration::from_secs(20);
/// Attempts for one request, and the first pause between them, which doubles.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest wait that a server may ask for by `Retry-After`.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Characters that are escaped in one segment of a URL's path, and in a path.
const SEGMENT: &AsciiSet = &PATH.add(b'/');
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
/// Redirects within the hub, as after a repository was renamed.
const REDIRECTS: usize = 5;

pub(crate) struct Client {
    config: Config,
    /// Follows redirects: the files lie on other hosts, which are not told the token.
    following: Agent,
    /// Stops at the first redirect: the headers that describe a file are on it.
    stopping: Agent,
}

/// A commit, and the files that it has.
pub(crate) struct Listing {
    pub commit: String,
    pub files: Vec<String>,
}

/// A file as the hub announces it.
pub(crate) struct FileFacts {
    /// SHA-256 of the content in hexadecimal; for small files the hash that git gives it.
    pub etag: String,
    pub size: u64,
}

/// A failed request: one after which the same request may succeed, or one to give up on.
enum Failure {
    Passing(String),
    Final(Error),
}

impl Client {
    pub(crate) fn new(config: Config) -> Result<Self, Error> {
        let roots = config.certificates.as_ref().map(|path| certificates(path)).transpose()?;
        let agent = |redirects| {
            let mut tls = TlsConfig::builder();
            if let Some(roots) = &roots {
                tls = tls.root_certs(roots.clone());
            }
            Agent::config_builder()
                .tls_config(tls.build())
                .http_status_as_error(false)
                .max_redirects(redirects)
                .max_redirects_will_error(false)
                .redirect_auth_headers(RedirectAuthHeaders::SameHost)
                .timeout_connect(Some(SILENCE / 2))
                .timeout_per_read(Some(SILENCE))
                .user_agent(concat!("ddprun/", env!("CARGO_PKG_VERSION")))
                .build()
                .new_agent()
        };
        Ok(Self { following: agent(10), stopping: agent(0), config })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Asks which commit `name` means, and which files it has.
    pub(crate) fn listing(&self, name: &HubName) -> Result<Listing, Error> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let path = format!(
            "{}/revision/{}",
            name.repo.api_path(),
            utf8_percent_encode(name.revision(), SEGMENT)
        );
        let mut answer = patiently(&self.config.endpoint, &name.to_string(), || {
            let answer = self.send(self.following.get(self.url(&path)), &name.to_string())?;
            self.accepted(answer, &name.repo, name.revision(), None)
        })?;
        let not_ours = |why: String| Error::Answer {
            name: name.repo.clone(),
            endpoint: self.config.endpoint.clone(),
            why,
        };
        let text =
            answer.body_mut().read_to_string().map_err(|error| not_ours(error.to_string()))?;
        let info: Info =
            serde_json::from_str(&text).map_err(|error| not_ours(error.to_string()))?;
        if !crate::name::is_commit(&info.sha) {
            return Err(not_ours("its `sha` is no commit".to_owned()));
        }
        let files = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        Ok(Listing { commit: info.sha, files })
    }

    /// Asks for the hash and the size of a file.
    pub(crate) fn facts(&self, repo: &Repo, commit: &str, file: &str) -> Result<FileFacts, Error> {
        let what = format!("{repo}/{file}");
        let answer = patiently(&self.config.endpoint, &what, || {
            let mut url = self.file_url(repo, commit, file);
            for _ in 0..REDIRECTS {
                let request = self.stopping.head(url).header(header::ACCEPT_ENCODING, "identity");
                let answer = self.send(request, &what)?;
                match renamed(&answer) {
                    Some(path) => url = format!("{}{path}", self.config.endpoint),
                    None if answer.status().is_redirection() => return Ok(answer),
                    None => return self.accepted(answer, repo, commit, Some(file)),
                }
            }
            Err(Failure::Passing("it redirects in a circle".to_owned()))
        })?;
        let header = |name: &str| text(answer.headers(), name);
        let etag = header("x-linked-etag").or_else(|| header("etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        let size = header("x-linked-size")
            .or_else(|| header("content-length"))
            .and_then(|size| size.parse().ok());
        // The name of a blob: nothing that could lead out of its folder.
        let is_hash = |etag: &String| {
            !etag.is_empty()
                && etag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        match (etag.filter(is_hash), size) {
            (Some(etag), Some(size)) => Ok(FileFacts { etag, size }),
            _ => Err(Error::Answer {
                name: repo.clone(),
                endpoint: self.config.endpoint.clone(),
                why: format!("`{file}` has no ETag or no length"),
            }),
        }
    }

    /// Asks for the bytes of a file from `from` on. The answer begins with the first byte instead if
    /// the server cannot do that (its status is then 200).
    pub(crate) fn bytes(
        &self,
        repo: &Repo,
        commit: &str,
        file: &str,
        from: u64,
    ) -> Result<Response<Body>, Error> {
        let what = format!("{repo}/{file}");
        patiently(&self.config.endpoint, &what, || {
            let request = self.get_from(from, &self.file_url(repo, commit, file));
            let answer = self.send(request, &what)?;
            self.accepted(answer, repo, commit, Some(file))
        })
    }

    /// Asks the mirrors of a file for its bytes from `from` on, until one answers.
    pub(crate) fn bytes_of_mirrors(
        &self,
        file: &KnownFile,
        from: u64,
    ) -> Result<Response<Body>, Error> {
        let mut failure = None;
        let given = self.config.mirror.as_deref();
        for mirror in given.as_ref().map_or(file.mirrors, std::slice::from_ref) {
            let asked = patiently(mirror, file.name, || {
                let request = self.get_from(from, &format!("{mirror}/{}", file.name));
                let answer = request.call().map_err(|error| Failure::Passing(error.to_string()))?;
                match answer.status() {
                    status if status.is_success() => Ok(answer),
                    status if status.is_server_error() => {
                        Err(Failure::Passing(format!("it answers {status}")))
                    }
                    status => Err(Failure::Final(Error::Status {
                        endpoint: (*mirror).to_owned(),
                        status: status.as_u16(),
                        what: file.name.to_owned(),
                    })),
                }
            });
            match asked {
                Ok(answer) => return Ok(answer),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| unreachable("no mirror", file.name, String::new())))
    }

    /// A request for the bytes of `url` from `from` on.
    fn get_from(&self, from: u64, url: &str) -> RequestBuilder<WithoutBody> {
        let request = self.following.get(url).header(header::ACCEPT_ENCODING, "identity");
        if from == 0 {
            return request;
        }
        request.header(header::RANGE, format!("bytes={from}-"))
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.config.endpoint)
    }

    fn file_url(&self, repo: &Repo, commit: &str, file: &str) -> String {
        let path = format!(
            "{}/resolve/{}/{}",
            repo.url_path(),
            utf8_percent_encode(commit, SEGMENT),
            utf8_percent_encode(file, PATH)
        );
        self.url(&path)
    }

    fn send(
        &self,
        request: RequestBuilder<WithoutBody>,
        what: &str,
    ) -> Result<Response<Body>, Failure> {
        let request = match &self.config.token {
            Some(token) => {
                request.header(header::AUTHORIZATION, format!("Bearer {}", token.secret))
            }
            None => request,
        };
        match request.call() {
            Ok(answer) => Ok(answer),
            Err(
                error @ (ureq::Error::BadUri(_)
                | ureq::Error::Http(_)
                | ureq::Error::InvalidProxyUrl),
            ) => Err(Failure::Final(unreachable(&self.config.endpoint, what, error.to_string()))),
            Err(error) => Err(Failure::Passing(error.to_string())),
        }
    }

    /// An answer that holds what was asked for, or the error that its status and headers say.
    fn accepted(
        &self,
        answer: Response<Body>,
        repo: &Repo,
        revision: &str,
        file: Option<&str>,
    ) -> Result<Response<Body>, Failure> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let (name, endpoint) = (repo.clone(), self.config.endpoint.clone());
        let token = self.config.token.as_ref().map(|token| token.origin.clone());
        let code = text(answer.headers(), "x-error-code").unwrap_or_default();
        let message = text(answer.headers(), "x-error-message").unwrap_or_default();
        Err(Failure::Final(match (status.as_u16(), code.as_str()) {
            (401 | 403, "GatedRepo") => Error::Gated { name, endpoint, token },
            (404, "RevisionNotFound") => Error::NoRevision { name, revision: revision.to_owned() },
            (404, "EntryNotFound") => {
                Error::NoFile { name, file: file.unwrap_or_default().to_owned(), near: Vec::new() }
            }
            (401 | 403, _) if message.contains("Invalid") && token.is_some() => {
                Error::BadToken { endpoint, origin: token.unwrap_or_default() }
            }
            (401 | 403 | 404, _) => Error::NoRepo { name, endpoint, token, near: Vec::new() },
            (429, _) => {
                let wait = text(answer.headers(), "retry-after").and_then(|wait| wait.parse().ok());
                match wait.map(Duration::from_secs) {
                    Some(wait) if wait <= LONGEST_PAUSE => {
                        std::thread::sleep(wait);
                        return Err(Failure::Passing("it answers 429".to_owned()));
                    }
                    _ => Error::RateLimited { endpoint, token },
                }
            }
            (500.., _) => return Err(Failure::Passing(format!("it answers {status}"))),
            (status, _) => {
                let what = file.map_or_else(|| repo.to_string(), |file| format!("{repo}/{file}"));
                Error::Status { endpoint, status, what }
            }
        }))
    }
}

/// Sends a request again after failures that pass: connections that break, 429 and 5xx.
fn patiently<T>(
    endpoint: &str,
    what: &str,
    request: impl Fn() -> Result<T, Failure>,
) -> Result<T, Error> {
    let mut pause = FIRST_PAUSE;
    let mut attempt = 1;
    loop {
        match request() {
            Ok(answer) => return Ok(answer),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing(why)) if attempt == ATTEMPTS => {
                return Err(unreachable(endpoint, what, why));
            }
            Err(Failure::Passing(_)) => std::thread::sleep(pause),
        }
        (pause, attempt) = (pause * 2, attempt + 1);
    }
}

fn unreachable(endpoint: &str, name: &str, why: String) -> Error {
    Error::Unreachable { name: name.to_owned(), endpoint: endpoint.to_owned(), why }
}

/// The path that a repository has moved to on the same hub.
fn renamed(answer: &Response<Body>) -> Option<String> {
    let path = text(answer.headers(), "location").filter(|_| answer.status().is_redirection())?;
    let is_described = answer.headers().contains_key("x-linked-etag");
    (path.starts_with('/') && !path.starts_with("//") && !is_described).then_some(path)
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn certificates(path: &std::path::Path) -> Result<RootCerts, Error> {
    let unread = |why: String| Error::Certificates { path: path.display().to_string(), why };
    let pem = files::read(path).map_err(|error| unread(error.to_string()))?;
    let items: Result<Vec<PemItem<'static>>, _> = parse_pem(&pem).collect();
    let certificates: Vec<_> = items
        .map_err(|error| unread(error.to_string()))?
        .into_iter()
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(unread("it has none".to_owned()));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}
