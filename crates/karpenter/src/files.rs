//! Files that others wait for.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

/// Writes a file that is either not there or complete. It may hold a token: nobody but its owner reads it.
pub fn write_atomically(path: &Path, text: &str) -> anyhow::Result<()> {
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&temporary, path))
        .inspect_err(|_| drop(fs::remove_file(&temporary)))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_written_is_for_its_owner_alone_also_where_a_file_was() {
        let path = std::env::temp_dir().join(format!("karpenter-files-{}", std::process::id()));
        fs::write(&path, "old").expect("a file for everyone");
        write_atomically(&path, "token").expect("written");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!((fs::read_to_string(&path).expect("a text").as_str(), mode & 0o777), ("token", 0o600));
        fs::remove_file(&path).expect("removed");
    }
}
