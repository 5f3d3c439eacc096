//! Devices that pods get by claims (dynamic resource allocation): cluster-autoscaler's annotation `dra-driver` names the driver, and
//! `gpu-count` says how many there are. The core plans no pods that have claims, so that of this only is told that it is not reckoned with.

use karpenter_primitives::names::dns1123_subdomain_errors;

use super::annotated::Annotated;
use crate::client::fields::Malformed;
use crate::names::CAPACITY_DOMAIN;

/// The driver of its devices, if it has one.
pub(crate) fn driver(told: Annotated<'_>) -> Result<Option<&str>, Malformed> {
    let key = key();
    let Some(driver) = told.get(&key).map(str::trim).filter(|driver| !driver.is_empty()) else {
        return Ok(None);
    };
    match dns1123_subdomain_errors(driver).first() {
        Some(error) => Err(told.malformed(&key, format!("{driver:?} is not the name of a driver: {error}"))),
        None => Ok(Some(driver)),
    }
}

/// That devices which its owner says its nodes have are not reckoned with.
pub(crate) fn ignored(told: Annotated<'_>) -> Option<Malformed> {
    let driver = driver(told).ok()??;
    let problem = format!(
        "devices of {driver} are ignored, for pods with resource claims are not planned; say how many there are of an extended \
         resource by gpu-type and gpu-count, if nodes have them as that"
    );
    Some(told.malformed(&key(), problem))
}

fn key() -> String {
    format!("{CAPACITY_DOMAIN}dra-driver")
}
