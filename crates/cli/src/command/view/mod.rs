//! `regard view`: a page over run directories for the browser of this machine.

mod answer;
mod inside;
mod metrics;
mod request;
mod runs;

use std::{
    io::{ErrorKind, Read},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use regard_tasks::train::CONFIG;
use serde_json::json;

use crate::{
    args::Common,
    error::{Failure, Outcome},
    output, signal,
    values::within,
};
use answer::Answer;

#[derive(Debug, Args)]
pub struct View {
    /// Directory with runs anywhere below it, or one run.
    #[arg(value_name = "DIR", default_value = "runs")]
    pub directory: PathBuf,
    /// Port of this machine; 0 for any that is free.
    #[arg(long, value_parser = within(0, 65_535), value_name = "N", default_value_t = 8731)]
    pub port: usize,
    /// Cache directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// Most connections at a time.
const CONNECTIONS: usize = 32;

/// How often an interrupt is looked for, which is also the longest wait of a new connection.
const BEAT: Duration = Duration::from_millis(15);

/// What all connections share.
struct Site {
    /// The directory, without links: nothing outside it is read.
    root: PathBuf,
    cache: Option<PathBuf>,
    common: Common,
    /// Held while a model is loaded and looked into: one at a time.
    busy: Mutex<()>,
}

/// Serves the page until an interrupt.
///
/// # Errors
/// A directory that is not there, a port that is taken or not allowed.
pub fn run(args: &View, common: &Common) -> Outcome {
    let root = directory(&args.directory)?;
    let listener = listen(args.port as u16)?;
    let address = listener.local_addr().map_err(Failure::data)?;
    let stop = signal::stop_flag();
    let site = Arc::new(Site {
        root,
        cache: args.cache.clone(),
        common: Common { quiet: true, ..common.clone() },
        busy: Mutex::new(()),
    });
    if common.json {
        output::json(&json!({ "address": format!("http://{address}/"), "port": address.port() }))?;
    } else {
        output::line(format_args!("http://{address}/ shows {}; end it with Ctrl-C", args.directory.display()))?;
    }
    let open = Arc::new(AtomicUsize::new(0));
    while !stop.load(Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => connect(stream, &site, &open),
            // Nobody is there, or who was has gone.
            Err(_) => thread::sleep(BEAT),
        }
    }
    Ok(())
}

/// The directory, without links.
fn directory(path: &Path) -> Outcome<PathBuf> {
    let shown = path.display();
    let root = path.canonicalize().map_err(|error| {
        Failure::data(format!("cannot read {shown}: {error}; name a directory with runs, as in 'regard view runs'"))
    })?;
    if root.is_dir() {
        return Ok(root);
    }
    Err(Failure::data(format!("{shown} is a file, expected a directory with runs (one with {CONFIG} in it)")))
}

/// Listens on this machine alone: other machines cannot connect.
fn listen(port: u16) -> Outcome<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Failure::usage(format!(
            "port {port} of 127.0.0.1 is in use by another program, expected a free one; give another by --port, or --port 0 for any"
        )),
        _ => Failure::usage(format!("cannot listen on port {port} of 127.0.0.1: {error}; give another by --port")),
    })
}

/// Answers a connection in a thread of its own.
fn connect(mut stream: TcpStream, site: &Arc<Site>, open: &Arc<AtomicUsize>) {
    if open.load(Relaxed) >= CONNECTIONS {
        Answer::error(503, "too many connections at a time; try again").send(&mut stream, false);
        return;
    }
    open.fetch_add(1, Relaxed);
    let (site, place) = (site.clone(), Place(open.clone()));
    thread::spawn(move || {
        // Given back whatever happens.
        let _place = place;
        serve(&mut stream, &site);
    });
}

/// One of the connections at a time.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Reads one request and answers it.
fn serve(stream: &mut TcpStream, site: &Site) {
    let patience = Some(request::PATIENCE);
    // Accepted connections wait where the system has them take after the listener.
    let set = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(patience))
        .and_then(|()| stream.set_write_timeout(patience));
    if set.is_err() {
        return;
    }
    let (answer, head_only) = heard(stream, site);
    answer.send(stream, head_only);
    part(stream);
}

/// Ends a connection in order. To close it with bytes unread would reset it, and the answer could be lost on the way.
fn part(stream: &mut TcpStream) {
    let until = Instant::now() + Duration::from_secs(1);
    if stream.shutdown(Shutdown::Write).and_then(|()| stream.set_read_timeout(Some(Duration::from_millis(200)))).is_ok()
    {
        let mut rest = [0; 4096];
        while Instant::now() < until && matches!(stream.read(&mut rest), Ok(1..)) {}
    }
}

/// The answer to one request, and whether it goes without a body.
fn heard(stream: &mut impl Read, site: &Site) -> (Answer, bool) {
    match request::read(stream) {
        Ok(request) => (answer::answer(&request, site), request.head_only),
        Err(refusal) => (refusal, false),
    }
}

/// What the server of a directory sends back for these bytes.
///
/// # Errors
/// A directory that is not there.
pub fn reply(directory: &Path, bytes: &[u8]) -> Outcome<Vec<u8>> {
    let common = Common { threads: None, device: "cpu".into(), json: false, quiet: true };
    let site = Site { root: self::directory(directory)?, cache: None, common, busy: Mutex::new(()) };
    let (answer, head_only) = heard(&mut &bytes[..], &site);
    let mut sent = Vec::new();
    answer.send(&mut sent, head_only);
    Ok(sent)
}
