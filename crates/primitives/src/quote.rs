//! Go's `%q`: how apimachinery shows an offending string inside an error message.

use std::fmt::Write;

/// Puts `text` in double quotes the way Go's `strconv.Quote` does.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c < ' ' || c == '\u{7f}' => push(&mut out, format_args!("\\x{:02x}", u32::from(c))),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => push(&mut out, format_args!("\\u{:04x}", u32::from(c))),
            c => push(&mut out, format_args!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

fn push(out: &mut String, piece: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(piece);
}

/// Go prints letters, marks, numbers, punctuation, symbols and the ASCII space. `char::escape_debug` draws nearly the
/// same line (it also escapes combining marks at the start of a string, which is why only `\u{…}` counts here).
fn is_printable(c: char) -> bool {
    c == ' ' || c == '\'' || (!c.is_whitespace() && !c.escape_debug().collect::<String>().starts_with("\\u{"))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quotes_and_control_characters_are_escaped_as_go_does() {
        assert_eq!(quote("a\"b\\c"), r#""a\"b\\c""#);
        assert_eq!(quote("\n\u{1}\u{7f}"), r#""\n\x01\x7f""#);
        assert_eq!(quote("it's ü"), "\"it's ü\"");
        assert_eq!(quote("\u{a0}\u{200b}"), r#""\u00a0\u200b""#);
    }
}
