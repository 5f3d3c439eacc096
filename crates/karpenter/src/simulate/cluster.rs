//! A cluster read as `simulate` reads it, for other commands that look at one.

use std::path::{Path, PathBuf};

use karpenter_engine::Snapshot;
use karpenter_engine::disruption::DisruptionOptions;
use karpenter_provider_kwok::Catalogue;
use karpenter_runtime::options::FeatureGates;

use super::input::{Input, InputError};
use super::objects::Unlaunched;
use super::rejected::Rejected;
use super::settings::set_gate;
use super::source::SourceFile;
use super::timing::Stopwatch;
use super::{Error, InputProblem};

/// Where a cluster is read from.
pub(crate) enum ClusterFiles<'a> {
    /// Scenarios or dumps.
    Files(&'a [PathBuf]),
    /// A `List` of everything, in JSON.
    Dump(&'a str),
}

/// A cluster at one moment, and how to decide about it.
pub(crate) struct Cluster(Input);

impl Cluster {
    /// Without a list of what can be bought the kwok provider's own is assumed.
    pub(crate) fn read(
        files: ClusterFiles<'_>,
        types: Option<&Path>,
        now: Option<&str>,
    ) -> Result<Self, Error> {
        let read = || -> Result<Input, InputError> {
            let sources = match files {
                ClusterFiles::Files(files) => {
                    files.iter().map(|file| SourceFile::read(file)).collect::<Result<Vec<_>, _>>()?
                }
                ClusterFiles::Dump(text) => {
                    vec![SourceFile::from_bytes("cluster.json".to_owned(), text.as_bytes().to_vec())?]
                }
            };
            let types = types.map(SourceFile::read).transpose()?;
            Input::from_sources_or(
                &sources,
                types.as_ref(),
                now,
                Some(Catalogue::built_in),
                Stopwatch::default(),
            )
        };
        read().map(Self).map_err(|error| Error::Input(InputProblem(error)))
    }

    /// The cluster as the engine takes it.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    /// What of the input makes no sense and is no part of it.
    pub(crate) fn left_out(&self) -> &[Rejected] {
        &self.0.rejected
    }

    /// What is part of it although no API server lets it through.
    pub(crate) fn doubts(&self) -> &[Rejected] {
        &self.0.doubts
    }

    /// The NodeClaim of this name, if it is no machine yet.
    pub(crate) fn unlaunched(&self, claim: &str) -> Option<&Unlaunched> {
        self.0.unlaunched.iter().find(|unlaunched| unlaunched.name == claim)
    }

    /// Decides with the gates of an operator.
    pub(crate) fn set_gates(&mut self, gates: &FeatureGates) {
        let DisruptionOptions { solve, gates: of_disruption, .. } = &mut self.0.options;
        for (name, on) in gates.states() {
            // Those without a part in decisions are left out.
            set_gate(name, on, &mut solve.gates, of_disruption);
        }
    }

    /// How to decide about its nodes.
    pub(crate) fn options(&self) -> &DisruptionOptions {
        &self.0.options
    }
}
