//! The token that carries a list from one page to the next: the revision it shows, and where the next page starts.
//!
//! The format is kube-apiserver's. Clients may not look inside, but some do, and forged ones have to be told apart.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::json;

const VERSION: &str = "meta.k8s.io/v1";

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContinueToken {
    /// The revision all pages show; `None` goes on with whatever is there now.
    pub(crate) revision: Option<u64>,
    /// The first key of the next page, relative to the collection.
    pub(crate) start: String,
    /// How many objects are left from there on, if it was counted: counting again for every page would make a chunked
    /// list quadratic. kube-apiserver's tokens do not have it.
    pub(crate) left: Option<u64>,
}

impl ContinueToken {
    pub(crate) fn encode(&self) -> String {
        let revision = self.revision.map_or(json!(-1), |revision| json!(revision));
        let mut token = json!({"v": VERSION, "rv": revision, "start": format!("/{}", self.start)});
        if let Some(left) = self.left {
            token["left"] = left.into();
        }
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    pub(crate) fn decode(text: &str) -> Result<Self, String> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                base64::DecodeError::InvalidLength(at) => at,
                base64::DecodeError::InvalidPadding => text.len(),
            };
            format!("illegal base64 data at input byte {at}")
        })?;
        let token = json::parse(&bytes)?.value;
        let version = token.get("v").and_then(Value::as_str).unwrap_or_default();
        if version != VERSION {
            return Err(format!("server does not recognize this encoded version {version}"));
        }
        let revision = match token.get("rv").and_then(Value::as_i64) {
            Some(-1) => None,
            Some(revision @ 1..) => Some(revision.unsigned_abs()),
            _ => return Err(format!("incorrect encoded start resourceVersion (version {VERSION})")),
        };
        let start = token.get("start").and_then(Value::as_str).unwrap_or_default();
        if start.is_empty() {
            return Err(format!("encoded start key empty (version {VERSION})"));
        }
        // A key that climbs out of its collection is forged.
        let start = start.strip_prefix('/').unwrap_or(start);
        if start.split('/').any(|step| step == "..") {
            return Err(start.to_owned());
        }
        let left = token.get("left").and_then(Value::as_u64);
        Ok(Self { revision, start: start.to_owned(), left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_journey() {
        for (revision, left) in [(Some(42), Some(7)), (None, None)] {
            let token = ContinueToken { revision, start: "default/a\0".into(), left };
            assert_eq!(ContinueToken::decode(&token.encode()), Ok(token));
        }
    }

    #[test]
    fn forged_tokens_are_told_apart() {
        let forge = |text: &str| ContinueToken::decode(&URL_SAFE_NO_PAD.encode(text)).unwrap_err();
        assert_eq!(
            ContinueToken::decode("foo").unwrap_err(),
            "invalid character '~' looking for beginning of value"
        );
        assert!(ContinueToken::decode("!").unwrap_err().starts_with("illegal base64"));
        assert!(forge("{}").contains("does not recognize"));
        assert!(forge(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"/a"}"#).contains("incorrect encoded start"));
        assert!(forge(r#"{"v":"meta.k8s.io/v1","rv":3}"#).contains("start key empty"));
        assert_eq!(forge(r#"{"v":"meta.k8s.io/v1","rv":3,"start":"/../x"}"#), "../x");
    }

    proptest::proptest! {
        #[test]
        fn any_token_decodes_or_is_refused(text in ".*") {
            let _ = ContinueToken::decode(&text);
        }
    }
}
