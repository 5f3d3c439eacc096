//! Pods of the same kind, recognised once.
//!
//! A *shape* is what a pod asks for; relaxing a shape gives another. An *audience* is a namespace and labels: what selectors see. A
//! *class* is a shape with an audience: pods of one class are the same pod to every rule but names and volumes.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::algebra::{Algebra, Demand};
use crate::columns::{Columns, Need};
use crate::eligibility::{pod_requirements, sorted_preferences};
use crate::hashing::FixedState;
use crate::labels::{Labels, Text};
use crate::pod::{Pod, PodSpec};
use crate::reasons::Relaxation;
use crate::relax;
use crate::snapshot::PreferencePolicy;
use crate::tolerance::{Tolerance, TolerationsId};
use crate::topology::{Subject, Surroundings, Topology};

/// A shape by number.
pub(crate) type ShapeId = u32;
/// An audience by number.
pub(crate) type AudienceId = u32;
/// A class by number.
pub(crate) type ClassId = u32;
/// A distinct list of requested amounts by number.
pub(crate) type NeedId = u32;

pub(crate) struct Shape {
    pub(crate) spec: Arc<PodSpec>,
    /// Everything it asks of a node, its heaviest preference included.
    pub(crate) demand: Demand,
    /// What it truly requires of a node.
    pub(crate) strict: Demand,
    pub(crate) tolerations: TolerationsId,
    pub(crate) need: NeedId,
    /// Why it can never be placed.
    pub(crate) invalid: Option<String>,
    weaker: Option<Option<(ShapeId, Relaxation)>>,
}

pub(crate) struct Audience {
    pub(crate) namespace: Text,
    pub(crate) labels: Labels,
    /// Groups that count its pods.
    pub(crate) counted_by: Vec<u32>,
    groups_seen: usize,
    /// Inverse groups that keep away from its pods.
    pub(crate) kept_away_by: Vec<u32>,
    inverse_seen: usize,
}

pub(crate) struct Class {
    pub(crate) shape: ShapeId,
    pub(crate) audience: AudienceId,
    /// Groups its constraints ask for, with whether the group counts the class itself.
    pub(crate) owned: Vec<(u32, bool)>,
    /// Inverse groups of its own anti-affinity.
    pub(crate) owned_inverse: Vec<u32>,
    registered: bool,
}

#[derive(Default)]
pub(crate) struct Classes {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) audiences: Vec<Audience>,
    pub(crate) classes: Vec<Class>,
    pub(crate) needs: Vec<Need>,
    need_ids: HashMap<Need, NeedId, FixedState>,
    shape_by_address: HashMap<usize, ShapeId, FixedState>,
    shape_by_value: HashMap<Arc<PodSpec>, ShapeId, FixedState>,
    audience_by_address: HashMap<(usize, usize), AudienceId, FixedState>,
    audience_by_value: HashMap<(Text, Labels), AudienceId, FixedState>,
    class_ids: HashMap<(ShapeId, AudienceId), ClassId, FixedState>,
    /// Classes that own groups, and audiences that know some.
    registered: Vec<ClassId>,
    informed: Vec<AudienceId>,
}

/// What a shape is worked out with.
pub(crate) struct Workshop<'a> {
    pub(crate) algebra: &'a mut Algebra,
    pub(crate) tolerance: &'a mut Tolerance,
    pub(crate) columns: &'a mut Columns,
    pub(crate) policy: PreferencePolicy,
}

impl Classes {
    /// The class of a pod whose spec is `spec` (which default spread constraints may have changed).
    pub(crate) fn of_pod(&mut self, pod: &Pod, spec: &Arc<PodSpec>, workshop: &mut Workshop<'_>) -> ClassId {
        // Only the snapshot's own specs outlive the solve, so only their addresses are good names for them.
        let shape = if Arc::ptr_eq(spec, &pod.spec) {
            self.shape_at(spec, workshop)
        } else {
            self.shape(spec, workshop)
        };
        let audience = self.audience(&pod.namespace, &pod.labels);
        self.class(shape, audience)
    }

    pub(crate) fn class(&mut self, shape: ShapeId, audience: AudienceId) -> ClassId {
        let classes = &mut self.classes;
        *self.class_ids.entry((shape, audience)).or_insert_with(|| {
            classes.push(Class {
                shape,
                audience,
                owned: Vec::new(),
                owned_inverse: Vec::new(),
                registered: false,
            });
            classes.len() as ClassId - 1
        })
    }

    fn audience(&mut self, namespace: &Text, labels: &Labels) -> AudienceId {
        let address = (namespace.as_ptr() as usize, labels.address());
        if let Some(id) = self.audience_by_address.get(&address) {
            return *id;
        }
        let audiences = &mut self.audiences;
        let id = *self.audience_by_value.entry((namespace.clone(), labels.clone())).or_insert_with(|| {
            audiences.push(Audience {
                namespace: namespace.clone(),
                labels: labels.clone(),
                counted_by: Vec::new(),
                groups_seen: 0,
                kept_away_by: Vec::new(),
                inverse_seen: 0,
            });
            audiences.len() as AudienceId - 1
        });
        self.audience_by_address.insert(address, id);
        id
    }

    fn shape_at(&mut self, spec: &Arc<PodSpec>, workshop: &mut Workshop<'_>) -> ShapeId {
        let address = Arc::as_ptr(spec) as usize;
        if let Some(id) = self.shape_by_address.get(&address) {
            return *id;
        }
        let id = self.shape(spec, workshop);
        self.shape_by_address.insert(address, id);
        id
    }

    fn shape(&mut self, spec: &Arc<PodSpec>, workshop: &mut Workshop<'_>) -> ShapeId {
        if let Some(id) = self.shape_by_value.get(spec) {
            return *id;
        }
        let shape = self.new_shape(spec, workshop);
        self.shapes.push(shape);
        let id = self.shapes.len() as ShapeId - 1;
        self.shape_by_value.insert(spec.clone(), id);
        id
    }

    fn new_shape(&mut self, spec: &Arc<PodSpec>, workshop: &mut Workshop<'_>) -> Shape {
        let respects = workshop.policy == PreferencePolicy::Respect;
        let both = pod_requirements(spec, respects).and_then(|all| Ok((all, pod_requirements(spec, false)?)));
        let (demand, strict, invalid) = match both {
            Ok((all, strict)) => (workshop.algebra.demand(&all), workshop.algebra.demand(&strict), None),
            Err(error) => (Demand::NONE, Demand::NONE, Some(error.to_string())),
        };
        let invalid = invalid.or_else(|| {
            let negative = spec.requests.iter().find(|(_, amount)| amount.is_negative());
            negative
                .map(|(name, _)| format!("spec.containers.resources.requests: {name} must not be negative"))
        });
        let need = workshop.columns.need(&spec.requests);
        let needs = &mut self.needs;
        let need = *self.need_ids.entry(need).or_insert_with_key(|need| {
            needs.push(need.clone());
            needs.len() as NeedId - 1
        });
        Shape {
            spec: spec.clone(),
            demand,
            strict,
            tolerations: workshop.tolerance.tolerations(&spec.tolerations),
            need,
            invalid,
            weaker: None,
        }
    }

    /// The class after one step of relaxation, and what was given up; `None` when there is nothing left.
    pub(crate) fn relax(
        &mut self,
        class: ClassId,
        tolerate_preferences: bool,
        workshop: &mut Workshop<'_>,
    ) -> Option<(ClassId, Relaxation)> {
        let Class { shape, audience, .. } = self.classes[class as usize];
        if self.shapes[shape as usize].weaker.is_none() {
            let weaker = relax::relax(&self.shapes[shape as usize].spec, tolerate_preferences);
            let weaker = weaker.map(|(spec, what)| (self.shape(&Arc::new(spec), workshop), what));
            self.shapes[shape as usize].weaker = Some(weaker);
        }
        let (shape, what) = self.shapes[shape as usize].weaker.clone().flatten()?;
        Some((self.class(shape, audience), what))
    }

    /// Makes the class known to the topology: the groups it owns exist afterwards.
    pub(crate) fn register(
        &mut self,
        class: ClassId,
        topology: &mut Topology,
        around: &mut Surroundings<'_>,
    ) {
        if self.classes[class as usize].registered {
            return;
        }
        let Class { shape, audience, .. } = self.classes[class as usize];
        let (spec, audience) = (self.shapes[shape as usize].spec.clone(), &self.audiences[audience as usize]);
        let subject = Subject {
            spec: &spec,
            namespace: &audience.namespace,
            labels: &audience.labels,
            tolerations: self.shapes[shape as usize].tolerations,
        };
        let groups = topology
            .own_inverse_groups(subject, around)
            .and_then(|inverse| Ok((topology.own_groups(subject, around)?, inverse)));
        let (owned, inverse) = groups.unwrap_or_else(|problem| {
            self.shapes[shape as usize].invalid = Some(problem);
            (Vec::new(), Vec::new())
        });
        let selects = |g: &u32| topology.groups[*g as usize].selects(&audience.namespace, &audience.labels);
        self.registered.push(class);
        let class = &mut self.classes[class as usize];
        class.owned = owned.iter().map(|g| (*g, selects(g))).collect();
        class.owned_inverse = inverse;
        class.registered = true;
    }

    /// Forgets who owns which group, and who is counted by which; inverse groups stay known.
    pub(crate) fn forget_groups(&mut self) {
        for class in self.registered.drain(..) {
            let class = &mut self.classes[class as usize];
            class.owned.clear();
            class.owned_inverse.clear();
            class.registered = false;
        }
        for audience in self.informed.drain(..) {
            let audience = &mut self.audiences[audience as usize];
            audience.counted_by.clear();
            audience.groups_seen = 0;
        }
    }

    /// Brings the audience's lists up to date with groups created since.
    pub(crate) fn refresh_audience(&mut self, audience: AudienceId, topology: &Topology) {
        let number = audience;
        let audience = &mut self.audiences[audience as usize];
        if audience.groups_seen == 0 && !topology.groups.is_empty() {
            self.informed.push(number);
        }
        for group in audience.groups_seen..topology.groups.len() {
            if topology.groups[group].selects(&audience.namespace, &audience.labels) {
                audience.counted_by.push(group as u32);
            }
        }
        audience.groups_seen = topology.groups.len();
        for group in audience.inverse_seen..topology.inverse.len() {
            if topology.inverse[group].selects(&audience.namespace, &audience.labels) {
                audience.kept_away_by.push(group as u32);
            }
        }
        audience.inverse_seen = topology.inverse.len();
    }
}

/// The spec with preferences in the order upstream leaves them after looking for the heaviest.
pub(crate) fn with_sorted_preferences(spec: &Arc<PodSpec>) -> Arc<PodSpec> {
    let terms = &spec.preferred_node_affinity;
    if terms.windows(2).all(|pair| pair[0].weight >= pair[1].weight) {
        return spec.clone();
    }
    Arc::new(PodSpec { preferred_node_affinity: sorted_preferences(terms), ..(**spec).clone() })
}
