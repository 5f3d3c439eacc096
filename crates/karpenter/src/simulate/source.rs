//! Files as JSON documents: plain or gzipped, JSON or YAML, one document or many.
//!
//! What the documents mean is not for here. YAML is turned into JSON text, so that everything after this
//! reads one format and can borrow from it.

use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::value::RawValue;

/// One file, read: its name for messages and its documents as JSON text.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) name: String,
    documents: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("{file}: cannot be read: {source}")]
    Read { file: String, source: std::io::Error },
    #[error("{file}: is not UTF-8 text; a scenario is JSON or YAML, optionally gzipped (.gz)")]
    NotText { file: String },
    #[error("{file}: is not valid JSON: {source}")]
    Json { file: String, source: serde_json::Error },
    #[error("{file}: is not valid YAML: {message}")]
    Yaml { file: String, message: String },
    #[error("{file}: holds no document")]
    Empty { file: String },
}

impl SourceFile {
    pub(crate) fn read(path: &Path) -> Result<Self, SourceError> {
        let file = path.display().to_string();
        let bytes = fs::read(path).map_err(|source| SourceError::Read { file: file.clone(), source })?;
        Self::from_bytes(file, bytes)
    }

    /// By content rather than by name where it matters: a gzip header is gzip, a leading brace or bracket is JSON.
    pub(crate) fn from_bytes(file: String, bytes: Vec<u8>) -> Result<Self, SourceError> {
        let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
            let mut plain = Vec::new();
            flate2::read::MultiGzDecoder::new(bytes.as_slice())
                .read_to_end(&mut plain)
                .map_err(|source| SourceError::Read { file: file.clone(), source })?;
            plain
        } else {
            bytes
        };
        let text = String::from_utf8(bytes).map_err(|_| SourceError::NotText { file: file.clone() })?;
        let base = file.strip_suffix(".gz").unwrap_or(&file);
        let documents =
            if base.ends_with(".json") || text.trim_start().starts_with(['{', '[']) && !is_yaml(base) {
                vec![text]
            } else {
                yaml_documents(&file, &text)?
            };
        let read = Self { name: file, documents };
        if read.values()?.is_empty() {
            return Err(SourceError::Empty { file: read.name });
        }
        Ok(read)
    }

    /// Every JSON value of the file, in order: several in a JSON stream, one per YAML document.
    pub(crate) fn values(&self) -> Result<Vec<&RawValue>, SourceError> {
        let mut out = Vec::new();
        for document in &self.documents {
            for value in serde_json::Deserializer::from_str(document).into_iter::<&RawValue>() {
                let value = value.map_err(|source| SourceError::Json { file: self.name.clone(), source })?;
                if value.get() != "null" {
                    out.push(value);
                }
            }
        }
        Ok(out)
    }
}

fn is_yaml(name: &str) -> bool {
    name.ends_with(".yaml") || name.ends_with(".yml")
}

fn yaml_documents(file: &str, text: &str) -> Result<Vec<String>, SourceError> {
    // The reader's default budget guards servers against hostile documents; a dump of a large cluster is
    // neither hostile nor small, and it is the user's own file. JSON has no `.nan`: as a text it is the one field's problem.
    let options = serde_saphyr::options! {
        budget: None,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::AsString,
    };
    let values: Vec<serde_json::Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|e| SourceError::Yaml { file: file.to_owned(), message: e.without_snippet().to_string() })?;
    Ok(values.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn values(name: &str, text: &str) -> Vec<String> {
        let file = SourceFile::from_bytes(name.into(), text.into()).expect("readable");
        file.values().expect("values").into_iter().map(|v| v.get().to_owned()).collect()
    }

    #[test]
    fn yaml_documents_become_json_values_and_empty_ones_vanish() {
        assert_eq!(values("a.yaml", "a: 1\n---\n---\nb: [x, 'y']\n"), [r#"{"a":1}"#, r#"{"b":["x","y"]}"#]);
    }

    #[test]
    fn a_number_that_is_none_is_a_text_and_not_the_end_of_the_file() {
        assert_eq!(values("a.yaml", "a: .nan\nb: 1\n"), [r#"{"a":".nan","b":1}"#]);
    }

    #[test]
    fn a_json_stream_gives_each_of_its_values() {
        assert_eq!(values("a.json", "{\"a\":1}\n{\"b\":2}"), [r#"{"a":1}"#, r#"{"b":2}"#]);
    }

    #[test]
    fn json_without_a_telling_name_is_recognised_by_its_first_character() {
        assert_eq!(values("dump", " [1, 2]"), ["[1, 2]"]);
    }

    #[test]
    fn gzip_is_recognised_by_its_header() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"{\"a\":1}").unwrap();
        let file = SourceFile::from_bytes("a.json.gz".into(), encoder.finish().unwrap()).expect("readable");
        assert_eq!(file.values().unwrap()[0].get(), "{\"a\":1}");
    }

    #[test]
    fn broken_files_are_named_with_what_is_wrong() {
        for (name, bytes, want) in [
            ("a.json", &b"{\"a\":"[..], "a.json: is not valid JSON"),
            ("a.yaml", b"a: [", "a.yaml: is not valid YAML"),
            ("a.yaml", b"\xff\xfe\xff", "a.yaml: is not UTF-8"),
            ("a.yaml", b"# nothing\n", "a.yaml: holds no document"),
            ("a.json.gz", b"\x1f\x8b\x08", "a.json.gz: cannot be read"),
        ] {
            let error = SourceFile::from_bytes(name.into(), bytes.to_vec()).expect_err(name).to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
