//! Model folders by their names on the Hugging Face hub, kept in its cache.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use hf_hub::{Cache, CacheRepo, api::sync::ApiBuilder};
use sha2::{Digest, Sha256};

use crate::{
    PretrainedError,
    folder::CONFIG,
    save::COMPANIONS,
    shards::{INDEX, WHOLE, places, read_json},
};

/// The folder of a model of the hub, in the cache of `HF_HOME`; what is not there is fetched from `HF_ENDPOINT` and checked.
///
/// # Errors
/// A model that the hub does not have or does not give, files that are not what the hub says they are.
pub(crate) fn fetch(name: &str) -> Result<PathBuf, PretrainedError> {
    let cache = Cache::from_env();
    fetch_with(ApiBuilder::from_env(), &cache, name)
}

fn fetch_with(builder: ApiBuilder, cache: &Cache, name: &str) -> Result<PathBuf, PretrainedError> {
    if let Some(folder) = cached(&cache.model(name.into())) {
        return Ok(folder);
    }
    let failed = |error: &dyn std::fmt::Display| {
        let problem =
            format!("not fetched from the hub: {error}; check the name, the network and HF_TOKEN, or give a folder");
        PretrainedError::content(Path::new(name), problem)
    };
    let api = builder.with_progress(false).with_retries(3).build().map_err(|error| failed(&error))?;
    let hub = api.model(name.into());
    let there: Vec<String> =
        hub.info().map_err(|error| failed(&error))?.siblings.into_iter().map(|file| file.rfilename).collect();
    let get = |file: &str| {
        let path = hub.get(file).map_err(|error| failed(&error))?;
        check(&path)?;
        Ok::<_, PretrainedError>(path)
    };
    // Weights come last: where they are all there, so is the rest.
    for file in COMPANIONS.iter().filter(|file| there.iter().any(|name| name == *file)) {
        get(file)?;
    }
    let config = get(CONFIG)?;
    let folder = config.parent().expect("a file is in a folder").to_path_buf();
    if there.iter().any(|name| name == INDEX) {
        for shard in shards(&get(INDEX)?)? {
            get(&shard)?;
        }
    } else {
        get(WHOLE)?;
    }
    Ok(folder)
}

/// The folder, if all of it is in the cache.
fn cached(repo: &CacheRepo) -> Option<PathBuf> {
    let folder = repo.get(CONFIG)?.parent()?.to_path_buf();
    let complete = match repo.get(INDEX) {
        Some(index) => shards(&index).ok()?.iter().all(|shard| folder.join(shard).is_file()),
        None => folder.join(WHOLE).is_file(),
    };
    complete.then_some(folder)
}

/// Names of the files that an index lists.
fn shards(index: &Path) -> Result<BTreeSet<String>, PretrainedError> {
    Ok(places(index, &read_json(index)?)?.into_values().collect())
}

/// Large files are kept under the SHA-256 of their content: holds them to it.
fn check(path: &Path) -> Result<(), PretrainedError> {
    let blob = path.canonicalize().map_err(PretrainedError::reading(path))?;
    let name = blob.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if name.len() != 64 || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    let mut hash = Sha256::new();
    io::copy(&mut File::open(&blob).map_err(PretrainedError::reading(&blob))?, &mut hash)
        .map_err(PretrainedError::reading(&blob))?;
    let seen: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if seen == name {
        return Ok(());
    }
    // The next call would take it for complete.
    for file in [path, &blob] {
        std::fs::remove_file(file).map_err(PretrainedError::writing(file))?;
    }
    let problem = format!("its content has SHA-256 {seen}, expected {name}; it was removed, fetch it again");
    Err(PretrainedError::content(path, problem))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::{TcpListener, TcpStream},
        path::Path,
        thread,
    };

    use super::*;

    /// A hub with one model, whose files are those of `folder`, on a port of its own; `hash` says what a file's content is
    /// claimed to be.
    fn serve(folder: PathBuf, hash: fn(&[u8]) -> String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap(), &folder, hash)));
        address
    }

    fn answer(mut stream: TcpStream, folder: &Path, hash: fn(&[u8]) -> String) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        let request = lines.next().unwrap();
        let first_byte = lines.take_while(|line| !line.is_empty()).any(|line| line.ends_with("bytes=0-0"));
        let path = request.split(' ').nth(1).unwrap();
        let names =
            || std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let (status, headers, body) = if path.starts_with("/api/models/some/model/") {
            let files: Vec<_> = names().map(|name| serde_json::json!({ "rfilename": name })).collect();
            let info = serde_json::json!({ "siblings": files, "sha": "abc" });
            ("200 OK", String::new(), info.to_string().into_bytes())
        } else if let Some(name) = path.strip_prefix("/some/model/resolve/main/") {
            let content = std::fs::read(folder.join(name)).unwrap();
            let range = format!("Content-Range: bytes 0-0/{}\r\n", content.len());
            let headers = format!("etag: \"{}\"\r\nx-repo-commit: abc\r\n{range}", hash(&content));
            ("206 Partial Content", headers, if first_byte { content[..1].to_vec() } else { content })
        } else {
            ("404 Not Found", String::new(), Vec::new())
        };
        let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
    }

    fn sha256(content: &[u8]) -> String {
        Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn fetched(cache: &Path, endpoint: &str, name: &str) -> Result<PathBuf, PretrainedError> {
        let cache = Cache::new(cache.to_path_buf());
        let builder = ApiBuilder::from_cache(cache.clone()).with_endpoint(endpoint.into());
        fetch_with(builder, &cache, name)
    }

    fn golden() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bert-masked")
    }

    #[test]
    fn a_model_is_fetched_once_and_checked() {
        let cache = tempfile::tempdir().unwrap();
        let endpoint = serve(golden(), sha256);
        let folder = fetched(cache.path(), &endpoint, "some/model").unwrap();
        assert!(crate::Folder::open(&folder).unwrap().tokenizer().is_ok());
        assert_eq!(std::fs::read(folder.join(WHOLE)).unwrap(), std::fs::read(golden().join(WHOLE)).unwrap());
        // What is in the cache needs no network.
        assert_eq!(fetched(cache.path(), "http://127.0.0.1:1", "some/model").unwrap(), folder);
        let error = fetched(cache.path(), &endpoint, "some/other").unwrap_err().to_string();
        assert!(error.starts_with("some/other: not fetched from the hub"), "{error}");
    }

    #[test]
    fn content_that_is_another_is_refused_and_removed() {
        let cache = tempfile::tempdir().unwrap();
        let endpoint = serve(golden(), |_| "0".repeat(64));
        for _ in 0..2 {
            let error = fetched(cache.path(), &endpoint, "some/model").unwrap_err().to_string();
            assert!(error.contains("expected 000000") && error.contains("it was removed"), "{error}");
        }
    }
}
