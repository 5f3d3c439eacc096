//! The workload controllers of kube-controller-manager: what makes pods, replaces them and takes them away again.

pub(crate) mod daemon_set;
pub(crate) mod deployment;
pub(crate) mod job;
pub(crate) mod replica_set;
pub(crate) mod stateful_set;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sha2::{Digest as _, Sha256};

/// A short name for a pod template: the same template, the same name.
pub(crate) fn template_hash(template: &PodTemplateSpec) -> String {
    /// Letters that make no words, as in names the server generates.
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // A template that was read can be written.
    let bytes = serde_json::to_vec(template).unwrap_or_default();
    let digest = Sha256::digest(&bytes);
    digest.iter().take(10).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// A number, or a percentage of `total`.
pub(crate) fn scaled(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or_default();
            let product = percent * i64::from(total);
            let rounded = if round_up {
                product.div_euclid(100) + i64::from(product.rem_euclid(100) > 0)
            } else {
                product.div_euclid(100)
            };
            i32::try_from(rounded).unwrap_or(i32::MAX)
        }
    }
}

/// A number of things as the API counts them.
pub(crate) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_asked() {
        let percent = IntOrString::String("25%".to_owned());
        assert_eq!((scaled(&percent, 10, true), scaled(&percent, 10, false)), (3, 2));
        assert_eq!(scaled(&percent, 8, true), 2);
        assert_eq!(scaled(&IntOrString::Int(4), 1, true), 4);
    }
}
