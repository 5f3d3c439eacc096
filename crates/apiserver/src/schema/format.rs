//! The string formats a schema may demand, as kube-apiserver enforces them.
//!
//! An unknown format is ignored, as the real server does (it only warns). Several checks are laxer than their RFCs on
//! purpose: leading zeros in IPv4 addresses, Scala-style durations, seconds of a date-time compared as text.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use karpenter_primitives::GoDuration;
use regex::Regex;

/// A format that constrains strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    BsonObjectId,
    Uri,
    Email,
    Hostname,
    Ipv4,
    Ipv6,
    Cidr,
    Mac,
    Uuid,
    Uuid3,
    Uuid4,
    Uuid5,
    Isbn,
    Isbn10,
    Isbn13,
    CreditCard,
    Ssn,
    HexColor,
    RgbColor,
    Byte,
    Password,
    Date,
    Duration,
    DateTime,
    ShortName,
    LongName,
}

impl Format {
    /// `name` may be written with or without dashes.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name.replace('-', "").as_str() {
            "bsonobjectid" => Self::BsonObjectId,
            "uri" => Self::Uri,
            "email" => Self::Email,
            "hostname" => Self::Hostname,
            "ipv4" => Self::Ipv4,
            "ipv6" => Self::Ipv6,
            "cidr" => Self::Cidr,
            "mac" => Self::Mac,
            "uuid" => Self::Uuid,
            "uuid3" => Self::Uuid3,
            "uuid4" => Self::Uuid4,
            "uuid5" => Self::Uuid5,
            "isbn" => Self::Isbn,
            "isbn10" => Self::Isbn10,
            "isbn13" => Self::Isbn13,
            "creditcard" => Self::CreditCard,
            "ssn" => Self::Ssn,
            "hexcolor" => Self::HexColor,
            "rgbcolor" => Self::RgbColor,
            "byte" => Self::Byte,
            "password" => Self::Password,
            "date" => Self::Date,
            "duration" => Self::Duration,
            "datetime" => Self::DateTime,
            "k8sshortname" => Self::ShortName,
            "k8slongname" => Self::LongName,
            _ => return None,
        })
    }

    pub(super) fn accepts(self, text: &str) -> bool {
        match self {
            Self::BsonObjectId => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
            Self::Uri => is_request_uri(text),
            Self::Email => is_email(text),
            Self::Hostname => is_hostname(text),
            Self::Ipv4 => text.contains('.') && parse_ip_sloppy(text),
            Self::Ipv6 => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
            Self::Cidr => is_cidr_sloppy(text),
            Self::Mac => is_mac(text),
            Self::Uuid => is_uuid(text, None, false),
            Self::Uuid3 => is_uuid(text, Some(b'3'), false),
            Self::Uuid4 => is_uuid(text, Some(b'4'), true),
            Self::Uuid5 => is_uuid(text, Some(b'5'), true),
            Self::Isbn => is_isbn10(text) || is_isbn13(text),
            Self::Isbn10 => is_isbn10(text),
            Self::Isbn13 => is_isbn13(text),
            Self::CreditCard => is_credit_card(text),
            Self::Ssn => text.len() == 11 && SSN.is_match(text),
            Self::HexColor => HEX_COLOR.is_match(text),
            Self::RgbColor => RGB_COLOR.is_match(text),
            Self::Byte => BASE64.is_match(text),
            Self::Password => true,
            Self::Date => is_date(text),
            Self::Duration => duration_nanos(text).is_some(),
            Self::DateTime => is_date_time(text),
            Self::ShortName => text.len() <= 63 && SHORT_NAME.is_match(text),
            Self::LongName => text.len() <= 253 && LONG_NAME.is_match(text),
        }
    }
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|_| unreachable!("a literal pattern of this file compiles"))
}

static SSN: LazyLock<Regex> = LazyLock::new(|| pattern("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static HEX_COLOR: LazyLock<Regex> = LazyLock::new(|| pattern("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    let part = r"\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*";
    pattern(&format!(r"^rgb\({part},{part},{part}\)$"))
});
static BASE64: LazyLock<Regex> = LazyLock::new(|| {
    pattern("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$")
});
static SHORT_NAME: LazyLock<Regex> = LazyLock::new(|| pattern("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"));
static LONG_NAME: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"));
static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    let c = r"a-zA-Z0-9\p{S}\p{L}";
    pattern(&format!(
        r"^([{c}]((-?[{c}]{{0,62}})?)|([{c}](([{c}-]{{0,61}}[{c}])?)(\.)){{1,}}([a-zA-Z\p{{L}}]){{2,63}})$"
    ))
});
static CREDIT_CARD: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}\
         |3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
    )
});
static TIME_OF_DAY: LazyLock<Regex> =
    LazyLock::new(|| pattern("^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$"));
static DURATION_PART: LazyLock<Regex> = LazyLock::new(|| pattern(r"([0-9]+)\s*([A-Za-zµ]+)"));

/// Go's `url.ParseRequestURI`: an absolute URI or an absolute path.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let rest = match text.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => {
            if !rest.starts_with('/') {
                // Opaque, as in mailto:someone@example.com.
                return true;
            }
            rest
        }
        _ if text.starts_with('/') => text,
        _ => return false,
    };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match path.strip_prefix("//") {
        Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
        None => ("", path),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port_ok = match host.rsplit_once(':') {
        Some((_, port)) if !host.ends_with(']') => port.bytes().all(|b| b.is_ascii_digit()),
        _ => true,
    };
    let host_ok = !host.contains([' ', '<', '>', '"', '\\', '^', '`', '{', '|', '}']);
    port_ok && host_ok && percent_encoding_ok(path) && !query.contains(' ')
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

fn percent_encoding_ok(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().enumerate().all(|(i, b)| {
        *b != b'%' || matches!(bytes.get(i + 1..i + 3), Some(hex) if hex.iter().all(u8::is_ascii_hexdigit))
    })
}

/// An address as mail programs write it, `local@domain` or `Name <local@domain>`.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = match text.rsplit_once('<') {
        Some((_, rest)) => match rest.strip_suffix('>') {
            Some(address) => address,
            None => return false,
        },
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    let dotted =
        |s: &str| !s.is_empty() && s.split('.').all(|part| !part.is_empty() && part.chars().all(atom));
    let literal = domain.starts_with('[') && domain.ends_with(']');
    (quoted || dotted(local)) && (literal || dotted(domain))
}

fn is_hostname(text: &str) -> bool {
    HOSTNAME.is_match(text) && text.len() <= 255 && text.split('.').all(|label| label.len() <= 63)
}

/// An IPv4 or IPv6 address; zeros may lead the parts of an IPv4 one.
fn parse_ip_sloppy(text: &str) -> bool {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().is_ok();
    }
    let parts: Vec<&str> = text.split('.').collect();
    parts.len() == 4
        && parts.iter().all(|part| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_digit())
                && part.parse::<u32>().is_ok_and(|octet| octet <= 255)
        })
}

fn is_cidr_sloppy(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let longest = if address.contains(':') { 128 } else { Ipv4Addr::BITS };
    parse_ip_sloppy(address)
        && !length.is_empty()
        && length.bytes().all(|b| b.is_ascii_digit())
        && length.parse::<u32>().is_ok_and(|n| n <= longest)
}

/// 6, 8 or 20 octets with `:` or `-`, or groups of four digits with `.`.
fn is_mac(text: &str) -> bool {
    let groups = |separator: char, digits: usize, counts: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len())
            && parts.iter().all(|p| p.len() == digits && p.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    groups(':', 2, &[6, 8, 20]) || groups('-', 2, &[6, 8, 20]) || groups('.', 4, &[3, 4, 10])
}

/// Dashes between the five groups may each be left out.
fn is_uuid(text: &str, version: Option<u8>, strict_variant: bool) -> bool {
    let mut rest = text.as_bytes();
    for (i, length) in [8usize, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix(b"-").unwrap_or(rest);
        }
        let Some((group, after)) = rest.split_at_checked(length) else { return false };
        let first = group.first().copied().unwrap_or_default();
        let version_ok = i != 2 || version.is_none_or(|v| first == v);
        let variant_ok =
            i != 3 || !strict_variant || matches!(first.to_ascii_lowercase(), b'8' | b'9' | b'a' | b'b');
        if !group.iter().all(u8::is_ascii_hexdigit) || !version_ok || !variant_ok {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

fn isbn_digits(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '-').collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = isbn_digits(text);
    let Some((head, check)) = digits.as_bytes().split_at_checked(9) else { return false };
    let check = match check {
        [b'X'] => 10,
        [d] if d.is_ascii_digit() => u32::from(d - b'0'),
        _ => return false,
    };
    head.iter().all(u8::is_ascii_digit)
        && (head.iter().zip(1..).map(|(d, weight)| weight * u32::from(d - b'0')).sum::<u32>() + 10 * check)
            % 11
            == 0
}

fn is_isbn13(text: &str) -> bool {
    let digits = isbn_digits(text);
    if digits.len() != 13 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let weighted: u32 =
        digits.bytes().enumerate().map(|(i, d)| if i % 2 == 0 { 1 } else { 3 } * u32::from(d - b'0')).sum();
    weighted.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let luhn: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(i, d)| {
            let digit = u32::from(d - b'0') * if i % 2 == 1 { 2 } else { 1 };
            digit / 10 + digit % 10
        })
        .sum();
    CREDIT_CARD.is_match(&digits) && luhn.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    let shaped = text.len() == 10
        && text
            .bytes()
            .enumerate()
            .all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() });
    shaped && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(m) = TIME_OF_DAY.captures(time) else { return false };
    is_date(date) && &m[1] <= "23" && &m[2] <= "59" && &m[3] <= "59"
}

/// Go's `time.ParseDuration`, or the Scala forms (`3 days`) it is tried as after that.
pub(super) fn duration_nanos(text: &str) -> Option<i64> {
    if let Ok(duration) = text.parse::<GoDuration>() {
        return Some(duration.as_nanos());
    }
    let mut total: Option<i64> = None;
    for part in DURATION_PART.captures_iter(text) {
        let factor: i64 = part[1].parse().ok()?;
        let unit = part[2].to_lowercase();
        for (variants, nanos) in SCALA_UNITS {
            for (i, variant) in variants.iter().enumerate() {
                let last = i + 1 == variants.len();
                if unit == *variant || (last && unit.starts_with(variant)) {
                    total = Some(total.unwrap_or_default().wrapping_add(factor.wrapping_mul(*nanos)));
                }
            }
        }
    }
    total
}

/// The last variant of each unit also stands for everything that begins with it.
const SCALA_UNITS: &[(&[&str], i64)] = &[
    (&["ns", "nano"], 1),
    (&["us", "µs", "micro"], 1_000),
    (&["ms", "milli"], 1_000_000),
    (&["s", "sec"], 1_000_000_000),
    (&["m", "min"], 60_000_000_000),
    (&["h", "hr", "hour"], 3_600_000_000_000),
    (&["d", "day"], 86_400_000_000_000),
    (&["w", "wk", "week"], 604_800_000_000_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_accepts_and_refuses_as_the_real_server_does() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            (
                "date-time",
                &["2026-11-15T09:00:00Z", "2026-11-15t09:00:00.123+02:00"],
                &["2026-11-15", "2026-02-30T00:00:00Z", "2026-11-15T24:00:00Z", ""],
            ),
            ("date", &["2026-11-15"], &["2026-1-5", "2026-02-30"]),
            ("duration", &["1h30m", "-1.5s", "3 days", "0"], &["", "1x", "5"]),
            ("byte", &["aGk=", "aGkh"], &["", "aGk", "a b="]),
            ("ipv4", &["10.0.0.1", "010.0.0.1"], &["10.0.0", "::1", "10.0.0.256"]),
            ("ipv6", &["::1", "2001:db8::1"], &["10.0.0.1", "g::1"]),
            ("cidr", &["10.0.0.0/8", "::/0"], &["10.0.0.0", "10.0.0.0/33"]),
            ("mac", &["00:00:5e:00:53:01", "0000.5e00.5301"], &["00:00:5e"]),
            (
                "uuid",
                &["123E4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"],
                &["123e4567"],
            ),
            ("uuid4", &["123e4567-e89b-42d3-a456-426614174000"], &["123e4567-e89b-12d3-a456-426614174000"]),
            ("uri", &["http://foo.bar/#com", "/abs/dir", "mailto:a@b.c"], &["", "foobar.com", "./rel"]),
            ("email", &["a@b.c", "Ann <a@b.c>"], &["a", "@b", "a@"]),
            ("hostname", &["example.com", "a"], &["-a", "a_b", ""]),
            ("isbn10", &["0321751043", "032-175-1043"], &["0321751044"]),
            ("isbn13", &["978-0321751041"], &["978-0321751042"]),
            ("creditcard", &["4111 1111 1111 1111"], &["4111 1111 1111 1112"]),
            ("ssn", &["111-11-1111"], &["111111111", "11-111-1111"]),
            ("hexcolor", &["#fff", "CCccCC"], &["#ff"]),
            ("rgbcolor", &["rgb(1, 2,3)"], &["rgb(1,2,256)"]),
            ("k8s-short-name", &["a-b"], &["A", "a.b"]),
            ("k8s-long-name", &["a.b-c"], &["a..b"]),
            ("password", &["anything"], &[]),
        ];
        for (name, good, bad) in cases {
            let format = Format::parse(name).unwrap();
            for text in *good {
                assert!(format.accepts(text), "{name} must accept {text:?}");
            }
            for text in *bad {
                assert!(!format.accepts(text), "{name} must refuse {text:?}");
            }
        }
    }

    #[test]
    fn an_unknown_format_is_none() {
        assert_eq!(Format::parse("quantity"), None);
    }
}
