//! Files that others wait for.

use std::path::Path;

use anyhow::Context as _;

/// Writes a file that is either not there or complete.
pub fn write_atomically(path: &Path, text: &str) -> anyhow::Result<()> {
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    std::fs::write(&temporary, text)
        .and_then(|()| std::fs::rename(&temporary, path))
        .inspect_err(|_| drop(std::fs::remove_file(&temporary)))
        .with_context(|| format!("cannot write {}", path.display()))
}
