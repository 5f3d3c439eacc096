//! From what was typed to everything a decision needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use jiff::Timestamp;
use karpenter_engine::disruption::DisruptionOptions;
use karpenter_engine::eligibility::is_provisionable;
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::labels::Text;
use karpenter_engine::node_pool::InstanceTypes;
use karpenter_engine::{Provider, Snapshot};
use karpenter_provider_kwok::{Catalogue, GROUP as KWOK_GROUP, labels as kwok_labels};
use karpenter_state::Cluster;
use serde_json::value::RawValue;

use super::objects::{Loaded, ManagedBy, Unlaunched};
use super::rejected::Rejected;
use super::scenario::{HEADER_FIELDS, Scenario, ScenarioError};
use super::settings::{SettingError, decision_options};
use super::source::{SourceError, SourceFile};
use super::timing::Stopwatch;

/// How long a promise of a node to pods lasts here: longer than any simulation.
const NOMINATION: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("{file}: {source}")]
    Setting { file: String, source: SettingError },
    #[error("{file}: mode: {mode:?} is neither provision nor disrupt")]
    Mode { file: String, mode: String },
    #[error(
        "there are no instance types: these files are a dump of a cluster, which does not say what can be bought; pass --instance-types FILE (the kwok provider's format)"
    )]
    NoInstanceTypes,
    #[error("{file}: an instance type file is a list of types, or a scenario with `instanceTypes`")]
    NotATypeFile { file: String },
    #[error("--now: {value:?} is not an RFC 3339 time such as 2026-01-01T00:00:00Z")]
    Now { value: String },
}

/// What is to be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// What to buy for pods that wait
    Provision,
    /// Which nodes to take away
    Disrupt,
}

/// A cluster, what can be bought for it, and how to decide.
pub(crate) struct Input {
    cluster: Cluster,
    types: Arc<[InstanceType]>,
    /// Whether the types are the kwok provider's because no others were given: they say nothing about other providers' pools.
    of_kwok_only: bool,
    provider: Provider,
    pub(crate) mode: Mode,
    pub(crate) options: DisruptionOptions,
    pub(crate) now: Timestamp,
    /// Pods that wait for a place but make no sense.
    pub(crate) unreadable_pods: Vec<(String, String)>,
    pub(crate) rejected: Vec<Rejected>,
    /// What is part of it although no API server lets it through.
    pub(crate) doubts: Vec<Rejected>,
    /// Which conditions keep NodePools from being ready, by name.
    pub(crate) unmet_conditions: BTreeMap<String, String>,
    /// NodeClaims that are no machine yet.
    pub(crate) unlaunched: Vec<Unlaunched>,
    /// Kinds scheduling does not look at, with how many objects of each there were.
    pub(crate) passed_over: Vec<(String, usize)>,
    /// Times how the parsed objects were mirrored.
    pub(crate) mirroring: Stopwatch,
}

impl Input {
    pub(crate) fn read(
        files: &[impl AsRef<Path>],
        types_file: Option<&Path>,
        now: Option<&str>,
        mirroring: Stopwatch,
    ) -> Result<Self, InputError> {
        let files: Vec<SourceFile> =
            files.iter().map(|f| SourceFile::read(f.as_ref())).collect::<Result<_, _>>()?;
        let types_file = types_file.map(SourceFile::read).transpose()?;
        Self::from_sources(&files, types_file.as_ref(), now, mirroring)
    }

    pub(crate) fn from_sources(
        files: &[SourceFile],
        types_file: Option<&SourceFile>,
        now: Option<&str>,
        mirroring: Stopwatch,
    ) -> Result<Self, InputError> {
        Self::from_sources_or(files, types_file, now, None, mirroring)
    }

    /// As [`Self::from_sources`]; a dump for which no types are given is offered what `otherwise` says.
    pub(crate) fn from_sources_or(
        files: &[SourceFile],
        types_file: Option<&SourceFile>,
        now: Option<&str>,
        otherwise: Option<fn() -> Catalogue>,
        mut mirroring: Stopwatch,
    ) -> Result<Self, InputError> {
        let scenario = Scenario::parse(files)?;
        let header = &scenario.header;
        let header_file = scenario.header_file.unwrap_or_default();
        let mode = match header.mode.as_deref() {
            None | Some("" | "provision") => Mode::Provision,
            Some("disrupt") => Mode::Disrupt,
            Some(mode) => return Err(InputError::Mode { file: header_file.into(), mode: mode.into() }),
        };
        let now = match now {
            Some(value) => value.parse().map_err(|_| InputError::Now { value: value.into() })?,
            None => scenario.now()?,
        };
        let unknown = |field: &String| {
            let problem =
                format!("a scenario's header has no such field; it has {}", HEADER_FIELDS.join(", "));
            Rejected::new(header_file, "", field, problem)
        };
        let mut rejected: Vec<Rejected> = scenario.unknown_fields.iter().map(unknown).collect();
        // A scenario speaks of the kwok provider only; a dump's pools may belong to any.
        let managed = scenario.header_file.map(|_| ManagedBy::KWOK);
        let mut loaded = Loaded::read(&scenario.objects, managed, &mut rejected);
        let ingest = loaded.cluster.ingest();
        let options = decision_options(&header.options, ingest)
            .map_err(|source| InputError::Setting { file: header_file.into(), source })?;
        let (from, (catalogue, faulty)) = match types_file {
            Some(file) => (file.name.as_str(), Catalogue::read(&type_entries(file)?, ingest)),
            None if scenario.header_file.is_none() => match otherwise {
                Some(catalogue) => ("the kwok provider", (catalogue(), Vec::new())),
                None => return Err(InputError::NoInstanceTypes),
            },
            None => (header_file, Catalogue::read(&header.instance_types, ingest)),
        };
        rejected.extend(faulty.into_iter().map(|error| {
            Rejected::new(from, format!("InstanceType/{}", error.entry), error.field, error.problem)
        }));
        let facts = std::mem::take(&mut loaded.facts);
        mirroring.time(|| loaded.cluster.take_in(facts));
        for (field, names) in
            [("markedForDeletion", &header.state.marked_for_deletion), ("nominated", &header.state.nominated)]
        {
            for name in names {
                let known = match field {
                    "nominated" => loaded.cluster.nominate(name, NOMINATION),
                    _ => {
                        let machine = loaded.cluster.machine_named(name);
                        let id = machine.map(|machine| machine.provider_id().to_owned());
                        id.is_some_and(|id| loaded.cluster.mark_for_deletion(&id))
                    }
                };
                if !known {
                    rejected.push(Rejected::new(
                        header_file,
                        format!("state.{field}"),
                        name.as_str(),
                        "there is no such node",
                    ));
                }
            }
        }
        let provider =
            provider(header.reservation_id_label.as_deref(), &header.well_known_labels, &catalogue.labels);
        Ok(Self {
            cluster: loaded.cluster,
            types: catalogue.types.into(),
            of_kwok_only: types_file.is_none() && scenario.header_file.is_none(),
            provider,
            mode,
            options,
            now,
            unreadable_pods: loaded.unreadable_pods,
            rejected,
            doubts: loaded.doubts,
            unmet_conditions: loaded.unmet_conditions,
            unlaunched: loaded.unlaunched,
            passed_over: loaded.passed_over.into_iter().collect(),
            mirroring,
        })
    }

    /// How many pods wait for a place.
    pub(crate) fn waiting(&self) -> usize {
        self.cluster.pods().filter(|p| is_provisionable(p)).count()
    }

    /// The cluster as the engine takes it; every pool is offered the same list.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.cluster.snapshot(self.now, self.provider.clone(), |pool| {
            let class = &pool.node_class;
            if self.of_kwok_only && &*class.group != KWOK_GROUP {
                let reason = format!("no instance types are given for {}, see --instance-types", class.kind);
                return InstanceTypes::Unresolved { reason: reason.into() };
            }
            InstanceTypes::Resolved(self.types.clone())
        })
    }
}

fn provider(reservation_label: Option<&str>, more: &[String], of_types: &BTreeSet<Text>) -> Provider {
    let mut provider = Provider::default();
    if let Some(label) = reservation_label.filter(|l| !l.is_empty()) {
        provider.reservation_id_label = label.into();
    }
    provider.restricted_label_domains.insert(KWOK_GROUP.into());
    provider.well_known_labels.insert(provider.reservation_id_label.clone());
    provider.well_known_labels.extend(kwok_labels::WELL_KNOWN.iter().map(|l| Text::from(*l)));
    provider.well_known_labels.extend(more.iter().map(|l| Text::from(l.as_str())));
    provider.well_known_labels.extend(of_types.iter().cloned());
    provider
}

/// The entries of an instance type file: kwok's bare list, or a scenario's.
fn type_entries(file: &SourceFile) -> Result<Vec<&RawValue>, InputError> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Header<'a> {
        #[serde(borrow)]
        instance_types: Vec<&'a RawValue>,
    }
    let not = || InputError::NotATypeFile { file: file.name.clone() };
    let mut out = Vec::new();
    for document in file.values()? {
        let entries = serde_json::from_str::<Vec<&RawValue>>(document.get())
            .or_else(|_| serde_json::from_str::<Header<'_>>(document.get()).map(|h| h.instance_types));
        out.extend(entries.map_err(|_| not())?);
    }
    Ok(out)
}
