use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
};

use tempfile::TempDir;

use super::*;

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("a file with text")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn new_and_old_files_get_the_content_and_nothing_is_left_beside_them() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("deep/er/file");
    for content in ["one", "", "a longer one"] {
        write_whole(&path, content.as_bytes()).unwrap();
        assert_eq!(text(&path), content);
        replace(&path, content.as_bytes()).unwrap();
        assert_eq!(text(&path), content);
    }
    assert_eq!(names(path.parent().unwrap()), ["file"]);
    // A name of maximum length.
    let long = folder.path().join("n".repeat(255));
    write_whole(&long, b"x").unwrap();
    assert_eq!(text(long), "x");
}

#[test]
fn what_is_no_file_is_refused_with_the_reason() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    let refused = |path: &Path, reason: &str| {
        let error = write_whole(path, b"y").unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write {}: ", path.display())) && error.contains(reason), "{error}");
    };
    refused(folder.path(), "it is a directory, expected the name of a file");
    refused(&folder.path().join("file/below"), "");
    refused(&folder.path().join("new/"), "not the name of a file");
    refused(&folder.path().join(".."), "not the name of a file");
    refused(Path::new(""), "not the name of a file");
    assert_eq!((names(folder.path()), text(folder.path().join("file"))), (vec!["file".to_owned()], "x".to_owned()));
}

#[test]
fn what_cannot_take_its_name_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    assert!(replace(&taken, b"x").is_err());
    assert_eq!(names(folder.path()), ["taken"]);
}

#[test]
fn a_name_without_a_folder_is_in_the_current_one() {
    assert_eq!(super::folder(Path::new("name")), Path::new("."));
    assert_eq!(super::folder(Path::new("a/name")), Path::new("a"));
    sync_directory(Path::new(".")).unwrap();
}

#[cfg(unix)]
mod unix {
    use std::{
        io::Read,
        os::{
            fd::AsRawFd,
            unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink},
        },
        process::Command,
        thread,
    };

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Creates a node in a folder; returns false if not permitted.
    fn node(path: &Path, words: &[&str]) -> bool {
        Command::new("mknod").arg(path).args(words).output().is_ok_and(|output| output.status.success())
    }

    #[test]
    fn the_mode_of_a_file_stays() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        for wanted in [0o600, 0o640, 0o755, 0o666] {
            fs::write(&path, "old").unwrap();
            set_mode(&path, wanted);
            let before = fs::metadata(&path).unwrap().ino();
            write_whole(&path, b"new").unwrap();
            assert_eq!((text(&path).as_str(), mode(&path)), ("new", wanted));
            assert_ne!(fs::metadata(&path).unwrap().ino(), before, "not replaced at once");
            replace(&path, b"newer").unwrap();
            assert_eq!((text(&path).as_str(), mode(&path)), ("newer", wanted));
        }
        // A new file has the default mode.
        fs::write(folder.path().join("other"), "").unwrap();
        write_whole(&folder.path().join("new"), b"").unwrap();
        assert_eq!(mode(&folder.path().join("new")), mode(&folder.path().join("other")));
    }

    #[test]
    fn links_are_followed_and_stay() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("below")).unwrap();
        fs::write(at("below/file"), "old").unwrap();
        symlink("below/file", at("relative")).unwrap();
        symlink(at("relative"), at("absolute")).unwrap();
        symlink("../absolute", at("below/chain")).unwrap();
        symlink("below", at("folder")).unwrap();
        symlink("below/new", at("dangling")).unwrap();
        for link in ["relative", "absolute", "below/chain", "folder/file"] {
            write_whole(&at(link), link.as_bytes()).unwrap();
            assert_eq!(text(at("below/file")), link);
        }
        write_whole(&at("dangling"), b"made").unwrap();
        assert_eq!(text(at("below/new")), "made");
        for link in ["relative", "absolute", "below/chain", "folder", "dangling"] {
            assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
        }
        assert_eq!(names(&at("below")), ["chain", "file", "new"]);
        // `replace` works by name, for a folder of our own: it replaces the link.
        replace(&at("relative"), b"own").unwrap();
        assert!(fs::symlink_metadata(at("relative")).unwrap().is_file());
        assert_eq!(text(at("below/file")), "folder/file");
    }

    #[test]
    fn links_that_lead_nowhere_are_errors() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("two", at("one")).unwrap();
        symlink("one", at("two")).unwrap();
        symlink("missing/file", at("away")).unwrap();
        symlink(".", at("folder")).unwrap();
        let error = write_whole(&at("one"), b"x").unwrap_err().to_string();
        assert!(error.contains("links lead from one to the next"), "{error}");
        assert_eq!(write_whole(&at("away"), b"x").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(write_whole(&at("folder"), b"x").unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(names(folder.path()), ["away", "folder", "one", "two"]);
    }

    #[test]
    fn all_names_of_a_file_get_the_content() {
        let folder = TempDir::new().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        fs::write(&one, "a long old content").unwrap();
        fs::hard_link(&one, &two).unwrap();
        write_whole(&one, b"new").unwrap();
        assert_eq!((text(&one).as_str(), text(&two).as_str()), ("new", "new"));
        assert_eq!(fs::metadata(&one).unwrap().nlink(), 2);
    }

    #[test]
    fn a_pipe_is_written_through() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        symlink("pipe", folder.path().join("link")).unwrap();
        // Open both ends without blocking, so that a writer that goes elsewhere fails the test instead of hanging it.
        let mut pipe = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        for name in ["pipe", "link"] {
            write_whole(&folder.path().join(name), name.as_bytes()).unwrap();
            let mut seen = [0; 4];
            pipe.read_exact(&mut seen).unwrap();
            assert_eq!(seen, name.as_bytes());
        }
        assert!(!fs::metadata(&path).unwrap().is_file());
        assert_eq!(names(folder.path()), ["link", "pipe"]);
    }

    #[test]
    fn devices_are_written_through() {
        let folder = TempDir::new().unwrap();
        let (null, full) = (folder.path().join("null"), folder.path().join("full"));
        let made = node(&null, &["c", "1", "3"]) && node(&full, &["c", "1", "7"]);
        if !made || OpenOptions::new().write(true).open(&null).is_err() {
            return;
        }
        write_whole(&null, b"gone").unwrap();
        let error = write_whole(&full, b"too much").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        for device in [&null, &full] {
            assert!(!fs::metadata(device).unwrap().is_file());
        }
        assert_eq!(names(folder.path()), ["full", "null"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn open_descriptors_are_written_where_they_stand() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"before ").unwrap();
        let number = file.as_raw_fd();
        symlink(format!("/dev/fd/{number}"), folder.path().join("link")).unwrap();
        write_whole(Path::new(&format!("/proc/self/fd/{number}")), b"one ").unwrap();
        write_whole(Path::new(&format!("/dev/fd/{number}")), b"two ").unwrap();
        write_whole(&folder.path().join("link"), b"three ").unwrap();
        write_whole(Path::new(&format!("/proc/thread-self/fd/{number}")), b"four").unwrap();
        assert_eq!(text(&path), "before one two three four");
        let (mut reader, writer) = io::pipe().unwrap();
        write_whole(Path::new(&format!("/dev/fd/{}", writer.as_raw_fd())), b"piped").unwrap();
        drop(writer);
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "piped");
        // A descriptor that is not open is not created.
        assert!(write_whole(Path::new("/dev/fd/1000000"), b"x").is_err());
        assert!(write_whole(Path::new("/proc/self/fd/x"), b"x").is_err());
    }

    /// Runs an action without privileges if the tests run as root, which ignores permissions.
    #[cfg(target_os = "linux")]
    fn unprivileged<T: Send>(action: impl FnOnce() -> T + Send) -> T {
        const NOBODY: libc::c_long = 65_534;
        thread::scope(|scope| {
            let child = scope.spawn(|| {
                // SAFETY: these calls take only integers; as raw system calls they affect only this thread.
                unsafe {
                    if libc::geteuid() == 0 {
                        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()), 0);
                        assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
                        assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
                    }
                }
                action()
            });
            child.join().unwrap()
        })
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn protected_files_and_folders_are_left_alone() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, mode) in [("protected", 0o444), ("open", 0o666)] {
            fs::write(at(name), "old").unwrap();
            set_mode(&at(name), mode);
        }
        // No files may be added here.
        set_mode(folder.path(), 0o555);
        let [protected, new, open] =
            unprivileged(|| ["protected", "new", "open"].map(|name| write_whole(&at(name), b"new")));
        set_mode(folder.path(), 0o755);
        for result in [protected, new] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        open.unwrap();
        assert_eq!((text(at("protected")).as_str(), text(at("open")).as_str()), ("old", "new"));
        assert_eq!((names(folder.path()), mode(&at("open"))), (vec!["open".to_owned(), "protected".to_owned()], 0o666));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_owner_of_a_file_stays() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        // Only root can give a file to another owner.
        if chown(&path, Some(12_345), Some(12_346)).is_err() {
            return;
        }
        let owner = || {
            let metadata = fs::metadata(&path).unwrap();
            (metadata.uid(), metadata.gid())
        };
        write_whole(&path, b"by root").unwrap();
        assert_eq!((text(&path).as_str(), owner()), ("by root", (12_345, 12_346)));
        // Without the right to change the owner, the file is written in place.
        set_mode(&path, 0o666);
        set_mode(folder.path(), 0o777);
        let inode = fs::metadata(&path).unwrap().ino();
        unprivileged(|| write_whole(&path, b"by another")).unwrap();
        assert_eq!((text(&path).as_str(), owner(), mode(&path)), ("by another", (12_345, 12_346), 0o666));
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(names(folder.path()), ["file"]);
        // `replace` is meant for our own folders and does not keep the owner.
        unprivileged(|| replace(&path, b"replaced")).unwrap();
        assert_eq!(text(&path), "replaced");
    }
}
