//! All pods by namespace and name. A large cluster is mostly pods, so the names are not kept a second time as keys.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_engine::pod::Pod;

/// Pods in order of namespace, then name.
#[derive(Default)]
pub(crate) struct Pods(BTreeSet<Entry>);

/// A pod, told apart by its namespace and name alone.
struct Entry(Arc<Pod>);

/// Something that has the namespace and name of a pod.
trait Named {
    fn namespace(&self) -> &str;
    fn name(&self) -> &str;
}

impl Pods {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        self.0.get(&(namespace, name) as &dyn Named).map(|entry| &entry.0)
    }

    /// Takes the pod in; returns the one it replaces.
    pub(crate) fn insert(&mut self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        self.0.replace(Entry(pod)).map(|entry| entry.0)
    }

    /// Takes the pod out.
    pub(crate) fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.0.take(&(namespace, name) as &dyn Named).map(|entry| entry.0)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Pod>> {
        self.0.iter().map(|entry| &entry.0)
    }
}

/// Of pods with the same name the last counts.
impl FromIterator<Arc<Pod>> for Pods {
    fn from_iter<I: IntoIterator<Item = Arc<Pod>>>(pods: I) -> Self {
        Pods(pods.into_iter().map(Entry).collect())
    }
}

impl Named for Entry {
    fn namespace(&self) -> &str {
        &self.0.namespace
    }

    fn name(&self) -> &str {
        &self.0.name
    }
}

impl Named for (&str, &str) {
    fn namespace(&self) -> &str {
        self.0
    }

    fn name(&self) -> &str {
        self.1
    }
}

impl<'a> Borrow<dyn Named + 'a> for Entry {
    fn borrow(&self) -> &(dyn Named + 'a) {
        self
    }
}

impl Ord for dyn Named + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.namespace(), self.name()).cmp(&(other.namespace(), other.name()))
    }
}

impl PartialOrd for dyn Named + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Named + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for dyn Named + '_ {}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // Pods of a namespace mostly share the string that names it.
        let (a, b) = (&self.0, &other.0);
        if Arc::ptr_eq(&a.namespace, &b.namespace) {
            return a.name.cmp(&b.name);
        }
        (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}
