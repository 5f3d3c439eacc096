//! The syntax of names in CRDs and embedded resources, with the complaints kube-apiserver makes.

use std::sync::LazyLock;

use regex::Regex;

static LABEL_1035: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new("^[a-z]([-a-z0-9]*[a-z0-9])?$").ok());
static SUBDOMAIN_1123: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$").ok());

fn matches(pattern: &LazyLock<Option<Regex>>, text: &str) -> bool {
    pattern.as_ref().is_some_and(|regex| regex.is_match(text))
}

/// What is wrong with `text` as a DNS label of RFC 1035; nothing if it is one.
pub(crate) fn dns_1035_label(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push("must be no more than 63 bytes".to_owned());
    }
    if !matches(&LABEL_1035, text) {
        problems.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    problems
}

/// What is wrong with `text` as a DNS subdomain of RFC 1123.
pub(crate) fn dns_1123_subdomain(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 253 {
        problems.push("must be no more than 253 bytes".to_owned());
    }
    if !matches(&SUBDOMAIN_1123, text) {
        problems.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    problems
}

/// What is wrong with `text` as a segment of a URL path; `prefix` if more will be appended.
pub(crate) fn path_segment(text: &str, prefix: bool) -> Vec<String> {
    if !prefix && matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    ['/', '%'].into_iter().filter(|c| text.contains(*c)).map(|c| format!("may not contain '{c}'")).collect()
}
