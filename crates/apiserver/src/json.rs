//! Request bodies into values: JSON that notices duplicate fields, YAML, and Go's words for what is malformed.
//!
//! The parser is serde_json's. Only when it refuses does [`syntax_error`] walk the text again, to say where and why in
//! the words of Go's `encoding/json`, which clients show to their users.

use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;

/// A parsed body.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) value: Value,
    /// What to say of fields that stand twice in the same object; the last one won.
    pub(crate) duplicates: Vec<String>,
}

/// Parses JSON; the error is Go's text.
pub(crate) fn parse(text: &[u8]) -> Result<Parsed, String> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let seed = Node { path: None, duplicates: &mut duplicates };
    let value = seed.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    match value {
        Ok(value) => Ok(Parsed { value, duplicates }),
        // What is left is nested too deep: Go allows ten thousand levels, we what a small stack can take.
        Err(_) => Err(syntax_error(text).unwrap_or_else(|| "exceeded max depth".to_owned())),
    }
}

/// Parses YAML (of which JSON is a part).
pub(crate) fn parse_yaml(text: &[u8]) -> Result<Parsed, String> {
    let text =
        std::str::from_utf8(text).map_err(|_| "yaml: control characters are not allowed".to_owned())?;
    let read = |duplicate_keys| {
        let options = serde_saphyr::options! { duplicate_keys: duplicate_keys, with_snippet: false };
        serde_saphyr::from_str_with_options(text, options)
    };
    match read(DuplicateKeyPolicy::Error) {
        Ok(value) => Ok(Parsed { value, duplicates: Vec::new() }),
        // Only the first one is told; the last one wins.
        Err(serde_saphyr::Error::DuplicateMappingKey { key, location }) => {
            let key = key.unwrap_or_default();
            let duplicates = vec![format!("line {}: key {key:?} already set in map", location.line())];
            let value = read(DuplicateKeyPolicy::LastWins).map_err(|error| format!("yaml: {error}"))?;
            Ok(Parsed { value, duplicates })
        }
        Err(error) => Err(format!("yaml: {error}")),
    }
}

/// Where in a document a value is; linked on the stack, so that it costs nothing unless a path is asked for.
#[derive(Clone, Copy)]
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Field(name) if self.parent.is_none() => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

struct Node<'a> {
    path: Option<&'a Path<'a>>,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = Path { parent: self.path, step: Step::Index(items.len()) };
            match seq.next_element_seed(Node { path: Some(&path), duplicates: &mut *self.duplicates })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = Path { parent: self.path, step: Step::Field(&key) };
            let value = map.next_value_seed(Node { path: Some(&path), duplicates: &mut *self.duplicates })?;
            if fields.contains_key(&key) {
                self.duplicates.push(format!("duplicate field \"{path}\""));
            }
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

/// What Go's `encoding/json` says about a text, `None` if its grammar is fine.
fn syntax_error(text: &[u8]) -> Option<String> {
    let mut scanner = Scanner { text, at: 0 };
    let found = scanner.value("looking for beginning of value").and_then(|()| {
        scanner.skip_space();
        match scanner.peek() {
            Some(_) => Err(scanner.unexpected("after top-level value")),
            None => Ok(()),
        }
    });
    found.err()
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn unexpected(&self, context: &str) -> String {
        match self.peek() {
            None => "unexpected end of JSON input".to_owned(),
            Some(b'\'') => format!("invalid character '\\'' {context}"),
            Some(b'"') => format!("invalid character '\"' {context}"),
            Some(byte) => {
                let quoted = crate::go_format::quote(&char::from(byte).to_string());
                format!("invalid character '{}' {context}", quoted.trim_matches('"'))
            }
        }
    }

    fn value(&mut self, context: &str) -> Result<(), String> {
        // Nesting is left on this explicit stack: a body may nest deeper than a thread's stack.
        let mut open: Vec<u8> = Vec::new();
        let mut context = context;
        loop {
            self.skip_space();
            let mut complete = true;
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    self.skip_space();
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                    } else {
                        self.key()?;
                        open.push(b'{');
                        complete = false;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    self.skip_space();
                    if self.peek() == Some(b']') {
                        self.at += 1;
                    } else {
                        open.push(b'[');
                        complete = false;
                    }
                }
                Some(b'"') => self.string()?,
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.unexpected(context)),
            }
            context = "looking for beginning of value";
            while complete {
                let Some(&inside) = open.last() else { return Ok(()) };
                self.skip_space();
                match (inside, self.peek()) {
                    (b'{', Some(b'}')) | (b'[', Some(b']')) => {
                        self.at += 1;
                        open.pop();
                    }
                    (b'{', Some(b',')) => {
                        self.at += 1;
                        self.skip_space();
                        self.key()?;
                        complete = false;
                    }
                    (b'[', Some(b',')) => {
                        self.at += 1;
                        complete = false;
                    }
                    (b'{', _) => return Err(self.unexpected("after object key:value pair")),
                    _ => return Err(self.unexpected("after array element")),
                }
            }
        }
    }

    fn key(&mut self) -> Result<(), String> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("looking for beginning of object key string"));
        }
        self.string()?;
        self.skip_space();
        match self.peek() {
            Some(b':') => self.at += 1,
            _ => return Err(self.unexpected("after object key")),
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), String> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.at += 1,
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                match self.peek() {
                                    Some(digit) if digit.is_ascii_hexdigit() => self.at += 1,
                                    _ => return Err(self.unexpected("in \\u hexadecimal character escape")),
                                }
                            }
                        }
                        _ => return Err(self.unexpected("in string escape code")),
                    }
                }
                Some(byte) if byte >= 0x20 => self.at += 1,
                _ => return Err(self.unexpected("in string literal")),
            }
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                let context = format!("in literal {word} (expecting '{}')", char::from(expected));
                return Err(self.unexpected(&context));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), String> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.unexpected("in numeric literal")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        Ok(())
    }

    fn some_digits(&mut self, context: &str) -> Result<(), String> {
        match self.peek() {
            Some(b'0'..=b'9') => {
                self.digits();
                Ok(())
            }
            _ => Err(self.unexpected(context)),
        }
    }

    fn digits(&mut self) {
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }
}

/// The JSON type of a value in Go's words.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_fields_are_named_by_their_path() {
        let parsed = parse(br#"{"a":{"b":[{"c":1,"c":2}]},"a":3}"#).unwrap();
        assert_eq!(parsed.duplicates, ["duplicate field \"a.b[0].c\"", "duplicate field \"a\""]);
        assert_eq!(parsed.value, serde_json::json!({"a": 3}));
    }

    #[test]
    fn a_key_that_stands_twice_in_yaml_is_named_by_its_line() {
        let parsed = parse_yaml(b"a: 1\nb: 2\na: 3\n").unwrap();
        assert_eq!(parsed.duplicates, ["line 3: key \"a\" already set in map"]);
        assert_eq!(parsed.value, serde_json::json!({"a": 3, "b": 2}));
    }

    #[test]
    fn malformed_json_is_told_in_gos_words() {
        for (text, words) in [
            ("{bad", "invalid character 'b' looking for beginning of object key string"),
            ("", "unexpected end of JSON input"),
            ("{\"a\":", "unexpected end of JSON input"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("tru", "unexpected end of JSON input"),
            ("trap", "invalid character 'a' in literal true (expecting 'u')"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\n\"", "invalid character '\\n' in string literal"),
            ("{} x", "invalid character 'x' after top-level value"),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err(), words, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
            let _ = parse(&text);
            let _ = parse_yaml(&text);
        }

        #[test]
        fn gos_grammar_and_serdes_agree(text in "[\\[\\]{}:,\"a1 -]{0,24}") {
            let serde = serde_json::from_str::<Value>(&text).is_ok();
            proptest::prop_assert_eq!(syntax_error(text.as_bytes()).is_none(), serde, "{}", text);
        }
    }
}
