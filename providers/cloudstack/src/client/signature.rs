//! Keys, and the signature that proves a request is theirs. Pure: no clock, no network.
//!
//! The server signs what it received with the same secret and compares, so every byte counts: names sorted as sent,
//! values encoded as Java's `URLEncoder` would with spaces as `%20`, the whole text in lower case, HMAC-SHA1. The server
//! knows no other digest.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// A pair of keys of one user. Neither shows in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    api_key: String,
    secret_key: String,
}

impl Credentials {
    /// Of these keys.
    pub fn new(api_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        Self { api_key: api_key.into(), secret_key: secret_key.into() }
    }

    /// What the server knows the user by.
    pub(crate) fn api_key(&self) -> &str {
        &self.api_key
    }

    /// The parameters with their signature, as a query string or form body.
    pub(crate) fn signed(&self, parameters: &[(String, String)]) -> String {
        let mut text: String =
            parameters.iter().map(|(name, value)| format!("{}={}&", encode(name), encode(value))).collect();
        text.push_str("signature=");
        text.push_str(&encode(&self.signature(parameters)));
        text
    }

    /// A digest of a text that only who has the secret key can make.
    pub(crate) fn digest(&self, text: &str) -> Vec<u8> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret_key.as_bytes());
        hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
    }

    /// The signature of these parameters.
    fn signature(&self, parameters: &[(String, String)]) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, self.secret_key.as_bytes());
        STANDARD.encode(hmac::sign(&key, text_to_sign(parameters).as_bytes()))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// What is signed: sorted by name as sent, values encoded, all in lower case.
fn text_to_sign(parameters: &[(String, String)]) -> String {
    let mut sorted: Vec<&(String, String)> = parameters.iter().collect();
    // Java sorts by UTF-16 code units; names are ASCII, where bytes sort alike.
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    let pairs: Vec<String> = sorted.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    pairs.join("&").to_lowercase()
}

/// A text as Java's `URLEncoder` writes it, with spaces as `%20`: of the punctuation only `.-*_` stays bare. Encoders by
/// RFC 3986 leave `~` as it is and are refused for it.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => {
                encoded.push(char::from(byte));
            }
            other => {
                encoded.push('%');
                for digit in [other >> 4, other & 15] {
                    encoded.push(char::from_digit(u32::from(digit), 16).unwrap_or('0').to_ascii_uppercase());
                }
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn values_are_encoded_as_java_does_it() {
        for (plain, encoded) in [
            ("a b", "a%20b"),
            ("a+b", "a%2Bb"),
            ("a~b", "a%7Eb"),
            ("a*b", "a*b"),
            ("a'b(c)!", "a%27b%28c%29%21"),
            ("a/b:c@d", "a%2Fb%3Ac%40d"),
            ("ü€漢", "%C3%BC%E2%82%AC%E6%BC%A2"),
        ] {
            assert_eq!(encode(plain), encoded);
        }
    }

    #[test]
    fn the_text_is_sorted_as_sent_capitals_first_and_lower_cased() {
        let text = text_to_sign(&parameters(&[
            ("command", "listZones"),
            ("apiKey", "K E"),
            ("Zebra", "Ü"),
            ("tags[0].key", "a/b"),
        ]));
        assert_eq!(text, "zebra=%c3%9c&apikey=k%20e&command=listzones&tags[0].key=a%2fb");
    }

    #[test]
    fn the_signature_is_base64_of_hmac_sha1() {
        // The example of CloudStack's own documentation on signing.
        let credentials = Credentials::new(
            "plgWJfZK4gyS3mOMTVmjUVg-X-jlWlnfaUJ9GAbBbf9EdM-kAYMmAiLqzzq1ElZLYq_u38zCm0bewzGUdP66mg",
            "VDaACYb0LV9eNjTetIOElcVQkvJck_J_QljX_FcHRj87ZKiy0z0ty0ZsYBkoXkY9b7eq1EhwJaw7FF3akA3KBQ",
        );
        let mut sent = parameters(&[("command", "listUsers"), ("response", "json")]);
        sent.push(("apiKey".to_owned(), credentials.api_key().to_owned()));
        assert_eq!(credentials.signature(&sent), "TTpdDq/7j/J58XCRHomKoQXEQds=");
        assert!(credentials.signed(&sent).ends_with("&signature=TTpdDq%2F7j%2FJ58XCRHomKoQXEQds%3D"));
    }

    #[test]
    fn keys_do_not_show() {
        assert_eq!(format!("{:?}", Credentials::new("key", "secret")), "Credentials(…)");
    }
}
