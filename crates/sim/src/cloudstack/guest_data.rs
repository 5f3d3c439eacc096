//! What a machine makes of its user data, as far as joining a cluster goes. It reads what cloud-init would: base64, gzip by its
//! first bytes, MIME multipart; and finds kubelet's settings wherever they are written.

use std::io::Read as _;

use base64::Engine as _;
use k8s_openapi::api::core::v1::Taint;

/// What kubelet was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GuestData {
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) provider_id: Option<String>,
    pub(crate) max_pods: Option<i64>,
}

impl GuestData {
    /// Reads user data as it was given to the server; why nothing can be made of it otherwise.
    pub(crate) fn read(encoded: &str, instance_id: &str) -> Result<Self, String> {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(encoded)
            .map_err(|error| format!("user data is not base64: {error}"))?;
        let bytes = if bytes.starts_with(b"\x1f\x8b") {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(bytes.as_slice())
                .read_to_end(&mut plain)
                .map_err(|error| format!("user data is not gzip: {error}"))?;
            plain
        } else {
            bytes
        };
        let text = String::from_utf8(bytes).map_err(|_| "user data is not text".to_owned())?;
        let parts = parts(&text)?;
        let mut data = Self::default();
        for part in parts {
            // What cloud-init would fill in.
            let part = part.replace("{{ ds.meta_data.instance_id }}", instance_id);
            // What a script finds out by `cloud-init query instance_id`.
            let part = part.replace("$instance_id", instance_id);
            let words = |name: &str| setting(&part, name).unwrap_or_default().to_owned();
            for pair in words("node-labels").split(',').filter(|pair| !pair.is_empty()) {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                data.labels.push((key.to_owned(), value.to_owned()));
            }
            for taint in words("register-with-taints").split(',').filter(|taint| !taint.is_empty()) {
                data.taints.push(read_taint(taint)?);
            }
            let max_pods = setting(&part, "max-pods").and_then(|number| number.parse().ok());
            data.max_pods = data.max_pods.or(max_pods);
            let provider_id = setting(&part, "provider-id").map(str::to_owned);
            data.provider_id = data.provider_id.or(provider_id);
        }
        Ok(data)
    }
}

/// The parts of a MIME document, or the whole text if it is none.
fn parts(text: &str) -> Result<Vec<String>, String> {
    if !text.to_ascii_lowercase().starts_with("content-type: multipart/") {
        return Ok(vec![text.to_owned()]);
    }
    let boundary = text
        .split_once("boundary=")
        .map(|(_, rest)| rest.trim_start_matches('"'))
        .and_then(|rest| rest.split(['"', '\r', '\n', ';']).next())
        .filter(|boundary| !boundary.is_empty())
        .ok_or("user data says it is multipart and names no boundary")?;
    if !text.contains(&format!("--{boundary}--")) {
        return Err("user data is multipart and has no end".to_owned());
    }
    let line = format!("--{boundary}");
    let bodies = text.split(&line).skip(1).filter(|part| !part.starts_with("--"));
    bodies.map(|part| body(&part.replace("\r\n", "\n"))).collect()
}

/// What a part of a MIME document says. Nobody runs a script that does not say with what.
fn body(part: &str) -> Result<String, String> {
    let Some((head, body)) = part.split_once("\n\n") else { return Ok(String::new()) };
    let head = head.to_ascii_lowercase();
    let body = if head.contains("content-transfer-encoding: base64") {
        let letters: String = body.split_whitespace().collect();
        let bytes = base64::engine::general_purpose::STANDARD.decode(letters);
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        text.ok_or("a part of user data says it is base64 and is none")?
    } else {
        body.to_owned()
    };
    if head.contains("content-type: text/x-shellscript") && !body.starts_with("#!") {
        return Err("a part of user data says it is a script and does not begin with #!".to_owned());
    }
    Ok(body)
}

/// The value of `--name=value` or `name: value`, wherever it stands.
fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(name) {
        rest = after;
        let begins = before.is_empty() || before.ends_with(['-', ' ', '\n', '"', '\'', '\t']);
        if begins && after.starts_with(['=', ':']) {
            let value = after[1..].trim_start_matches([' ', '"', '\'']);
            return Some(value.split([' ', '"', '\'', '\n', '\\']).next().unwrap_or_default());
        }
    }
    None
}

fn read_taint(text: &str) -> Result<Taint, String> {
    let (pair, effect) =
        text.rsplit_once(':').ok_or_else(|| format!("taint {text:?} in user data has no effect"))?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Ok(Taint {
        key: key.to_owned(),
        value: Some(value.to_owned()).filter(|value| !value.is_empty()),
        effect: effect.to_owned(),
        ..Taint::default()
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read(bytes: &[u8]) -> Result<GuestData, String> {
        GuestData::read(&base64::engine::general_purpose::STANDARD.encode(bytes), "1-2")
    }

    #[test]
    fn kubelets_settings_are_found_in_scripts_compressed_data_and_parts() {
        let script = "#!/bin/bash\nkubelet --node-labels=a=b,c=d --register-with-taints=k=v:NoSchedule,u:NoExecute --max-pods=50\n";
        let plain = read(script.as_bytes()).expect("a script");
        assert_eq!(plain.labels, [("a".into(), "b".into()), ("c".into(), "d".into())]);
        assert_eq!(plain.taints.len(), 2);
        assert_eq!((plain.taints[1].key.as_str(), plain.taints[1].effect.as_str()), ("u", "NoExecute"));
        assert_eq!(plain.max_pods, Some(50));
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(script.as_bytes()).expect("memory");
        assert_eq!(read(&gzip.finish().expect("memory")).expect("gzip"), plain);
        let parts = format!(
            "Content-Type: multipart/mixed; boundary=\"X\"\nMIME-Version: 1.0\n\n--X\nContent-Type: text/x-shellscript\n\n{script}\n--X\nContent-Type: text/cloud-config\n\nprovider-id: \"cloudstack:///{{{{ ds.meta_data.instance_id }}}}\"\n--X--\n"
        );
        let parts = read(parts.as_bytes()).expect("parts");
        assert_eq!(parts.provider_id.as_deref(), Some("cloudstack:///1-2"));
        assert_eq!(parts.labels, plain.labels);
    }

    #[test]
    fn a_script_that_asks_for_the_id_of_its_machine_is_told() {
        let script = "instance_id=\"$(cloud-init query instance_id)\"\nprovider_id=\" --provider-id=external-cloudstack://$instance_id\"\n";
        let data = read(script.as_bytes()).expect("a script");
        assert_eq!(data.provider_id.as_deref(), Some("external-cloudstack://1-2"));
    }

    #[test]
    fn data_nobody_can_read_says_why() {
        assert!(GuestData::read("&&", "1").is_err());
        assert!(read(b"\x1f\x8bnope").expect_err("no gzip").contains("gzip"));
        assert!(read(b"Content-Type: multipart/mixed; boundary=\"X\"\n\n--X\n\nx").is_err(), "no end");
        let script = |text: &str| {
            let part = format!("Content-Type: text/x-shellscript\n\n{text}");
            read(format!("Content-Type: multipart/mixed; boundary=\"X\"\n\n--X\n{part}\n--X--\n").as_bytes())
        };
        assert!(script("#!/bin/sh\necho").is_ok());
        assert!(script("#include\nhttps://a/b").expect_err("no script").contains("#!"));
    }
}
