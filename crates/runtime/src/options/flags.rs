//! Flags and environment variables as Go's flag package reads them: what was typed, not yet what it means.

use std::collections::{BTreeMap, BTreeSet};

use super::OptionsError;
use crate::go_duration::GoDuration;

/// The environment, as given.
pub type Environ = BTreeMap<String, String>;

/// What values of a setting look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// Texts separated by commas; its flag may be given several times.
    List,
    /// A text that is never shown.
    Secret,
    Int,
    Bool,
    Duration,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) flag: Option<&'static str>,
    pub(super) env: Option<&'static str>,
    pub(super) kind: Kind,
    pub(super) default: &'static str,
    pub(super) help: &'static str,
}

impl Setting {
    /// What the setting is called in messages: both of its names.
    pub(super) fn names(&self) -> String {
        match (self.flag, self.env) {
            (Some(flag), Some(env)) => format!("--{flag} ({env})"),
            (Some(flag), None) => format!("--{flag}"),
            (None, env) => env.unwrap_or_default().to_owned(),
        }
    }
}

/// The value of each setting as text, by the flag's name or, without one, the variable's.
#[derive(Debug, Default)]
pub(super) struct Typed {
    values: BTreeMap<&'static str, String>,
    /// Those that a flag gave.
    flagged: BTreeSet<&'static str>,
    pub(super) warnings: Vec<String>,
}

impl Typed {
    /// Flags before environment before defaults.
    pub(super) fn read<'a>(
        settings: &'static [Setting],
        args: impl IntoIterator<Item = &'a str>,
        environ: &Environ,
    ) -> Result<Self, OptionsError> {
        let mut typed = Self::default();
        for setting in settings {
            let text = typed.read_variable(setting, environ).unwrap_or_else(|| setting.default.to_owned());
            typed.values.insert(key(setting), text);
        }
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            if arg == "--" {
                break;
            }
            typed.read_flag(settings, arg, &mut args)?;
        }
        if let Some(stray) = args.next() {
            return Err(OptionsError::UnexpectedArgument(stray.to_owned()));
        }
        Ok(typed)
    }

    pub(super) fn text(&self, name: &'static str) -> &str {
        self.values.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Whether it was a flag that said so.
    pub(super) fn is_flagged(&self, name: &'static str) -> bool {
        self.flagged.contains(name)
    }

    /// As Go does, a number, truth value or duration that cannot be read is as if not set; unlike Go we say so.
    fn read_variable(&mut self, setting: &Setting, environ: &Environ) -> Option<String> {
        let name = setting.env?;
        let text = environ.get(name)?;
        let readable = match setting.kind {
            Kind::Text | Kind::List | Kind::Secret => true,
            Kind::Int => parse_decimal(text).is_some(),
            Kind::Bool => parse_bool(text).is_some(),
            Kind::Duration => text.parse::<GoDuration>().is_ok(),
        };
        if !readable {
            let expected = match setting.kind {
                Kind::Int => "a whole number",
                Kind::Bool => "true or false",
                _ => "a duration such as 10s",
            };
            self.warnings.push(format!(
                "{name}={text:?} is not {expected}; the default {:?} is used",
                setting.default
            ));
            return None;
        }
        match setting.kind {
            Kind::Bool => parse_bool(text).map(|value| value.to_string()),
            _ => Some(text.clone()),
        }
    }

    fn read_flag<'a>(
        &mut self,
        settings: &'static [Setting],
        arg: &str,
        rest: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), OptionsError> {
        let Some(name) =
            arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|name| !name.is_empty())
        else {
            return Err(OptionsError::UnexpectedArgument(arg.to_owned()));
        };
        if name.starts_with(['-', '=']) {
            return Err(OptionsError::BadSyntax(arg.to_owned()));
        }
        let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
        let name = own_name(name);
        let Some(setting) = settings.iter().find(|setting| setting.flag == Some(name)) else {
            if matches!(name, "help" | "h") {
                return Err(OptionsError::Help);
            }
            return Err(OptionsError::UnknownFlag(name.to_owned()));
        };
        let value = match (value, setting.kind) {
            (Some(value), _) => value,
            (None, Kind::Bool) => "true",
            (None, _) => {
                rest.next().ok_or_else(|| OptionsError::MissingValue { setting: setting.names() })?
            }
        };
        let problem = match setting.kind {
            Kind::Text | Kind::List | Kind::Secret => None,
            Kind::Bool => (!matches!(value, "true" | "false")).then(|| "must be true or false".to_owned()),
            Kind::Int => parse_int(value).is_none().then(|| "must be a whole number".to_owned()),
            Kind::Duration => value
                .parse::<GoDuration>()
                .err()
                .map(|error| format!("must be a duration such as 10s: {error}")),
        };
        if let Some(problem) = problem {
            return Err(OptionsError::Invalid { setting: setting.names(), value: value.to_owned(), problem });
        }
        let key = key(setting);
        let repeated = setting.kind == Kind::List && self.is_flagged(key);
        let value = if repeated { format!("{},{value}", self.text(key)) } else { value.to_owned() };
        self.values.insert(key, value);
        self.flagged.insert(key);
        Ok(())
    }
}

/// Our name of a flag that other programs for Cluster API call otherwise.
fn own_name(name: &str) -> &str {
    match name {
        "management-kubeconfig" => "cluster-api-kubeconfig",
        "additional-sync-machine-labels" => "cluster-api-sync-labels",
        "default-arch" => "cluster-api-default-arch",
        name => name,
    }
}

/// The name a setting is asked for by.
pub(super) fn key(setting: &Setting) -> &'static str {
    setting.flag.or(setting.env).unwrap_or_default()
}

/// Go's `ParseBool`.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// An integer in base ten, as environment variables are read.
fn parse_decimal(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// An integer as Go's literals are written, as flags are read: a base prefix, and underscores between digits.
pub(super) fn parse_int(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    // An underscore stands between digits, or between prefix and digits.
    let prefixed = body.len() < lower.len();
    if body.is_empty()
        || body.ends_with('_')
        || body.contains("__")
        || (body.starts_with('_') && !prefixed)
        || body.starts_with(['+', '-'])
    {
        return None;
    }
    let magnitude = i128::from_str_radix(&body.replace('_', ""), radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}
