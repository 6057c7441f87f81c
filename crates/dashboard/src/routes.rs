//! A request -> its answer. What is not a question about a known run has none.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::access::Access;
use crate::catalog::{Keys, RunCatalog};
use crate::details::{Details, log_end};
use crate::evaluation;
use crate::http::{Request, Response};
use crate::page;

/// Default number of points of a curve.
const POINTS: usize = 500;
/// Most points of a curve, and lines of a log.
const MAX_POINTS: usize = 4000;
const MAX_LINES: usize = 5000;

/// What Prometheus scrapes.
pub(crate) const METRICS: &str = "/metrics";

/// Bytes from which an answer is worth compressing.
const MIN_COMPRESSED: usize = 1 << 10;

const NOT_FOUND: &str = "404 Not Found";
const FORBIDDEN: &str = "403 Forbidden";

/// Refuses those who may not see the page, and lets in who has the token.
pub(crate) fn admission(access: &Access, request: &Request) -> Option<Response> {
    if request.method != "GET" {
        return Some(Response::refused("405 Method Not Allowed", "only GET"));
    }
    if !access.is_ours(request) {
        return Some(Response::refused(FORBIDDEN, "this name is not one of this machine's"));
    }
    if request.path == "/" && access.has_token(request) {
        // The token stays neither in the address bar nor in the browser's history.
        let moved = Response { status: "303 See Other", ..Response::of("text/plain", "") };
        return Some(moved.with("Location", "/").with("Set-Cookie", access.cookie()));
    }
    if request.path == METRICS {
        let words = "send the token of `ddprun serve` as the header `Authorization: Bearer TOKEN`";
        let is_in = access.has_bearer(request) || access.has_token(request);
        return (!is_in).then(|| Response::refused(FORBIDDEN, words));
    }
    let words = "this page needs the token of `ddprun serve`: open the address that it has printed in \
                 its terminal; after it was started with another token, open the new one";
    (!access.has_cookie(request)).then(|| Response::refused(FORBIDDEN, words))
}

/// The answer to what an admitted browser asks.
pub(crate) fn answer(catalog: &RunCatalog, request: &Request) -> Response {
    let asset = |kind, text: String| Response::of(kind, text);
    match request.path.as_str() {
        "/" => asset("text/html; charset=utf-8", page::served())
            .with("Content-Security-Policy", page::POLICY),
        "/page.js" => asset("text/javascript; charset=utf-8", page::script()),
        "/page.css" => asset("text/css; charset=utf-8", page::style()),
        "/api/overview" => Response::json(&catalog.overview(number(request, "since").unwrap_or(0))),
        "/api/timelines" => Response::json(&catalog.timelines(&keys(request))),
        "/api/series" => series(catalog, request),
        "/api/run" | "/api/log" | "/api/image" => of_run(catalog, request),
        _ => Response::refused(NOT_FOUND, "there is no such page"),
    }
}

/// The answer as the client takes it: compressed if it is long text.
pub(crate) fn compressed(request: &Request, answer: Response) -> Response {
    let is_text = answer.kind.starts_with("text/") || answer.kind == "application/json";
    if !is_text || answer.body.len() < MIN_COMPRESSED || !request.takes_gzip() {
        return answer;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    match encoder.write_all(&answer.body).and_then(|()| encoder.finish()) {
        Ok(body) => Response { body, ..answer }
            .with("Content-Encoding", "gzip")
            .with("Vary", "Accept-Encoding"),
        Err(_) => answer,
    }
}

/// A whole number of the query.
fn number<T: std::str::FromStr>(request: &Request, key: &str) -> Option<T> {
    request.query.get(key)?.parse().ok()
}

/// The runs of the query.
fn keys(request: &Request) -> Keys {
    request.query.get("runs").map_or(Keys::ALL, |text| Keys::parse(text))
}

fn series(catalog: &RunCatalog, request: &Request) -> Response {
    let metric = request.query.get("metric").map_or("", String::as_str);
    let points = number(request, "points").unwrap_or(POINTS).clamp(2, MAX_POINTS);
    let from = number(request, "from").unwrap_or(0);
    let to = number(request, "to").unwrap_or(u64::MAX);
    Response::json(&catalog.series(metric, points, (from, to), &keys(request)))
}

fn of_run(catalog: &RunCatalog, request: &Request) -> Response {
    let id = request.query.get("id").map_or("", String::as_str);
    let Some(folder) = catalog.folder(id) else {
        return Response::refused(NOT_FOUND, "there is no such run any more");
    };
    match request.path.as_str() {
        "/api/run" => match Details::read(folder, id) {
            Ok(details) => Response::json(&details),
            Err(error) => Response::refused("500 Internal Server Error", &error.to_string()),
        },
        "/api/log" => {
            let rank = number(request, "rank").unwrap_or(0);
            let lines = number(request, "lines").unwrap_or(MAX_LINES).min(MAX_LINES);
            Response::json(&log_end(folder, rank, lines))
        }
        _ => {
            let place = number(request, "evaluation").zip(number(request, "sample"));
            let found = place.and_then(|(at, sample)| evaluation::image(folder, at, sample));
            found.map_or_else(
                || Response::refused(NOT_FOUND, "there is no such picture"),
                |(kind, bytes)| Response::of(kind, bytes),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn long_text_is_compressed_for_those_who_take_it() {
        let gzip = Request { accept_encoding: "gzip, br".to_owned(), ..Request::default() };
        let plain = Request::default();
        let long = || Response::of("application/json", "abc ".repeat(5000));
        let packed = compressed(&gzip, long());
        assert!(packed.body.len() < 500, "{} bytes", packed.body.len());
        assert!(packed.headers.contains(&("Content-Encoding", "gzip".to_owned())));
        let mut text = String::new();
        GzDecoder::new(&packed.body[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text.as_bytes(), long().body);
        let short = Response::of("application/json", "{}");
        let picture = Response::of("image/png", vec![0; 5000]);
        for (request, answer) in [(&plain, long()), (&gzip, short), (&gzip, picture)] {
            let sent = compressed(request, answer.clone());
            assert!(sent.headers.is_empty() && sent.body == answer.body);
        }
    }
}
