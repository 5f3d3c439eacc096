//! Mistakes planted into a program from outside: it is shown other objects than there are, or its writes are changed on the
//! way. What a rule does not notice then, it would not notice in a program that makes the mistake itself.

use bytes::{Bytes, BytesMut};
use http::Request;
use serde_json::Value;

/// What a program sees of the server, and the server of it.
pub trait Lens: Send + Sync {
    /// An object of this kind on its way to the program.
    fn shown(&self, _kind: &str, _object: &mut Value) {}

    /// A request on its way to the server.
    fn sent(&self, _request: &mut Request<Bytes>) {}
}

/// The body of an answer as it is seen: one object or a list.
pub(super) fn answer(lens: &dyn Lens, body: &[u8]) -> Bytes {
    let Ok(mut answer) = serde_json::from_slice::<Value>(body) else { return Bytes::copy_from_slice(body) };
    let kind = answer["kind"].as_str().unwrap_or_default().to_owned();
    match (kind.strip_suffix("List"), answer["items"].as_array_mut()) {
        (Some(kind), Some(items)) => items.iter_mut().for_each(|item| lens.shown(kind, item)),
        _ => lens.shown(&kind, &mut answer),
    }
    answer.to_string().into()
}

/// Whole lines of a watch as they are seen.
pub(super) fn events(lens: &dyn Lens, chunk: &[u8]) -> Bytes {
    let mut seen = BytesMut::with_capacity(chunk.len());
    for line in chunk.split_inclusive(|byte| *byte == b'\n') {
        match serde_json::from_slice::<Value>(line) {
            Ok(mut event) if event["object"]["kind"].is_string() => {
                let kind = event["object"]["kind"].as_str().unwrap_or_default().to_owned();
                lens.shown(&kind, &mut event["object"]);
                // Readers rely on the type coming first, as in every server's answer.
                let Value::Object(mut event) = event else { continue };
                let (kind, object) = (event.remove("type"), event.remove("object"));
                let line = format!(
                    "{{\"type\":{},\"object\":{}}}\n",
                    kind.unwrap_or_default(),
                    object.unwrap_or_default()
                );
                seen.extend_from_slice(line.as_bytes());
            }
            _ => seen.extend_from_slice(line),
        }
    }
    seen.freeze()
}
