//! Whether a rule fits the schema it stands in: every field it selects exists, every name is declared, the result can be
//! a boolean.
//!
//! This is a small part of what the type checker inside kube-apiserver does. It follows types only from `self` through
//! fields, elements and macros; whatever it cannot follow it accepts.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};

use super::cel::is_typed;
use super::cel_library::children;
use super::cel_value::escape;
use super::node::{Additional, Node, Type};

/// What is known of an expression's type.
#[derive(Clone, Copy)]
enum Known<'a> {
    Schema(&'a Node),
    /// The root of a resource, which always has a type and a name.
    Resource(&'a Node),
    /// `metadata` of a resource.
    Metadata,
    Scalar(Type),
    Nothing,
}

/// Names that are types, and so are values.
const TYPES: [&str; 12] =
    ["bool", "bytes", "double", "dyn", "int", "list", "map", "null_type", "string", "type", "uint", "google"];
/// Macros the parser leaves as calls; they declare names this check does not follow.
const OPAQUE_MACROS: [&str; 9] = [
    "bind",
    "existsOne",
    "optFlatMap",
    "optMap",
    "sortBy",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "block",
];

/// The complaint of the real server, or none.
pub(super) fn complaint(
    program: &IdedExpr,
    text: &str,
    node: &Node,
    resource: bool,
    optional_old: bool,
) -> Option<String> {
    let own = if resource { Known::Resource(node) } else { Known::Schema(node) };
    let old = if optional_old { Known::Nothing } else { own };
    let mut checker = Checker { text, errors: Vec::new() };
    let scope = BTreeMap::from([("self", own), ("oldSelf", old)]);
    let result = checker.follow(program, &scope);
    if !checker.errors.is_empty() {
        return Some(format!("compilation failed: {}", checker.errors.join("\n")));
    }
    let boolean = match result {
        Known::Nothing | Known::Scalar(Type::Boolean) => true,
        Known::Schema(node) => node.int_or_string || matches!(node.kind, None | Some(Type::Boolean)),
        Known::Resource(_) | Known::Metadata | Known::Scalar(_) => false,
    };
    (!boolean).then(|| "cel expression must evaluate to a bool".to_owned())
}

struct Checker<'t> {
    text: &'t str,
    errors: Vec<String>,
}

impl Checker<'_> {
    fn follow<'a>(&mut self, expr: &'a IdedExpr, scope: &BTreeMap<&'a str, Known<'a>>) -> Known<'a> {
        match &expr.expr {
            Expr::Ident(name) => match scope.get(name.as_str()) {
                Some(known) => *known,
                None if TYPES.contains(&name.as_str()) => Known::Nothing,
                None => {
                    let message = format!("undeclared reference to '{name}' (in container '')");
                    self.complain(name, message);
                    Known::Nothing
                }
            },
            Expr::Select(select) => {
                let operand = self.follow(&select.operand, scope);
                let found = self.field(operand, &select.field);
                if select.test { Known::Scalar(Type::Boolean) } else { found }
            }
            Expr::Call(call) => {
                let namespace = matches!(
                    call.target.as_deref().map(|target| &target.expr),
                    Some(Expr::Ident(name)) if !scope.contains_key(name.as_str())
                );
                if OPAQUE_MACROS.contains(&call.func_name.as_str()) {
                    return Known::Nothing;
                }
                if let Some(target) = call.target.as_deref().filter(|_| !namespace) {
                    self.follow(target, scope);
                }
                let arguments: Vec<Known<'a>> = call.args.iter().map(|arg| self.follow(arg, scope)).collect();
                match (call.func_name.as_str(), arguments.as_slice()) {
                    (operators::INDEX, [container, _]) => element(*container),
                    _ => Known::Nothing,
                }
            }
            Expr::Comprehension(c) => {
                let range = self.follow(&c.iter_range, scope);
                self.follow(&c.accu_init, scope);
                let mut inner = scope.clone();
                let keys_only = matches!(range, Known::Schema(node) if node.kind != Some(Type::Array));
                inner.insert(&c.iter_var, if keys_only { Known::Nothing } else { element(range) });
                if let Some(second) = &c.iter_var2 {
                    inner.insert(&c.iter_var, Known::Nothing);
                    inner.insert(second, element(range));
                }
                inner.insert(&c.accu_var, Known::Nothing);
                self.follow(&c.loop_step, &inner);
                Known::Nothing
            }
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Known::Scalar(Type::Boolean),
                LiteralValue::Int(_) | LiteralValue::UInt(_) => Known::Scalar(Type::Integer),
                LiteralValue::Double(_) => Known::Scalar(Type::Number),
                LiteralValue::String(_) => Known::Scalar(Type::String),
                LiteralValue::Bytes(_) | LiteralValue::Null => Known::Nothing,
            },
            _ => {
                for child in children(expr) {
                    self.follow(child, scope);
                }
                Known::Nothing
            }
        }
    }

    fn field<'a>(&mut self, operand: Known<'a>, field: &str) -> Known<'a> {
        let found = match operand {
            Known::Nothing => return Known::Nothing,
            Known::Metadata if matches!(field, "name" | "generateName") => Some(Known::Scalar(Type::String)),
            Known::Resource(_) if matches!(field, "apiVersion" | "kind") => Some(Known::Scalar(Type::String)),
            Known::Resource(_) if field == "metadata" => Some(Known::Metadata),
            Known::Resource(node) | Known::Schema(node) if node.kind == Some(Type::Object) => {
                if let Some(Additional::Each(each)) = &node.additional {
                    return known(each);
                }
                let named = node.properties.iter().find(|(name, _)| escape(name).as_deref() == Some(field));
                named.filter(|(_, child)| is_typed(child)).map(|(_, child)| known(child))
            }
            // Selecting from something that has no fields is another complaint, and rare.
            _ => return Known::Nothing,
        };
        found.unwrap_or_else(|| {
            self.complain(&format!(".{field}"), format!("undefined field '{field}'"));
            Known::Nothing
        })
    }

    /// The parser does not keep positions, so the first place where `what` stands as a word is shown.
    fn complain(&mut self, what: &str, message: String) {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let at = self
            .text
            .match_indices(what)
            .find(|(i, _)| {
                let before = self.text[..*i].chars().next_back();
                let after = self.text[i + what.len()..].chars().next();
                !after.is_some_and(word) && (what.starts_with('.') || !before.is_some_and(word))
            })
            .map_or(0, |(i, _)| i);
        let line_start = self.text[..at].rfind('\n').map_or(0, |i| i + 1);
        let line = self.text[line_start..].lines().next().unwrap_or_default();
        let row = self.text[..at].matches('\n').count() + 1;
        let column = self.text[line_start..at].chars().count();
        let dots = ".".repeat(column);
        self.errors.push(format!("ERROR: <input>:{row}:{}: {message}\n | {line}\n | {dots}^", column + 1));
    }
}

fn known(node: &Node) -> Known<'_> {
    if node.int_or_string {
        Known::Nothing
    } else if node.embedded {
        Known::Resource(node)
    } else {
        Known::Schema(node)
    }
}

/// What a list or map holds.
fn element(container: Known<'_>) -> Known<'_> {
    let Known::Schema(node) = container else { return Known::Nothing };
    match (&node.items, &node.additional) {
        (Some(items), _) => known(items),
        (None, Some(Additional::Each(each))) => known(each),
        _ => Known::Nothing,
    }
}
