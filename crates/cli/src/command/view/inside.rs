//! Paths below the directory, and none other.

use std::path::{Path, PathBuf};

/// The file or directory of a name with slashes; nothing where it is not there or lies outside `root`.
///
/// `root` has no links in it. What a name may not hold is refused before the system is asked, and what the system then finds
/// must lie inside, links followed.
pub fn inside(root: &Path, name: &str) -> Option<PathBuf> {
    let mut path = root.to_path_buf();
    for part in name.split('/').filter(|_| !name.is_empty()) {
        let outside = part.is_empty() || part.starts_with('.') || part.contains(['\\', ':', '\0']);
        if outside {
            return None;
        }
        path.push(part);
    }
    let found = path.canonicalize().ok()?;
    found.starts_with(root).then_some(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn names_stay_inside() {
        let folder = TempDir::new().unwrap();
        let outer = folder.path().canonicalize().unwrap();
        let root = outer.join("runs");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(outer.join("runs-of-another")).unwrap();
        for (path, text) in
            [("runs/a/b/c.txt", "in"), ("secret", "out"), ("runs-of-another/x", "out"), ("runs/.env", "out")]
        {
            fs::write(outer.join(path), text).unwrap();
        }
        assert_eq!(inside(&root, ""), Some(root.clone()));
        assert_eq!(inside(&root, "a/b/c.txt"), Some(root.join("a/b/c.txt")));
        let absolute = outer.join("secret").to_string_lossy().into_owned();
        let names = [
            "..",
            "../secret",
            "a/../../secret",
            "a//b",
            "/a",
            "./a",
            ".env",
            "a\\b",
            "nowhere",
            "a\0",
            "../runs-of-another/x",
        ];
        for name in names.into_iter().chain([absolute.as_str()]) {
            assert_eq!(inside(&root, name), None, "{name}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn links_lead_only_inside() {
        use std::os::unix::fs::symlink;
        let folder = TempDir::new().unwrap();
        let outer = folder.path().canonicalize().unwrap();
        let root = outer.join("runs");
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/file"), "in").unwrap();
        fs::write(outer.join("secret"), "out").unwrap();
        symlink(outer.join("secret"), root.join("file-out")).unwrap();
        symlink(&outer, root.join("folder-out")).unwrap();
        symlink("a/file", root.join("within")).unwrap();
        assert_eq!(inside(&root, "file-out"), None);
        assert_eq!(inside(&root, "folder-out/secret"), None);
        assert_eq!(inside(&root, "folder-out/runs/a/file"), Some(root.join("a/file")));
        assert_eq!(inside(&root, "within"), Some(root.join("a/file")));
    }
}
