//! Which networks a NodeClass may use.

use crate::client::model::{Network, time};
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

/// The networks of further interfaces, by their terms; of several the oldest first, which is the same whatever is added beside it
/// and in whatever order the server lists them.
pub(crate) fn additional(spec: &CloudStackNodeClassSpec, networks: &[Network]) -> Vec<Vec<Network>> {
    let age = |network: &Network| {
        let made = time(&network.created);
        (made.is_none(), made, network.id.clone())
    };
    let terms = spec.additional_network_selector_terms.iter();
    terms
        .map(|term| {
            let mut found: Vec<Network> = selected(term, networks).cloned().collect();
            found.sort_by_cached_key(age);
            found
        })
        .collect()
}
