//! Requests as they come: the first line and the two headers that matter.

use std::{
    io::Read,
    time::{Duration, Instant},
};

use super::answer::Answer;

/// Longest head of a request.
const HEAD: usize = 8192;

/// Longest time that a head may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A sound request.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// The path as it came, with its percent signs.
    pub path: String,
    /// What follows the question mark: names and values, decoded.
    pub query: Vec<(String, String)>,
    /// `HEAD`: the answer has no body.
    pub head_only: bool,
}

impl Request {
    /// A value of the query; empty where there is none.
    pub fn value(&self, name: &str) -> &str {
        self.query.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }
}

/// Reads a request.
///
/// # Errors
/// The answer to a request that is none, is too long, is no `GET`, or was meant for another host.
pub fn read(stream: &mut impl Read) -> Result<Request, Answer> {
    let mut head = Vec::new();
    let mut block = [0; 1024];
    let until = Instant::now() + PATIENCE;
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > HEAD {
            return Err(Answer::error(431, "the head of the request is too long"));
        }
        // A stream's own patience is for each of its reads.
        if Instant::now() > until {
            return Err(Answer::error(408, "the head of the request takes too long"));
        }
        match stream.read(&mut block) {
            Ok(0) | Err(_) => return Err(Answer::error(400, "the request ends before its head does")),
            Ok(count) => head.extend_from_slice(&block[..count]),
        }
    }
    parse(&String::from_utf8_lossy(&head))
}

/// Takes the head of a request apart.
fn parse(head: &str) -> Result<Request, Answer> {
    let mut lines = head.split("\r\n");
    let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = first[..] else { return Err(Answer::error(400, "not a request")) };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(Answer::error(400, "not a request of HTTP/1.1 for a path"));
    }
    if !matches!(method, "GET" | "HEAD") {
        return Err(Answer::error(405, "only GET and HEAD are answered: this page changes nothing"));
    }
    // A page of another site may have had its own name point here: its requests carry that name.
    let host = lines.take_while(|line| !line.is_empty()).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim().to_ascii_lowercase())
    });
    let name = host.as_deref().map(|host| host.split(':').next().unwrap_or_default());
    if !matches!(name, Some("127.0.0.1" | "localhost")) {
        return Err(Answer::error(403, "expected a request to 127.0.0.1 or localhost"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut pairs = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(name), Some(value)) = (decoded(name), decoded(value)) else {
            return Err(Answer::error(400, "the query is not text"));
        };
        pairs.push((name, value));
    }
    Ok(Request { path: path.to_owned(), query: pairs, head_only: method == "HEAD" })
}

/// Text with its percent signs resolved, once; nothing where that is not text.
pub fn decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let digits = std::str::from_utf8(bytes.get(at + 1..at + 3)?).ok()?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            plain.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            plain.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(plain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> u16 {
        parse(head).map_or_else(|answer| answer.status, |_| 200)
    }

    #[test]
    fn only_requests_to_this_machine_that_change_nothing_are_taken() {
        let get = |host: &str| status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!([get("127.0.0.1:8731"), get("localhost"), get("LOCALHOST:1")], [200; 3]);
        assert_eq!([get("example.org"), get("127.0.0.1.example.org"), get("")], [403; 3]);
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 403);
        assert_eq!(status("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 405);
        assert_eq!(status("GET http://example.org/ HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
        assert_eq!(status("GET /\r\n\r\n"), 400);
    }

    #[test]
    fn a_query_is_decoded_once() {
        let request = parse("HEAD /api/metrics?run=a%2Fb%2541&from=7&x HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        assert!(request.head_only);
        assert_eq!((request.value("run"), request.value("from"), request.value("y")), ("a/b%41", "7", ""));
        assert_eq!([decoded("%"), decoded("%4"), decoded("%+1"), decoded("%ff")], [None, None, None, None]);
    }
}
