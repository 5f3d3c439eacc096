//! The JSON paths of CRDs that name a field of the schema: `fieldPath` of a rule, `selectableFields`.
//!
//! Only `.name` and `['name']` steps exist, and each must be known to the schema.

use super::node::{Additional, Node};

/// The path as field errors write it, and the schema it leads to. `brackets`: whether `['name']` may be used.
pub(super) fn resolve<'a>(text: &str, root: &'a Node, brackets: bool) -> Result<(String, &'a Node), String> {
    let mut path = String::new();
    let mut node = root;
    let mut tokens = Tokens(text);
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if !brackets => return Err("array notation is not allowed".into()),
            "[" => {
                let quoted = tokens.next().ok_or("unexpected end of JSON path")?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                let name = unescape(inner)?;
                known(node)?;
                name
            }
            "." => {
                let name = tokens.next().ok_or("unexpected end of JSON path")?.to_owned();
                known(node)?;
                name
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        if node.properties.is_empty() {
            path.push('[');
            path.push_str(&name);
            path.push(']');
            if let Some(Additional::Each(each)) = &node.additional {
                node = each;
            } else {
                return Err("does not refer to a valid field".into());
            }
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&name);
            node = node.properties.get(&name).ok_or("does not refer to a valid field")?;
        }
        if token == "[" {
            match tokens.next() {
                Some("]") => {}
                Some(other) => return Err(format!("expected ] but got {other}")),
                None => return Err("unexpected end of JSON path".into()),
            }
        }
    }
    Ok((path, node))
}

fn known(node: &Node) -> Result<(), String> {
    if node.properties.is_empty() && node.additional.is_none() {
        return Err("does not refer to a valid field".into());
    }
    Ok(())
}

/// `.`, `[` and `]` alone, quoted strings whole, and whatever lies between.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0;
        let length = match text.chars().next()? {
            '\'' => {
                let mut escaped = false;
                let end = text.char_indices().skip(1).find(|(_, c)| {
                    let closes = *c == '\'' && !escaped;
                    escaped = *c == '\\';
                    closes
                });
                end.map_or(text.len(), |(i, _)| i + 1)
            }
            '.' | '[' | ']' => 1,
            _ => text.find(['.', '[', ']']).unwrap_or(text.len()),
        };
        let (token, rest) = text.split_at(length);
        self.0 = rest;
        Some(token)
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some('\'') => '\'',
            Some('\\') => '\\',
            Some(other) => return Err(format!("invalid string literal: invalid escape char \\{other}")),
            None => '\\',
        });
    }
    Ok(out)
}
