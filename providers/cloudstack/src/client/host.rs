//! Hosts, which root administrators see, and what finds room on them.

use serde::Deserialize;

use super::model::{ServiceOffering, number, text, truth};

/// A host with what is used of it; root administrators only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Id.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// `Up`, `Down`, …
    #[serde(deserialize_with = "text")]
    pub state: String,
    /// `Enabled`, `Maintenance`, …
    #[serde(deserialize_with = "text")]
    pub resourcestate: String,
    /// Bytes.
    #[serde(deserialize_with = "number")]
    pub memorytotal: Option<i64>,
    /// Bytes with overcommitment, where there is any.
    #[serde(deserialize_with = "number")]
    pub memorywithoverprovisioning: Option<i64>,
    /// Bytes.
    #[serde(deserialize_with = "number")]
    pub memoryallocatedbytes: Option<i64>,
    /// Megahertz with overcommitment.
    #[serde(deserialize_with = "number")]
    pub cpuwithoverprovisioning: Option<i64>,
    /// Megahertz.
    #[serde(deserialize_with = "number")]
    pub cpuallocatedvalue: Option<i64>,
    /// Tags, separated by commas.
    #[serde(deserialize_with = "text")]
    pub hosttags: String,
    /// Whether those are a script instead, which decides what offerings it takes.
    #[serde(deserialize_with = "truth")]
    pub istagarule: bool,
    /// Cores.
    #[serde(deserialize_with = "number")]
    pub cpunumber: Option<i64>,
    /// Megahertz of each.
    #[serde(deserialize_with = "number")]
    pub cpuspeed: Option<i64>,
    /// `x86_64` or `aarch64`; servers before 4.20 do not say.
    #[serde(deserialize_with = "text")]
    pub arch: String,
}

/// What a machine asks of its host.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    /// Its offering.
    pub offering: &'a ServiceOffering,
    /// Cores.
    pub cores: i64,
    /// Megahertz of each, if anybody says.
    pub core_mhz: Option<i64>,
    /// Memory.
    pub memory_mib: i64,
    /// Architectures its template may have, in CloudStack's words; empty where one does not say.
    pub archs: &'a [&'a str],
}

impl Host {
    /// Whether a machine would find room.
    pub fn has_room(&self, demand: &Demand<'_>) -> bool {
        let offering = demand.offering;
        let words = |text: &str| {
            let words = text.split(',').map(|word| word.trim().to_owned());
            words.filter(|word| !word.is_empty()).collect::<std::collections::BTreeSet<_>>()
        };
        let enough = |total: Option<i64>, used: Option<i64>, needed: i64| {
            total.is_none_or(|total| total.saturating_sub(used.unwrap_or(0)) >= needed)
        };
        // However much is free in sum: a machine has no more cores than its host, nor faster ones. What is not known holds nobody up.
        let is_capable =
            |has: Option<i64>, wanted: i64| has.filter(|has| *has > 0).is_none_or(|has| has >= wanted);
        let mhz = demand.core_mhz.unwrap_or(0).saturating_mul(demand.cores);
        let is_of_arch = self.arch.is_empty()
            || demand.archs.is_empty()
            || demand.archs.iter().any(|arch| arch.is_empty() || *arch == self.arch);
        let memory = self.memorywithoverprovisioning.or(self.memorytotal);
        self.state == "Up"
            && self.resourcestate == "Enabled"
            // What a script says only the server finds out.
            && (self.istagarule || words(&offering.hosttags).is_subset(&words(&self.hosttags)))
            && is_of_arch
            && is_capable(self.cpunumber, demand.cores)
            && is_capable(self.cpuspeed, demand.core_mhz.unwrap_or(0))
            && enough(memory, self.memoryallocatedbytes, demand.memory_mib.saturating_mul(1 << 20))
            && enough(self.cpuwithoverprovisioning, self.cpuallocatedvalue, mhz)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_has_room_for_no_machine_with_more_or_faster_cores_or_of_another_architecture() {
        let host: Host = serde_json::from_value(json!({
            "state": "Up", "resourcestate": "Enabled", "cpunumber": 4, "cpuspeed": 2000, "arch": "x86_64",
            "cpuwithoverprovisioning": "64000", "memorytotal": 64i64 << 30,
        }))
        .expect("a host");
        let offering = ServiceOffering::default();
        let fits = |host: &Host, cores: i64, core_mhz: Option<i64>, archs: &[&str]| {
            host.has_room(&Demand { offering: &offering, cores, core_mhz, memory_mib: 1024, archs })
        };
        assert!(fits(&host, 4, Some(2000), &["x86_64"]));
        assert!(!fits(&host, 5, Some(1000), &["x86_64"]), "more cores than it has, overcommitted or not");
        assert!(!fits(&host, 1, Some(2001), &["x86_64"]), "faster ones");
        assert!(!fits(&host, 1, Some(1000), &["aarch64"]), "another architecture");
        assert!(fits(&host, 1, None, &["aarch64", "x86_64"]) && fits(&host, 1, None, &[""]));
        let silent = Host { cpunumber: None, cpuspeed: None, arch: String::new(), ..host };
        assert!(fits(&silent, 8, Some(8000), &["aarch64"]), "nobody knows better");
    }
}
