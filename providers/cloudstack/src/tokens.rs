//! Tokens that machines join with, each made for one NodeClaim: Secrets of `kube-system` as kubeadm makes them, which stop working
//! by themselves and are removed by the cluster's own token cleaner. So Karpenter needs the right to create them and no other:
//! it can neither read nor delete what is in `kube-system`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use karpenter_api::NodeClaim;
use karpenter_api::duration::Duration as GoDuration;
use karpenter_runtime::entropy::Stream;
use kube::ResourceExt as _;
use serde_json::json;

use crate::client::signature::Credentials;
use crate::nodeclass::Bootstrap;
use crate::voice::{NoValue, Voice};

/// How long a token may live: long enough to boot, short enough that a stolen one is of little use.
const SHORTEST: Duration = Duration::from_secs(10 * 60);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Ids that are tried, should somebody else have one already.
const ATTEMPTS: usize = 3;
/// What tokens are made of.
const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

/// A token as one looks, to measure user data with.
pub(crate) const EXAMPLE: &str = "000000.0000000000000000";

/// How long tokens of a NodeClass live, if it has any made; why not, if that makes no sense.
pub(crate) fn ttl(bootstrap: &Bootstrap) -> Result<Option<Duration>, String> {
    let Some(text) = &bootstrap.token_ttl else { return Ok(None) };
    let ttl = GoDuration::parse(text).map(|duration| duration.to_std()).unwrap_or_default();
    if (SHORTEST..=LONGEST).contains(&ttl) {
        return Ok(Some(ttl));
    }
    Err(format!("{text:?} is not between 10m and 24h"))
}

struct Minted {
    token: String,
    expires: Timestamp,
}

/// Makes tokens, and remembers them until they are half used up: who launches again needs no other.
pub(crate) struct Tokens {
    chance: Mutex<Stream>,
    minted: Mutex<BTreeMap<String, Minted>>,
}

impl Tokens {
    pub(crate) fn new(chance: Stream) -> Self {
        Self { chance: Mutex::new(chance), minted: Mutex::default() }
    }

    /// The token of a NodeClaim, made if there is none that lives long enough.
    pub(crate) async fn of(
        &self,
        claim: &NodeClaim,
        ttl: Duration,
        keys: &Credentials,
        voice: &Voice,
        now: Timestamp,
    ) -> Result<String, NoValue> {
        let uid = claim.uid().unwrap_or_default();
        if let Some(token) =
            self.known(&uid, now + SignedDuration::try_from(ttl / 2).unwrap_or_default(), now)
        {
            return Ok(token);
        }
        let expires = now + SignedDuration::try_from(ttl).unwrap_or_default();
        for _ in 0..ATTEMPTS {
            let (id, secret) = self.draw(keys);
            if voice.create_secret(&bootstrap_token(claim, &id, &secret, expires)).await? {
                let token = format!("{id}.{secret}");
                let minted = Minted { token: token.clone(), expires };
                self.minted.lock().unwrap_or_else(PoisonError::into_inner).insert(uid, minted);
                return Ok(token);
            }
        }
        Err(NoValue::Unreadable("no id of a bootstrap token is free".to_owned()))
    }

    fn known(&self, uid: &str, until: Timestamp, now: Timestamp) -> Option<String> {
        let mut minted = self.minted.lock().unwrap_or_else(PoisonError::into_inner);
        minted.retain(|_, known| known.expires > now);
        minted.get(uid).filter(|known| known.expires >= until).map(|known| known.token.clone())
    }

    /// An id and a secret. Chance alone would do; the key makes sure of it that nobody else can guess them.
    fn draw(&self, keys: &Credentials) -> (String, String) {
        let nonce = {
            let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
            format!("{}{}", chance.uuid(), chance.uuid())
        };
        let digest = keys.digest(&format!("bootstrap token {nonce}"));
        let letters: Vec<char> =
            digest.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect();
        let text = |range: std::ops::Range<usize>| letters[range].iter().collect();
        (text(0..ID_LENGTH), text(ID_LENGTH..ID_LENGTH + SECRET_LENGTH))
    }
}

/// The Secret of a token, as `kubeadm token create` would write it.
fn bootstrap_token(claim: &NodeClaim, id: &str, secret: &str, expires: Timestamp) -> Secret {
    let object = json!({
        "metadata": {
            "name": format!("bootstrap-token-{id}"), "namespace": "kube-system",
            "labels": {"karpenter.sh/managed-by": "karpenter"},
            "annotations": {"karpenter.sh/nodeclaim": claim.name_any()},
        },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id,
            "token-secret": secret,
            "expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
            "description": format!("Joins the machine of NodeClaim {}.", claim.name_any()),
        },
    });
    serde_json::from_value(object).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use karpenter_runtime::entropy::Entropy;

    use super::*;

    fn tokens(seed: u64) -> Tokens {
        Tokens::new(Entropy::from_seed(seed).stream("tokens"))
    }

    #[test]
    fn a_token_has_the_form_kubernetes_wants_and_needs_the_key_to_be_guessed() {
        let keys = Credentials::new("key", "secret");
        let (id, secret) = tokens(1).draw(&keys);
        let is = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| LETTERS.contains(&byte))
        };
        assert!(is(&id, 6) && is(&secret, 16), "{id}.{secret}");
        assert_ne!(
            tokens(1).draw(&Credentials::new("key", "another")).1,
            secret,
            "chance alone is not enough"
        );
        let tokens = tokens(1);
        assert_ne!(tokens.draw(&keys), tokens.draw(&keys), "each is new");
    }

    #[test]
    fn a_life_that_is_too_short_to_boot_or_too_long_to_be_safe_is_refused() {
        let of = |text: &str| ttl(&Bootstrap { token_ttl: Some(text.into()), ..Bootstrap::default() });
        assert_eq!(of("30m"), Ok(Some(Duration::from_secs(1800))));
        assert_eq!(ttl(&Bootstrap::default()), Ok(None));
        for text in ["1m", "25h", "0s", "soon"] {
            assert!(of(text).expect_err(text).contains("10m"));
        }
    }

    #[test]
    fn a_token_is_used_again_only_while_it_lives_long_enough() {
        let tokens = tokens(1);
        let now: Timestamp = "2026-11-15T08:00:00Z".parse().expect("a time");
        let expires = now + SignedDuration::from_mins(30);
        let minted = Minted { token: "a.b".into(), expires };
        tokens.minted.lock().expect("a lock").insert("uid".into(), minted);
        let in_minutes = |minutes: i64| now + SignedDuration::from_mins(minutes);
        assert_eq!(tokens.known("uid", in_minutes(15), now).as_deref(), Some("a.b"));
        assert_eq!(tokens.known("uid", in_minutes(31), in_minutes(16)), None);
        assert_eq!(tokens.known("other", in_minutes(1), now), None);
        tokens.known("uid", in_minutes(40), in_minutes(31));
        assert!(tokens.minted.lock().expect("a lock").is_empty(), "what expired is forgotten");
    }
}
