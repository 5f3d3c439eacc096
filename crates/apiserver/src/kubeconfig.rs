//! The file a client finds the server by.

use std::net::SocketAddr;

/// A kubeconfig for a server listening on `address`, with the token it asks for if it does.
///
/// An unspecified address (`0.0.0.0`, `::`) becomes the loopback one: the file is for this machine.
pub fn kubeconfig(address: SocketAddr, token: Option<&str>) -> String {
    let host = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".to_owned(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => "[::1]".to_owned(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    let user = match token {
        // JSON strings are YAML strings, whatever the token contains.
        Some(token) => format!("{{token: {}}}", serde_json::Value::from(token)),
        None => "{}".to_owned(),
    };
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n- name: embedded\n  cluster:\n    server: http://{host}:{port}\n\
         users:\n- name: admin\n  user: {user}\n\
         contexts:\n- name: embedded\n  context:\n    cluster: embedded\n    user: admin\n    namespace: default\n\
         current-context: embedded\n",
        port = address.port(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_names_where_the_server_can_be_reached() {
        let text = kubeconfig("0.0.0.0:8080".parse().unwrap(), Some("a\"b"));
        assert!(text.contains("server: http://127.0.0.1:8080\n"), "{text}");
        assert!(text.contains(r#"{token: "a\"b"}"#), "{text}");
        assert!(kubeconfig("[::1]:1".parse().unwrap(), None).contains("http://[::1]:1\n"));
    }
}
