//! Files from the network, if the crate was built for it.

use std::path::Path;

use crate::{Download, Error};

/// Whether this build can fetch.
pub(crate) const CAN_FETCH: bool = cfg!(feature = "fetch");

/// Fetches a file from its addresses, in order, or from a mirror: a folder of files of the same names. What is at `path`
/// already is the beginning of it. `progress` is told the bytes that are there, and how many there will be.
#[cfg(feature = "fetch")]
pub(crate) fn fetch(
    file: &Download,
    mirror: Option<&str>,
    path: &Path,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<(), Error> {
    let urls: Vec<String> = match mirror {
        Some(mirror) => vec![format!("{}/{}", mirror.trim_end_matches('/'), file.name)],
        None => file.urls.iter().map(|url| (*url).to_owned()).collect(),
    };
    let mut failed = None;
    for url in urls {
        match fetch_from(&url, file, path, progress) {
            Ok(()) => return Ok(()),
            // A full disk is no better with another address.
            Err(error @ Error::Write { .. }) => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.expect("a file has an address"))
}

#[cfg(feature = "fetch")]
fn fetch_from(
    url: &str,
    file: &Download,
    path: &Path,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<(), Error> {
    use std::{
        fs::OpenOptions,
        io::{Read, Write},
        time::Duration,
    };
    let network = |problem: String| Error::Network { url: url.to_owned(), problem };
    let mut done = std::fs::metadata(path).map_or(0, |about| about.len());
    if file.bytes.is_some_and(|bytes| done >= bytes) {
        // Whole, or longer than it should be: then its sum says so, and it is begun anew.
        return Ok(());
    }
    let agent =
        ureq::AgentBuilder::new().timeout_connect(Duration::from_secs(30)).timeout_read(Duration::from_secs(60));
    let mut request = agent.build().get(url);
    if done > 0 {
        request = request.set("Range", &format!("bytes={done}-"));
    }
    let answer = match request.call() {
        // Nothing is left to send.
        Err(ureq::Error::Status(416, _)) if done > 0 => return Ok(()),
        Err(ureq::Error::Status(code, _)) => return Err(network(format!("the server answers {code}"))),
        Err(error) => return Err(network(error.to_string())),
        Ok(answer) => answer,
    };
    // A server that cannot begin in the middle sends all of it.
    let goes_on = answer.status() == 206;
    if !goes_on {
        done = 0;
    }
    let left: Option<u64> = answer.header("Content-Length").and_then(|length| length.parse().ok());
    let total = left.map(|left| done + left).or(file.bytes);
    let mut options = OpenOptions::new();
    let mut out =
        options.create(true).write(true).append(goes_on).truncate(!goes_on).open(path).map_err(Error::writing(path))?;
    let (mut body, mut buffer) = (answer.into_reader(), vec![0; 1 << 16]);
    loop {
        match body.read(&mut buffer).map_err(|error| network(format!("cut off after {done} bytes ({error})")))? {
            0 => break,
            count => out.write_all(&buffer[..count]).map_err(Error::writing(path))?,
        }
        done = out.metadata().map_or(done, |about| about.len());
        progress(done, total);
    }
    match total {
        Some(total) if done < total => {
            Err(network(format!("cut off after {done} of {total} bytes; run it again to go on")))
        }
        _ => Ok(()),
    }
}

/// This build cannot.
#[cfg(not(feature = "fetch"))]
pub(crate) fn fetch(_: &Download, _: Option<&str>, _: &Path, _: &mut dyn FnMut(u64, Option<u64>)) -> Result<(), Error> {
    unreachable!("asked for only where it can fetch")
}
