//! Times as `metav1.Time` and `metav1.MicroTime` read and print them: UTC, to the second or the microsecond.

use jiff::Timestamp;

/// The canonical form of a `metav1.Time`, or nothing when `text` is canonical already.
pub(super) fn canonical_seconds(text: &str) -> Result<Option<String>, String> {
    let bytes = text.as_bytes();
    let shape = b"dddd-dd-ddTdd:dd:ddZ";
    let plausible = bytes.len() == shape.len()
        && bytes.iter().zip(shape).all(|(b, s)| if *s == b'd' { b.is_ascii_digit() } else { b == s });
    let time = parse(text, "2006-01-02T15:04:05Z07:00")?;
    if plausible {
        return Ok(None);
    }
    Ok(Some(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).filter(|s| s != text))
}

/// The canonical form of a `metav1.MicroTime`, or nothing when `text` is canonical already.
pub(super) fn canonical_micros(text: &str) -> Result<Option<String>, String> {
    let time = parse(text, "2006-01-02T15:04:05.000000Z07:00")?;
    Ok(Some(time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()).filter(|s| s != text))
}

fn parse(text: &str, layout: &str) -> Result<Timestamp, String> {
    // Go's layout wants the letters in upper case and a zone; jiff would also take a blank or lower case.
    let strict = text.as_bytes().get(10) == Some(&b'T');
    match text.parse::<Timestamp>() {
        Ok(time) if strict => Ok(time),
        _ => Err(format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"")),
    }
}
