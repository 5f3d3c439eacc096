//! Reading the text form of a selector, token by token like apimachinery, so that it accepts, refuses and complains alike.

use super::{Operator, Requirement, SelectorError, invalid};
use crate::names;
use crate::quote::quote;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Error,
    End,
    ClosedParenthesis,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    GreaterThan,
    Identifier,
    In,
    LessThan,
    NotEquals,
    NotIn,
    OpenParenthesis,
}

pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser { tokens: scan(text), position: 0 };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            (Token::Identifier | Token::Not, _) => {
                let requirement = parser
                    .requirement()
                    .map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?;
                requirements.push(requirement);
                match parser.next() {
                    (Token::End, _) => return Ok(requirements),
                    (Token::Comma, _) => {
                        if let (token, found) = parser.peek()
                            && !matches!(token, Token::Identifier | Token::Not)
                        {
                            return Err(unexpected(&found, ", expected: identifier after ','"));
                        }
                    }
                    (_, found) => return Err(unexpected(&found, ", expected: ',' or 'end of string'")),
                }
            }
            (Token::End, _) => return Ok(requirements),
            (_, found) => return Err(unexpected(&found, ", expected: !, identifier, or 'end of string'")),
        }
    }
}

fn unexpected(found: &str, expectation: &str) -> SelectorError {
    SelectorError(format!("found '{found}'{expectation}"))
}

fn is_special(c: char) -> bool {
    "=!(),><".contains(c)
}

/// A NUL ends the text, unless it directly follows a token, where Go's lexer swallows it.
fn scan(text: &str) -> Vec<(Token, String)> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = rest.chars().next().filter(|&c| c != '\0') else {
            tokens.push((Token::End, String::new()));
            return tokens;
        };
        let (token, literal, consumed) = if is_special(first) { symbol(rest) } else { word(rest) };
        tokens.push((token, literal));
        rest = &rest[consumed..];
        rest = rest.strip_prefix('\0').unwrap_or(rest);
    }
}

fn word(text: &str) -> (Token, String, usize) {
    let end = text.find(|c| is_special(c) || " \t\r\n\0".contains(c)).unwrap_or(text.len());
    let literal = &text[..end];
    let token = match literal {
        "in" => Token::In,
        "notin" => Token::NotIn,
        _ => Token::Identifier,
    };
    (token, literal.to_owned(), end)
}

/// The longest symbol at the start of `text`, which starts with a special character. Every special character is a symbol by
/// itself, so at most one more belongs to it.
fn symbol(text: &str) -> (Token, String, usize) {
    for length in [2, 1] {
        let Some(literal) = text.get(..length) else { continue };
        let token = match literal {
            ")" => Token::ClosedParenthesis,
            "," => Token::Comma,
            "!" => Token::Not,
            "==" => Token::DoubleEquals,
            "=" => Token::Equals,
            ">" => Token::GreaterThan,
            "<" => Token::LessThan,
            "!=" => Token::NotEquals,
            "(" => Token::OpenParenthesis,
            _ => continue,
        };
        return (token, literal.to_owned(), length);
    }
    (Token::Error, format!("error expected: keyword found '{text}'"), text.len())
}

struct Parser {
    tokens: Vec<(Token, String)>,
    position: usize,
}

impl Parser {
    /// The token ahead, `in` and `notin` counting as identifiers: only after a key are they operators.
    fn peek(&self) -> (Token, String) {
        let (token, literal) = self.peek_operator();
        (if matches!(token, Token::In | Token::NotIn) { Token::Identifier } else { token }, literal)
    }

    fn peek_operator(&self) -> (Token, String) {
        self.tokens.get(self.position).cloned().unwrap_or((Token::End, String::new()))
    }

    fn next(&mut self) -> (Token, String) {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let (mut token, mut key) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.next();
        }
        if token != Token::Identifier {
            return Err(unexpected(&key, ", expected: identifier"));
        }
        let complaints = names::qualified_name_errors(&key);
        if !complaints.is_empty() {
            // Go has no field path here and prints it as such.
            return Err(SelectorError(invalid("<nil>", &quote(&key), &complaints.join("; "))));
        }
        if negated {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let mut values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        values.sort_unstable();
        values.dedup();
        Requirement::new(key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, SelectorError> {
        let (token, literal) = self.peek_operator();
        self.position += 1;
        match token {
            Token::In => Ok(Operator::In),
            Token::NotIn => Ok(Operator::NotIn),
            Token::Equals => Ok(Operator::Equals),
            Token::DoubleEquals => Ok(Operator::DoubleEquals),
            Token::NotEquals => Ok(Operator::NotEquals),
            Token::GreaterThan => Ok(Operator::GreaterThan),
            Token::LessThan => Ok(Operator::LessThan),
            _ => Err(unexpected(&literal, ", expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, SelectorError> {
        let (token, literal) = self.next();
        if token != Token::OpenParenthesis {
            return Err(unexpected(&literal, " expected: '('"));
        }
        match self.peek() {
            (Token::Identifier | Token::Comma, first) => {
                let values = self.identifiers()?;
                // The list always ends at a parenthesis; Go names the first token where it would not.
                match self.next() {
                    (Token::ClosedParenthesis, _) => Ok(values),
                    _ => Err(unexpected(&first, ", expected: ')'")),
                }
            }
            (Token::ClosedParenthesis, _) => {
                self.next();
                Ok(vec![String::new()])
            }
            (_, found) => Err(unexpected(&found, ", expected: ',', ')' or identifier")),
        }
    }

    /// The values up to the closing parenthesis; an empty place between commas is the empty value.
    fn identifiers(&mut self) -> Result<Vec<String>, SelectorError> {
        let mut values = Vec::new();
        loop {
            match self.next() {
                (Token::Identifier, literal) => {
                    values.push(literal);
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::ClosedParenthesis, _) => return Ok(values),
                        (_, found) => return Err(unexpected(&found, ", expected: ',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    let ahead = self.peek().0;
                    if values.is_empty() || matches!(ahead, Token::ClosedParenthesis | Token::Comma) {
                        values.push(String::new());
                    }
                    if ahead == Token::ClosedParenthesis {
                        return Ok(values);
                    }
                }
                (_, found) => return Err(unexpected(&found, ", expected: ',', or identifier")),
            }
        }
    }

    fn exact_value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            (Token::Identifier, literal) => Ok(literal),
            (_, found) => Err(unexpected(&found, ", expected: identifier")),
        }
    }
}
