//! Access to the page: only for a browser that has the token, and that requests this machine by an
//! address or a name of ours.

use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::files;
use crate::http::{self, Request};
use crate::transport::Key;
use crate::{launch, transport};

/// The token of a server, and the host names that it accepts.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    token: String,
    /// The name of its cookie: cookies are shared by all ports of a machine.
    cookie: String,
    /// Names beside addresses.
    names: Vec<String>,
}

/// The token of this user's servers of `folder`, the same from start to start, so that open pages go
/// on. It is derived from the secret in the user's cache, which no other user can read; `None` without
/// a cache.
pub fn kept_token(folder: &Path) -> Option<Key> {
    let mut material = files::user_secret()?;
    material.extend(folder.canonicalize().ok()?.as_os_str().as_bytes());
    Some(Key::new(blake3::derive_key("ddprun serve: token of a folder", &material)))
}

impl Access {
    /// The server on `port`, which listens on `host`, opened by `token` or a new one.
    pub(crate) fn new(host: &str, port: u16, token: Option<&Key>) -> io::Result<Self> {
        let token = match token {
            Some(key) => transport::token_text(key),
            None => transport::new_token()?,
        };
        let token = token.trim().to_owned();
        let own = launch::host();
        let names = vec!["localhost".to_owned(), host.to_owned(), own];
        Ok(Self { token, cookie: format!("ddprun-{port}"), names })
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// True if the request names this machine. A page of another site whose name points to this
    /// machine (DNS rebinding) requests that name; an address cannot be made to point elsewhere.
    pub(crate) fn is_ours(&self, request: &Request) -> bool {
        let host = request.host.trim();
        let is_port = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        let name = match host.rsplit_once(':') {
            Some((name, port)) if is_port(port) => name,
            _ => host,
        };
        let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
        bare.parse::<IpAddr>().is_ok()
            || self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// True if the address contains the token.
    pub(crate) fn has_token(&self, request: &Request) -> bool {
        request.query.get("token").is_some_and(|given| self.is_token(given))
    }

    /// True if the browser has the cookie with the token.
    pub(crate) fn has_cookie(&self, request: &Request) -> bool {
        let pairs = request.cookie.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(name, _)| *name == self.cookie).any(|(_, value)| self.is_token(value))
    }

    /// True if the header `Authorization` contains the token: `Bearer TOKEN`.
    pub(crate) fn has_bearer(&self, request: &Request) -> bool {
        request.has_bearer(&self.token)
    }

    /// `Set-Cookie` value that makes the browser send the token from now on, to this server alone
    /// and out of the reach of scripts.
    pub(crate) fn cookie(&self) -> String {
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie, self.token)
    }

    fn is_token(&self, given: &str) -> bool {
        http::is_token(given, &self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_own_names_are_answered() {
        let access = Access::new("training.local", 8000, None).unwrap();
        let is_ours =
            |host: &str| access.is_ours(&Request { host: host.to_owned(), ..Request::default() });
        for host in ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "10.0.0.7", "TRAINING.local"]
        {
            assert!(is_ours(host), "{host}");
        }
        for host in ["evil.example:8000", "localhost.evil.example", "", "127.0.0.1.evil.example"] {
            assert!(!is_ours(host), "{host}");
        }
    }

    #[test]
    fn the_token_opens_in_the_address_or_as_the_cookie_of_this_port() {
        let key = Key::new([7; 32]);
        let access = Access::new("127.0.0.1", 8000, Some(&key)).unwrap();
        assert_eq!(access.token(), "07".repeat(32));
        let access = Access::new("127.0.0.1", 8000, None).unwrap();
        assert_eq!(access.token().len(), 64);
        let with = |cookie: &str| Request { cookie: cookie.to_owned(), ..Request::default() };
        let cookie = access.cookie().split(';').next().unwrap().to_owned();
        assert!(access.has_cookie(&with(&format!("a=b; {cookie}"))));
        assert!(!access.has_cookie(&with(&cookie.replace("8000", "8001"))));
        assert!(!access.has_cookie(&with(&cookie[..cookie.len() - 1])));
        let query = [("token".to_owned(), access.token().to_owned())].into();
        assert!(access.has_token(&Request { query, ..Request::default() }));
        assert!(!access.has_token(&Request::default()));
        let bearer = |header: String| Request { authorization: header, ..Request::default() };
        let token = access.token();
        for header in [format!("Bearer {token}"), format!("bearer  {token} ")] {
            assert!(access.has_bearer(&bearer(header)));
        }
        for header in [String::new(), token.to_owned(), format!("Basic {token}"), "Bearer ".into()]
        {
            assert!(!access.has_bearer(&bearer(header)));
        }
    }
}
