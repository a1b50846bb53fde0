//! `regard view`: the bytes of a connection. Whatever they ask for, the answer is one of HTTP, and holds nothing from outside the
//! directory.

use rand::{Rng, seq::IndexedRandom};
use regard_cli::viewed;

use super::{Target, put, scratch};
use crate::mutate::Stream;

/// Stands in a file beside the directory and in a hidden one inside.
const SECRET: &str = "not for the browser";

/// What a path is made of.
const PARTS: [&str; 22] = [
    "/",
    "a",
    "..",
    ".",
    "%2e",
    "%2E%2e",
    "%2f",
    "%5c",
    "\\",
    "%00",
    "%",
    "%zz",
    "secret",
    ".hidden",
    "link",
    "files",
    "api/runs",
    "api/metrics",
    "maps",
    "metrics.jsonl",
    "config.toml",
    "%252e",
];

const WORDS: [&str; 16] = [
    "GET",
    "HEAD",
    "POST",
    "HTTP/1.1",
    "HTTP/1.0",
    "Host:",
    "localhost",
    "127.0.0.1",
    "\r\n",
    "\r\n\r\n",
    "?run=",
    "&from=",
    "%2e%2e",
    "..",
    "/files/",
    "\0",
];

pub fn target() -> Target {
    let place = scratch();
    let runs = place.path().join("runs");
    std::fs::create_dir_all(runs.join("a")).expect("a directory");
    for name in ["secret", "runs/.hidden"] {
        put(&place, name, SECRET.as_bytes());
    }
    put(&place, "runs/a/metrics.jsonl", b"{\"kind\": \"step\"}\n");
    put(&place, "runs/a/config.toml", b"seed = 1\n");
    std::os::unix::fs::symlink(place.path().join("secret"), runs.join("link")).expect("a link");
    let targets = ["/", "/api/runs", "/api/metrics?run=a&from=0", "/files/a/config.toml", "/view.js"];
    let samples = targets.map(request).to_vec();
    let call = move |input: &[u8]| {
        let _ = &place;
        let answer = viewed(&runs, input).expect("the directory is there");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with("HTTP/1.1 ") && text.contains("\r\n\r\n"), "not an answer: {text}");
        assert!(!text.contains(SECRET), "a file from outside: {text}");
        text.starts_with("HTTP/1.1 200 ")
    };
    Target::new("view", samples, &WORDS, call).making(make)
}

fn request(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// A sound request for an unsound path.
fn make(stream: &mut Stream) -> Vec<u8> {
    let mut path =
        String::from(*["/files/", "/api/metrics?from=0&run=", "/maps?run=", "/"].choose(stream).expect("some"));
    for _ in 0..stream.random_range(0..9) {
        path += PARTS.choose(stream).expect("some");
    }
    request(&path)
}
