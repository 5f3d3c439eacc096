//! Which networks a NodeClass may use.

use crate::client::model::Network;
use crate::nodeclass::{CloudStackNodeClassSpec, SelectorTerm};
use crate::selection;

/// States a machine can be deployed in. `Allocated` is a network before its first machine.
const USABLE: [&str; 4] = ["Allocated", "Setup", "Implementing", "Implemented"];

fn selected<'a>(term: &'a SelectorTerm, networks: &'a [Network]) -> impl Iterator<Item = &'a Network> {
    networks.iter().filter(move |network| {
        USABLE.contains(&network.state.as_str())
            && selection::matches(term, &network.id, &network.name, |key| {
                selection::tag_values(&network.tags, key)
            })
    })
}

/// The networks for the first interface, in the order of the terms.
pub(crate) fn primary(spec: &CloudStackNodeClassSpec, networks: &[Network]) -> Vec<Network> {
    let mut found: Vec<Network> = Vec::new();
    for network in spec.network_selector_terms.iter().flat_map(|term| selected(term, networks)) {
        if !found.iter().any(|other| other.id == network.id) {
            found.push(network.clone());
        }
    }
    found
}

/// The networks of further interfaces, one per term; a term that selects nothing is given back instead.
pub(crate) fn additional<'a>(
    spec: &'a CloudStackNodeClassSpec,
    networks: &[Network],
) -> Result<Vec<Network>, &'a SelectorTerm> {
    spec.additional_network_selector_terms
        .iter()
        .map(|term| {
            networks
                .iter()
                .find(|n| selected(term, std::slice::from_ref(*n)).next().is_some())
                .cloned()
                .ok_or(term)
        })
        .collect()
}
