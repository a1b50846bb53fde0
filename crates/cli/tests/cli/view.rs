//! `regard view`: what it serves, and what it does not.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{argument, assert_self_contained, regard, run};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// A server that ends with the test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(directory: &Path) -> Self {
        let mut command = regard(["view".into(), argument(directory), "--port".into(), "0".into()]);
        let mut child = command.env("REGARD_CACHE", "none").stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.split_whitespace().next().unwrap_or_default();
        let port = address.strip_prefix("http://127.0.0.1:").and_then(|rest| rest.trim_end_matches('/').parse().ok());
        Self { child, port: port.unwrap_or_else(|| panic!("no address in {line:?}")) }
    }

    /// The status, the head and the body of the answer to these bytes.
    fn send(&self, bytes: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a listener");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The server may have answered and gone before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, head, answer[end + 4..].to_vec())
    }

    fn get(&self, target: &str) -> (u16, String, String) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", self.port);
        let (status, head, body) = self.send(request.as_bytes());
        (status, head, String::from_utf8_lossy(&body).into_owned())
    }

    #[track_caller]
    fn json(&self, target: &str) -> Value {
        let (status, head, body) = self.get(target);
        assert!(status == 200 && head.contains("application/json"), "{target}: {head}");
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A trained run in `runs/a run`, a comparison's report in `runs/both`, and a secret beside `runs`.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let out = argument(folder.path().join("runs/a run"));
    let train = ["train", "--preset", "smoke", "--mechanism", "mgk", "--cache", "none", "--quiet", "--out", &out];
    run(train).success();
    fs::create_dir(folder.path().join("runs/both")).unwrap();
    fs::write(folder.path().join("runs/both/report.html"), "<script>alert(1)</script>").unwrap();
    fs::write(folder.path().join("runs/.hidden"), "secret").unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    folder
}

#[test]
fn runs_are_listed_drawn_and_looked_into() {
    let folder = folder();
    let server = Server::start(&folder.path().join("runs"));
    let (status, head, page) = server.get("/");
    assert!(status == 200 && head.contains("script-src 'self'") && page.contains("/view.js"), "{head}");
    assert!(!page.contains("http"), "an address elsewhere: {page}");
    assert_eq!([server.get("/view.js").0, server.get("/view.css").0], [200, 200]);

    let list = server.json("/api/runs");
    assert_eq!(list["reports"], serde_json::json!(["both/report.html"]));
    let [run] = &list["runs"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!((&run["name"], &run["model"], &run["task"]), (&"a run".into(), &"mgk".into(), &"listops".into()));
    assert_eq!((&run["state"], &run["step"], &run["steps"]), (&"finished".into(), &20.into(), &20.into()));
    assert!(run["test"]["accuracy"].is_f64() && run["valid"]["loss"].is_f64(), "{run}");

    let piece = server.json("/api/metrics?run=a%20run&from=0");
    let steps = piece["steps"].as_array().unwrap();
    assert_eq!((steps.len(), &steps[0][0]), (20, &1.into()));
    assert_eq!(piece["evaluations"].as_array().unwrap().len(), 3);
    let rest = server.json(&format!("/api/metrics?run=a%20run&from={}", piece["next"]));
    assert!(rest["steps"].as_array().unwrap().is_empty() && rest["next"] == rest["size"], "{rest}");

    // A report, which runs no script; and pictures of attention from the model itself.
    let (status, head, page) = server.get("/files/a%20run/report.html");
    assert!(status == 200 && head.contains("text/html") && head.contains("sandbox"), "{head}");
    assert_self_contained(&page);
    let (status, _, page) = server.get("/maps?run=a%20run");
    assert!(status == 200 && page.contains("Attention, layer 1"), "{status}: {page}");
    let (status, _, sentence) = server.get("/maps?run=both");
    assert!(status == 409 && sentence.contains("config.toml"), "{status}: {sentence}");

    // A run is running while a process holds its directory; the file that a killed one leaves says nothing.
    let own = folder.path().join("runs/a run");
    let lock = fs::File::create(own.join(".lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(server.json("/api/runs")["runs"][0]["state"], "running");
    drop(lock);
    assert_eq!(server.json("/api/runs")["runs"][0]["state"], "finished");
    let metrics = own.join("metrics.jsonl");
    let half: String = fs::read_to_string(&metrics).unwrap().lines().take(7).map(|line| format!("{line}\n")).collect();
    fs::write(&metrics, half).unwrap();
    assert_eq!(server.json("/api/runs")["runs"][0]["state"], "stopped");
    assert_eq!(server.json("/api/metrics?run=a%20run&from=100000")["again"], true);
}

#[test]
fn a_run_itself_can_be_viewed() {
    let folder = folder();
    let server = Server::start(&folder.path().join("runs/a run"));
    assert_eq!(server.json("/api/runs")["runs"][0]["name"], "");
    assert_eq!(server.json("/api/metrics?run=&from=0")["steps"].as_array().unwrap().len(), 20);
    assert_eq!(server.get("/files/report.html").0, 200);
    assert_eq!(server.get("/files/../both/report.html").0, 404);
}

#[test]
fn nothing_outside_can_be_read() {
    let folder = folder();
    let runs = folder.path().join("runs");
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink(folder.path().join("secret"), runs.join("link")).unwrap();
        symlink(folder.path(), runs.join("up")).unwrap();
        fs::create_dir(runs.join("sly")).unwrap();
        symlink(folder.path().join("secret"), runs.join("sly/metrics.jsonl")).unwrap();
    }
    let server = Server::start(&runs);
    let absolute = argument(folder.path().join("secret"));
    let encoded = absolute.replace('/', "%2F");
    let targets = [
        "/files/../secret",
        "/files/%2e%2e/secret",
        "/files/..%2fsecret",
        "/files/%2E%2E%2Fsecret",
        "/files/a%20run/../../secret",
        "/files/a%20run/%2e%2e/%2e%2e/secret",
        "/files/%252e%252e/secret",
        "/files/..%5csecret",
        "/files//../secret",
        "/files/secret%00",
        "/files/.hidden",
        "/files/link",
        "/files/up/secret",
        "/files/sly/metrics.jsonl",
        "/files/",
        "/files/both",
        "/../secret",
        "//secret",
        "/api/metrics?run=..&from=0",
        "/api/metrics?run=%2e%2e&from=0",
        "/api/metrics?run=up&from=0",
        "/api/metrics?run=sly&from=0",
        "/maps?run=..",
        "/maps?run=up",
    ];
    let absolutes = [format!("/files/{absolute}"), format!("/files/{encoded}"), format!("/maps?run={encoded}")];
    for target in targets.into_iter().chain(absolutes.iter().map(String::as_str)) {
        let (status, _, body) = server.get(target);
        assert!(matches!(status, 404 | 409) && !body.contains("secret"), "{target}: {status} {body}");
    }
    assert_eq!(server.get("/files/a%20run/config.toml").0, 200, "what is inside can be");
}

#[test]
fn requests_that_are_none_are_refused_and_the_next_is_answered() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    let host = format!("Host: 127.0.0.1:{}", server.port);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let (status, head, _) = server.send(format!("{method} / HTTP/1.1\r\n{host}\r\n\r\n").as_bytes());
        assert!(status == 405 && head.contains("Allow: GET, HEAD"), "{method}: {head}");
    }
    let (status, head, body) = server.send(format!("HEAD / HTTP/1.1\r\n{host}\r\n\r\n").as_bytes());
    assert!(status == 200 && !head.contains("Content-Length: 0") && body.is_empty(), "{head}");
    assert_eq!(server.send(b"GET / HTTP/1.1\r\nHost: runs.example\r\n\r\n").0, 403);
    assert_eq!(server.send(b"\x16\x03\x01 no request\r\n\r\n").0, 400);
    let long = format!("GET /{} HTTP/1.1\r\n{host}\r\n\r\n", "a".repeat(20_000));
    assert_eq!(server.send(long.as_bytes()).0, 431);
    assert_eq!(server.json("/api/runs")["runs"], serde_json::json!([]));
}

#[test]
#[cfg(target_os = "linux")]
fn only_this_machine_is_listened_to() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    // Another address of the same machine, to which a listener on all addresses would answer.
    assert!(TcpStream::connect(("127.0.0.2", server.port)).is_err());
    assert!(TcpStream::connect(("127.0.0.1", server.port)).is_ok());
}

#[test]
fn what_cannot_be_served_is_told() {
    let folder = TempDir::new().unwrap();
    let here = argument(folder.path());
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    run(["view", &here, "--port", &port]).failure(USAGE, &[&port, "in use", "--port"]);
    run(["view", &here, "--port", "70000"]).failure(USAGE, &["--port is 70000, expected 0 to 65535"]);
    let nowhere = argument(folder.path().join("nowhere"));
    run(["view", &nowhere]).failure(DATA, &["nowhere", "regard view"]);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    run(["view", &argument(file)]).failure(DATA, &["is a file, expected a directory"]);
}

#[test]
#[cfg(unix)]
fn an_interrupt_is_the_ordinary_end() {
    let folder = TempDir::new().unwrap();
    let mut server = Server::start(folder.path());
    let kill = format!("kill -INT {}", server.child.id());
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}
