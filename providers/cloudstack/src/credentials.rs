//! Keys from a mounted Secret, exchanged while everything runs.
//!
//! A new pair is tried before it is used; until it works the old one goes on. So a Secret may be written before the old keys
//! are revoked, or a moment after.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::client::http::{HttpError, HttpSettings, HttpTransport};
use crate::client::signature::Credentials;
use crate::client::{Client, Session};

/// How often the files are looked at; Kubernetes itself takes about a minute to change them.
const INTERVAL: Duration = Duration::from_secs(5);

/// What the files of a Secret say.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) api_url: String,
    pub(crate) credentials: Credentials,
}

/// Why there are no keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeysError {
    #[error("{}: {problem}; the Secret needs the keys api-url, api-key and secret-key", path.display())]
    File { path: PathBuf, problem: String },
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// Reads the keys of a mounted Secret.
pub(crate) fn read(directory: &Path) -> Result<Keys, KeysError> {
    let file = |name: &str| {
        let path = directory.join(name);
        let problem = match std::fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
            Ok(_) => "it is empty".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(KeysError::File { path, problem })
    };
    Ok(Keys {
        api_url: file("api-url")?,
        credentials: Credentials::new(file("api-key")?, file("secret-key")?),
    })
}

impl Keys {
    /// A session with these keys.
    pub(crate) fn session(self, settings: &HttpSettings) -> Result<Session, KeysError> {
        let transport = HttpTransport::new(&self.api_url, settings)?;
        let Self { api_url: endpoint, credentials } = self;
        Ok(Session { endpoint, credentials, transport: std::sync::Arc::new(transport) })
    }
}

/// Watches the files and changes the client's session when they change, until stopped.
pub(crate) async fn follow(
    directory: PathBuf,
    mut current: Keys,
    settings: HttpSettings,
    client: Client,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        match read(&directory) {
            Ok(keys) if keys == current => {}
            Ok(keys) => match exchange(&client, keys.clone(), &settings).await {
                Ok(()) => {
                    tracing::info!("CloudStack takes the new keys");
                    current = keys;
                }
                Err(problem) => tracing::error!(%problem, "the new keys are not used; the old ones go on"),
            },
            Err(error) => tracing::error!(%error, "the keys cannot be read; the old ones go on"),
        }
    }
}

async fn exchange(client: &Client, keys: Keys, settings: &HttpSettings) -> Result<(), String> {
    let session = keys.session(settings).map_err(|error| error.to_string())?;
    client.probe(&session).await.map_err(|error| error.to_string())?;
    client.become_session(session);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_lacks_a_key_says_which() {
        let directory =
            std::env::temp_dir().join(format!("karpenter-cloudstack-keys-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("api-url"), "https://cloud/client/api\n").expect("a file");
        std::fs::write(directory.join("api-key"), "key\n").expect("a file");
        let error = read(&directory).err().expect("no secret-key").to_string();
        assert!(error.contains("secret-key") && error.contains("api-url, api-key and secret-key"), "{error}");
        std::fs::write(directory.join("secret-key"), "secret\n").expect("a file");
        let url = read(&directory).map(|credentials| credentials.api_url);
        assert_eq!(url.expect("keys"), "https://cloud/client/api");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
