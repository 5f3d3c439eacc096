//! What names, label keys and label values may look like, with apimachinery's words for what is wrong with one.
//!
//! Each check returns every complaint, an empty list meaning "valid". The texts reach users (API server answers,
//! NodePool conditions), so they are Go's to the letter, including that object names are measured in "characters"
//! and label keys and values in "bytes".

const DNS1123_LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_SUBDOMAIN_FORMAT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035_LABEL_FORMAT: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE_FORMAT: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

/// The longest DNS label (RFC 1123 and RFC 1035).
pub const DNS_LABEL_MAX_LENGTH: usize = 63;
/// The longest DNS subdomain.
pub const DNS_SUBDOMAIN_MAX_LENGTH: usize = 253;
/// The longest label value, and the longest name part of a label key.
pub const LABEL_VALUE_MAX_LENGTH: usize = 63;

/// Complaints about `name` as an RFC 1123 label (namespaces, services' hosts).
pub fn dns1123_label_errors(name: &str) -> Vec<String> {
    let mut errors = too_long(name, DNS_LABEL_MAX_LENGTH, "characters");
    if !is_dns1123_label(name) {
        errors.push(if is_dns1123_subdomain(name) {
            "must not contain dots".to_owned()
        } else {
            mismatch(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                DNS1123_LABEL_FORMAT,
                &["my-name", "123-abc"],
            )
        });
    }
    errors
}

/// Complaints about `name` as an RFC 1123 subdomain (the name of most objects).
pub fn dns1123_subdomain_errors(name: &str) -> Vec<String> {
    subdomain_errors(name, "characters")
}

/// Complaints about `name` as an RFC 1035 label (services).
pub fn dns1035_label_errors(name: &str) -> Vec<String> {
    let mut errors = too_long(name, DNS_LABEL_MAX_LENGTH, "characters");
    if !(is_dns1123_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase())) {
        errors.push(mismatch(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            DNS1035_LABEL_FORMAT,
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// Complaints about `key` as a qualified name: `[prefix/]name`, as label keys, annotation keys and taint keys are.
pub fn qualified_name_errors(key: &str) -> Vec<String> {
    let format_error = || {
        mismatch(
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            LABEL_KEY_FORMAT,
            &["MyName", "my.name", "123-abc"],
        )
    };
    let mut errors = Vec::new();
    let name = match key.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            }
            if !prefix.is_empty() {
                errors.extend(
                    subdomain_errors(prefix, "bytes").into_iter().map(|e| format!("prefix part {e}")),
                );
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                format_error()
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    }
    errors.extend(
        too_long(name, LABEL_VALUE_MAX_LENGTH, "bytes").into_iter().map(|e| format!("name part {e}")),
    );
    if !is_label_word(name) {
        errors.push(format!("name part {}", format_error()));
    }
    errors
}

/// Complaints about `value` as a label value. The empty string is one.
pub fn label_value_errors(value: &str) -> Vec<String> {
    let mut errors = too_long(value, LABEL_VALUE_MAX_LENGTH, "bytes");
    if !value.is_empty() && !is_label_word(value) {
        errors.push(mismatch(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            LABEL_VALUE_FORMAT,
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// Complaints about `name` as one segment of a URL path: the least any object name must satisfy.
pub fn path_segment_errors(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].into_iter().filter(|&c| name.contains(c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// A `generateName` as it is checked: a suffix will follow, so a trailing dash is fine. Like apimachinery this drops the
/// character before the dash too, which can only make a name look shorter, never invalid.
pub fn mask_trailing_dash(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut kept = rest.to_owned();
            kept.pop();
            kept.push('a');
            kept
        }
        _ => prefix.to_owned(),
    }
}

fn subdomain_errors(name: &str, unit: &str) -> Vec<String> {
    let mut errors = too_long(name, DNS_SUBDOMAIN_MAX_LENGTH, unit);
    if !is_dns1123_subdomain(name) {
        errors.push(mismatch(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            DNS1123_SUBDOMAIN_FORMAT,
            &["example.com"],
        ));
    }
    errors
}

fn too_long(text: &str, limit: usize, unit: &str) -> Vec<String> {
    if text.len() > limit { vec![format!("must be no more than {limit} {unit}")] } else { Vec::new() }
}

fn mismatch(message: &str, format: &str, examples: &[&str]) -> String {
    let examples = examples.iter().map(|e| format!("'{e}', ")).collect::<Vec<_>>().join(" or ");
    format!("{message} (e.g. {examples}regex used for validation is '{format}')")
}

/// The shape of a DNS-1123 label, whatever its length.
fn is_dns1123_label(text: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    framed(text.as_bytes(), alphanumeric, |c| alphanumeric(c) || c == b'-')
}

fn is_dns1123_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns1123_label)
}

/// The shape of a label value or of a label key's name part, whatever its length.
fn is_label_word(text: &str) -> bool {
    framed(
        text.as_bytes(),
        |c| c.is_ascii_alphanumeric(),
        |c| c.is_ascii_alphanumeric() || b"-_.".contains(&c),
    )
}

fn framed(text: &[u8], edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match text {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|&c| inner(c)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailing_dash_of_a_generate_name_is_forgiven() {
        assert_eq!(mask_trailing_dash("web-"), "wea");
        assert_eq!(mask_trailing_dash("-"), "-");
        assert!(dns1123_subdomain_errors(&mask_trailing_dash("default-")).is_empty());
    }

    #[test]
    fn dots_in_a_label_are_named_as_such() {
        assert_eq!(dns1123_label_errors("a.b"), ["must not contain dots"]);
    }

    #[test]
    fn a_path_segment_is_anything_a_url_can_carry() {
        assert_eq!(path_segment_errors(".."), ["may not be '..'"]);
        assert_eq!(path_segment_errors("a/b%"), ["may not contain '/'", "may not contain '%'"]);
        assert!(path_segment_errors("system:node").is_empty());
    }
}
