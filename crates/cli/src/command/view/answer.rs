//! What is answered to which path.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use regard_lab::{
    inspect::{Inspection, Part, Plan, Recording, survey},
    record::Shown,
};
use regard_tasks::{
    run::{Run, Which},
    train::{METRICS, Model, Split},
};
use serde_json::Value;

use super::{
    Site,
    inside::inside,
    metrics,
    request::{Request, decoded},
    runs,
};
use crate::{command, error::Outcome};

/// The page itself may run its own script and ask this server, and nothing else.
const OWN: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Files of runs may style themselves and hold pictures; a script in one does not run.
const FILES: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; sandbox; frame-ancestors 'none'";

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    kind: &'static str,
    policy: &'static str,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Text(Vec<u8>),
    File(File, u64),
}

impl Answer {
    fn text(kind: &'static str, policy: &'static str, text: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, kind, policy, body: Body::Text(text.into()) }
    }

    fn json(value: &Value) -> Self {
        Self::text("application/json", OWN, value.to_string())
    }

    /// A refusal in a sentence.
    pub fn error(status: u16, sentence: &str) -> Self {
        Self { status, ..Self::text("text/plain; charset=utf-8", OWN, format!("{sentence}\n")) }
    }

    /// Sends the answer and ends the connection. Who does not want it any more need not be told.
    pub fn send(self, stream: &mut impl Write, head_only: bool) {
        let _ = self.write(stream, head_only).and_then(|()| stream.flush());
    }

    fn write(self, stream: &mut impl Write, head_only: bool) -> io::Result<()> {
        let length = match &self.body {
            Body::Text(text) => text.len() as u64,
            Body::File(_, length) => *length,
        };
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            409 => "Conflict",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let allow = if self.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        write!(
            stream,
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {length}\r\n{allow}\
             Content-Security-Policy: {}\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.status, self.kind, self.policy
        )?;
        match self.body {
            _ if head_only => Ok(()),
            Body::Text(text) => stream.write_all(&text),
            // At most what was announced: the file may be growing.
            Body::File(file, length) => io::copy(&mut file.take(length), stream).map(drop),
        }
    }
}

/// The answer to a request.
pub fn answer(request: &Request, site: &Site) -> Answer {
    match request.path.as_str() {
        "/" => Answer::text("text/html; charset=utf-8", OWN, include_str!("page.html")),
        "/view.js" => Answer::text("text/javascript; charset=utf-8", OWN, include_str!("view.js")),
        "/view.css" => Answer::text("text/css; charset=utf-8", OWN, include_str!("view.css")),
        "/api/runs" => Answer::json(&runs::list(&site.root)),
        "/api/metrics" => piece(request, site),
        "/maps" => maps(request, site),
        path => match path.strip_prefix("/files/") {
            Some(name) => file(name, site),
            None => nothing(),
        },
    }
}

fn nothing() -> Answer {
    Answer::error(404, "there is nothing of this name in the directory")
}

/// A file as it is.
fn file(name: &str, site: &Site) -> Answer {
    let found = decoded(name).filter(|name| !name.is_empty()).and_then(|name| inside(&site.root, &name));
    let opened = found.filter(|path| path.is_file()).and_then(|path| Some((kind(&path), File::open(path).ok()?)));
    let Some((kind, file)) = opened else { return nothing() };
    let Ok(length) = file.metadata().map(|data| data.len()) else { return nothing() };
    Answer { status: 200, kind, policy: FILES, body: Body::File(file, length) }
}

/// The kind of a file by the end of its name.
fn kind(path: &Path) -> &'static str {
    match path.extension().and_then(|end| end.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("json") => "application/json",
        Some("csv" | "jsonl" | "md" | "toml" | "tsv" | "txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// New records of a run.
fn piece(request: &Request, site: &Site) -> Answer {
    let Ok(from) = request.value("from").parse() else { return Answer::error(400, "from is a number of bytes") };
    let Some(run) = inside(&site.root, request.value("run")) else { return nothing() };
    // The name is fixed, but may be a link.
    let ours = |file: &PathBuf| file.starts_with(&site.root) && file.is_file();
    let Some(file) = run.join(METRICS).canonicalize().ok().filter(ours) else { return nothing() };
    metrics::since(&file, from).map_or_else(|_| nothing(), |piece| Answer::json(&piece))
}

/// The attention of a trained model on one sequence, as a page. One at a time: a model takes memory.
fn maps(request: &Request, site: &Site) -> Answer {
    let Some(run) = inside(&site.root, request.value("run")) else { return nothing() };
    let Ok(_busy) = site.busy.lock() else {
        return Answer::error(503, "looking into a model has failed before; start anew");
    };
    match drawn(&run, site) {
        Ok(page) => Answer::text("text/html; charset=utf-8", FILES, page),
        Err(failure) => Answer::error(409, &failure.message),
    }
}

/// What `regard inspect --what maps` draws.
fn drawn(run: &Path, site: &Site) -> Outcome<String> {
    let Run { config, data, model, .. } = command::trained(run, Which::Best, site.cache.as_deref(), &site.common)?;
    let parts = vec![Part::Maps];
    let plan = Plan { parts: parts.clone(), layers: Vec::new(), heads: Vec::new(), matrices: 0 };
    let recordings = Recording::all(&model, &data, Split::Test, 1)?;
    let survey = survey(recordings, &plan, matches!(model, Model::Translator(_)), &|| ())?;
    let inspection = Inspection {
        survey,
        parts,
        projections: Vec::new(),
        source: format!("{} on {}, {} split", config.label(), config.task.name, Split::Test.name()),
        command: command::command_line(),
        environment: command::environment(),
    };
    Ok(inspection.report().to_html())
}
