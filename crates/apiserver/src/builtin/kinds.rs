//! The table of built-in kinds: names, verbs, subresources and selectable fields as kube-apiserver 1.36 serves them.

use std::borrow::Cow;

use k8s_openapi::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as crd;
use karpenter_primitives::names;
use schemars::{JsonSchema, SchemaGenerator};

use super::{BuiltinKind, Generation, Rules, Subresource};
use super::{
    autoscaling, batch, config, devices, event, lease, limits, namespace, network, node, pod, policy, rbac,
    scheduling, storage, webhooks, workloads,
};

/// All built-in kinds, grouped as in discovery.
pub(crate) fn builtins() -> &'static [BuiltinKind] {
    BUILTINS
}

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS: Subresource = sub("status", "", "", "", &["get", "patch", "update"]);
const SCALE: Subresource = sub("scale", "Scale", "autoscaling", "v1", &["get", "patch", "update"]);

const fn sub(
    name: &'static str,
    kind: &'static str,
    group: &'static str,
    version: &'static str,
    verbs: &'static [&'static str],
) -> Subresource {
    Subresource { name, kind, group, version, verbs }
}

fn structure_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Cow<'static, str> {
    generator.subschema_for::<T>();
    T::schema_name()
}

const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    structure: fn(&mut SchemaGenerator) -> Cow<'static, str>,
) -> BuiltinKind {
    BuiltinKind {
        group,
        version,
        kind,
        plural,
        singular,
        short_names: &[],
        categories: &[],
        namespaced: false,
        status: false,
        scale: false,
        subresources: &[],
        selectable_fields: &[],
        verbs: VERBS,
        view_of: None,
        unconditional_update: true,
        create_on_update: false,
        name_errors: names::dns1123_subdomain_errors,
        generation: Generation::None,
        structure,
        rules: &Rules::NONE,
    }
}

/// How a row of the table is written: each method sets what differs from the plain kind.
impl BuiltinKind {
    const fn namespaced(mut self) -> Self {
        self.namespaced = true;
        self
    }

    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = names;
        self
    }

    const fn categories(mut self, categories: &'static [&'static str]) -> Self {
        self.categories = categories;
        self
    }

    const fn verbs(mut self, verbs: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self
    }

    const fn subresources(mut self, subresources: &'static [Subresource]) -> Self {
        let mut i = 0;
        while i < subresources.len() {
            match subresources[i].name.as_bytes() {
                b"status" => self.status = true,
                b"scale" => self.scale = true,
                _ => {}
            }
            i += 1;
        }
        self.subresources = subresources;
        self
    }

    const fn selectable(mut self, fields: &'static [&'static str]) -> Self {
        self.selectable_fields = fields;
        self
    }

    const fn needs_resource_version(mut self) -> Self {
        self.unconditional_update = false;
        self
    }

    const fn create_on_update(mut self) -> Self {
        self.create_on_update = true;
        self
    }

    const fn view_of(mut self, group: &'static str, version: &'static str) -> Self {
        self.view_of = Some((group, version));
        self
    }

    const fn generation(mut self, generation: Generation) -> Self {
        self.generation = generation;
        self
    }

    /// Names are labels of RFC 1123.
    const fn label_names(mut self) -> Self {
        self.name_errors = names::dns1123_label_errors;
        self
    }

    /// Any name that can stand in a path will do.
    const fn free_names(mut self) -> Self {
        self.name_errors = names::path_segment_errors;
        self
    }

    const fn rules(mut self, rules: &'static Rules) -> Self {
        self.rules = rules;
        self
    }
}

static BUILTINS: &[BuiltinKind] = &[
    kind("", "v1", "Binding", "bindings", "binding", structure_of::<api::core::v1::Binding>)
        .namespaced()
        .verbs(&["create"]),
    kind("", "v1", "ConfigMap", "configmaps", "configmap", structure_of::<api::core::v1::ConfigMap>)
        .rules(&config::CONFIG_MAP)
        .namespaced()
        .short(&["cm"]),
    kind("", "v1", "Endpoints", "endpoints", "endpoints", structure_of::<api::core::v1::Endpoints>)
        .rules(&network::ENDPOINTS)
        .namespaced()
        .short(&["ep"])
        .create_on_update(),
    kind("", "v1", "Event", "events", "event", structure_of::<api::core::v1::Event>)
        .free_names()
        .rules(&event::CORE)
        .namespaced()
        .short(&["ev"])
        .selectable(&[
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.resourceVersion",
            "involvedObject.uid",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ])
        .create_on_update(),
    kind("", "v1", "LimitRange", "limitranges", "limitrange", structure_of::<api::core::v1::LimitRange>)
        .rules(&limits::LIMIT_RANGE)
        .namespaced()
        .short(&["limits"])
        .create_on_update(),
    kind("", "v1", "Namespace", "namespaces", "namespace", structure_of::<api::core::v1::Namespace>)
        .label_names()
        .rules(&namespace::RULES)
        .short(&["ns"])
        .verbs(&["create", "delete", "get", "list", "patch", "update", "watch"])
        .subresources(&[sub("finalize", "Namespace", "", "v1", &["update"]), STATUS])
        .selectable(&["status.phase"]),
    kind("", "v1", "Node", "nodes", "node", structure_of::<api::core::v1::Node>)
        .rules(&node::RULES)
        .short(&["no"])
        .subresources(&[STATUS])
        .selectable(&["spec.unschedulable"]),
    kind(
        "",
        "v1",
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        "persistentvolumeclaim",
        structure_of::<api::core::v1::PersistentVolumeClaim>,
    )
    .rules(&storage::CLAIM)
    .namespaced()
    .short(&["pvc"])
    .subresources(&[STATUS]),
    kind(
        "",
        "v1",
        "PersistentVolume",
        "persistentvolumes",
        "persistentvolume",
        structure_of::<api::core::v1::PersistentVolume>,
    )
    .rules(&storage::VOLUME)
    .short(&["pv"])
    .subresources(&[STATUS]),
    kind("", "v1", "Pod", "pods", "pod", structure_of::<api::core::v1::Pod>)
        .rules(&pod::RULES)
        .namespaced()
        .short(&["po"])
        .categories(&["all"])
        .subresources(&[
            sub("binding", "Binding", "", "v1", &["create"]),
            sub("ephemeralcontainers", "Pod", "", "v1", &["get", "patch", "update"]),
            sub("eviction", "Eviction", "policy", "v1", &["create"]),
            sub("log", "Pod", "", "v1", &["get"]),
            sub("resize", "Pod", "", "v1", &["get", "patch", "update"]),
            STATUS,
        ])
        .selectable(&[
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
        ])
        .generation(Generation::Spec),
    kind("", "v1", "PodTemplate", "podtemplates", "podtemplate", structure_of::<api::core::v1::PodTemplate>)
        .rules(&workloads::POD_TEMPLATE)
        .generation(Generation::Content)
        .namespaced(),
    kind(
        "",
        "v1",
        "ReplicationController",
        "replicationcontrollers",
        "replicationcontroller",
        structure_of::<api::core::v1::ReplicationController>,
    )
    .rules(&workloads::REPLICATION_CONTROLLER)
    .namespaced()
    .short(&["rc"])
    .categories(&["all"])
    .subresources(&[SCALE, STATUS])
    .selectable(&["status.replicas"])
    .generation(Generation::Spec),
    kind(
        "",
        "v1",
        "ResourceQuota",
        "resourcequotas",
        "resourcequota",
        structure_of::<api::core::v1::ResourceQuota>,
    )
    .rules(&limits::RESOURCE_QUOTA)
    .namespaced()
    .short(&["quota"])
    .subresources(&[STATUS]),
    kind("", "v1", "Secret", "secrets", "secret", structure_of::<api::core::v1::Secret>)
        .rules(&config::SECRET)
        .namespaced()
        .selectable(&["type"]),
    kind(
        "",
        "v1",
        "ServiceAccount",
        "serviceaccounts",
        "serviceaccount",
        structure_of::<api::core::v1::ServiceAccount>,
    )
    .rules(&config::SERVICE_ACCOUNT)
    .namespaced()
    .short(&["sa"])
    .subresources(&[sub("token", "TokenRequest", "authentication.k8s.io", "v1", &["create"])]),
    kind("", "v1", "Service", "services", "service", structure_of::<api::core::v1::Service>)
        .label_names()
        .rules(&network::SERVICE)
        .namespaced()
        .short(&["svc"])
        .categories(&["all"])
        .subresources(&[STATUS])
        .selectable(&["spec.clusterIP", "spec.type"])
        .create_on_update(),
    kind(
        "apps",
        "v1",
        "ControllerRevision",
        "controllerrevisions",
        "controllerrevision",
        structure_of::<api::apps::v1::ControllerRevision>,
    )
    .rules(&workloads::CONTROLLER_REVISION)
    .namespaced(),
    kind("apps", "v1", "DaemonSet", "daemonsets", "daemonset", structure_of::<api::apps::v1::DaemonSet>)
        .rules(&workloads::DAEMON_SET)
        .namespaced()
        .short(&["ds"])
        .categories(&["all"])
        .subresources(&[STATUS])
        .generation(Generation::Spec),
    kind("apps", "v1", "Deployment", "deployments", "deployment", structure_of::<api::apps::v1::Deployment>)
        .rules(&workloads::DEPLOYMENT)
        .namespaced()
        .short(&["deploy"])
        .categories(&["all"])
        .subresources(&[SCALE, STATUS])
        .generation(Generation::SpecAndAnnotations),
    kind("apps", "v1", "ReplicaSet", "replicasets", "replicaset", structure_of::<api::apps::v1::ReplicaSet>)
        .rules(&workloads::REPLICA_SET)
        .namespaced()
        .short(&["rs"])
        .categories(&["all"])
        .subresources(&[SCALE, STATUS])
        .selectable(&["status.replicas"])
        .generation(Generation::Spec),
    kind(
        "apps",
        "v1",
        "StatefulSet",
        "statefulsets",
        "statefulset",
        structure_of::<api::apps::v1::StatefulSet>,
    )
    .label_names()
    .rules(&workloads::STATEFUL_SET)
    .namespaced()
    .short(&["sts"])
    .categories(&["all"])
    .subresources(&[SCALE, STATUS])
    .generation(Generation::Spec),
    kind("batch", "v1", "CronJob", "cronjobs", "cronjob", structure_of::<api::batch::v1::CronJob>)
        .rules(&batch::CRON_JOB)
        .namespaced()
        .short(&["cj"])
        .categories(&["all"])
        .subresources(&[STATUS])
        .generation(Generation::Spec),
    kind("batch", "v1", "Job", "jobs", "job", structure_of::<api::batch::v1::Job>)
        .rules(&batch::JOB)
        .namespaced()
        .categories(&["all"])
        .subresources(&[STATUS])
        .selectable(&["status.successful"])
        .generation(Generation::Spec),
    kind(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        "poddisruptionbudget",
        structure_of::<api::policy::v1::PodDisruptionBudget>,
    )
    .free_names()
    .rules(&policy::DISRUPTION_BUDGET)
    .namespaced()
    .short(&["pdb"])
    .subresources(&[STATUS])
    .needs_resource_version()
    .generation(Generation::Spec),
    kind(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
        "priorityclass",
        structure_of::<api::scheduling::v1::PriorityClass>,
    )
    .rules(&scheduling::PRIORITY_CLASS)
    .short(&["pc"])
    .generation(Generation::Once),
    kind(
        "storage.k8s.io",
        "v1",
        "CSIDriver",
        "csidrivers",
        "csidriver",
        structure_of::<api::storage::v1::CSIDriver>,
    )
    .rules(&storage::CSI_DRIVER)
    .needs_resource_version()
    .generation(Generation::SpecFromZero),
    kind("storage.k8s.io", "v1", "CSINode", "csinodes", "csinode", structure_of::<api::storage::v1::CSINode>)
        .rules(&storage::CSI_NODE)
        .needs_resource_version(),
    kind(
        "storage.k8s.io",
        "v1",
        "CSIStorageCapacity",
        "csistoragecapacities",
        "csistoragecapacity",
        structure_of::<api::storage::v1::CSIStorageCapacity>,
    )
    .rules(&storage::CAPACITY)
    .namespaced()
    .needs_resource_version(),
    kind(
        "storage.k8s.io",
        "v1",
        "StorageClass",
        "storageclasses",
        "storageclass",
        structure_of::<api::storage::v1::StorageClass>,
    )
    .rules(&storage::STORAGE_CLASS)
    .short(&["sc"]),
    kind(
        "storage.k8s.io",
        "v1",
        "VolumeAttachment",
        "volumeattachments",
        "volumeattachment",
        structure_of::<api::storage::v1::VolumeAttachment>,
    )
    .rules(&storage::ATTACHMENT)
    .subresources(&[STATUS])
    .needs_resource_version(),
    kind(
        "storage.k8s.io",
        "v1",
        "VolumeAttributesClass",
        "volumeattributesclasses",
        "volumeattributesclass",
        structure_of::<api::storage::v1::VolumeAttributesClass>,
    )
    .rules(&storage::ATTRIBUTES_CLASS)
    .short(&["vac"]),
    kind(
        "coordination.k8s.io",
        "v1",
        "Lease",
        "leases",
        "lease",
        structure_of::<api::coordination::v1::Lease>,
    )
    .rules(&lease::RULES)
    .namespaced()
    .needs_resource_version()
    .create_on_update(),
    kind("events.k8s.io", "v1", "Event", "events", "event", structure_of::<api::events::v1::Event>)
        .rules(&event::VIEW)
        .namespaced()
        .short(&["ev"])
        .selectable(&[
            "reason",
            "regarding.apiVersion",
            "regarding.fieldPath",
            "regarding.kind",
            "regarding.name",
            "regarding.namespace",
            "regarding.resourceVersion",
            "regarding.uid",
            "reportingController",
            "type",
        ])
        .create_on_update()
        .view_of("", "v1"),
    kind(
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
        "clusterrolebinding",
        structure_of::<api::rbac::v1::ClusterRoleBinding>,
    )
    .free_names()
    .rules(&rbac::CLUSTER_ROLE_BINDING)
    .create_on_update(),
    kind(
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRole",
        "clusterroles",
        "clusterrole",
        structure_of::<api::rbac::v1::ClusterRole>,
    )
    .free_names()
    .rules(&rbac::CLUSTER_ROLE)
    .create_on_update(),
    kind(
        "rbac.authorization.k8s.io",
        "v1",
        "RoleBinding",
        "rolebindings",
        "rolebinding",
        structure_of::<api::rbac::v1::RoleBinding>,
    )
    .free_names()
    .rules(&rbac::ROLE_BINDING)
    .namespaced()
    .create_on_update(),
    kind("rbac.authorization.k8s.io", "v1", "Role", "roles", "role", structure_of::<api::rbac::v1::Role>)
        .free_names()
        .rules(&rbac::ROLE)
        .namespaced()
        .create_on_update(),
    kind(
        "resource.k8s.io",
        "v1",
        "DeviceClass",
        "deviceclasses",
        "deviceclass",
        structure_of::<api::resource::v1::DeviceClass>,
    )
    .generation(Generation::Spec),
    kind(
        "resource.k8s.io",
        "v1",
        "ResourceClaim",
        "resourceclaims",
        "resourceclaim",
        structure_of::<api::resource::v1::ResourceClaim>,
    )
    .rules(&devices::CLAIM)
    .namespaced()
    .subresources(&[STATUS]),
    kind(
        "resource.k8s.io",
        "v1",
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
        "resourceclaimtemplate",
        structure_of::<api::resource::v1::ResourceClaimTemplate>,
    )
    .rules(&devices::CLAIM_TEMPLATE)
    .namespaced(),
    kind(
        "resource.k8s.io",
        "v1",
        "ResourceSlice",
        "resourceslices",
        "resourceslice",
        structure_of::<api::resource::v1::ResourceSlice>,
    )
    .rules(&devices::SLICE)
    .selectable(&["spec.driver", "spec.nodeName"])
    .generation(Generation::Spec),
    kind(
        "discovery.k8s.io",
        "v1",
        "EndpointSlice",
        "endpointslices",
        "endpointslice",
        structure_of::<api::discovery::v1::EndpointSlice>,
    )
    .rules(&network::ENDPOINT_SLICE)
    .namespaced()
    .generation(Generation::Content),
    kind(
        "networking.k8s.io",
        "v1",
        "IngressClass",
        "ingressclasses",
        "ingressclass",
        structure_of::<api::networking::v1::IngressClass>,
    )
    .rules(&network::INGRESS_CLASS)
    .generation(Generation::Spec),
    kind(
        "networking.k8s.io",
        "v1",
        "Ingress",
        "ingresses",
        "ingress",
        structure_of::<api::networking::v1::Ingress>,
    )
    .rules(&network::INGRESS)
    .namespaced()
    .short(&["ing"])
    .subresources(&[STATUS])
    .generation(Generation::Spec),
    kind(
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
        "networkpolicy",
        structure_of::<api::networking::v1::NetworkPolicy>,
    )
    .rules(&network::NETWORK_POLICY)
    .namespaced()
    .short(&["netpol"])
    .generation(Generation::Spec),
    kind(
        "node.k8s.io",
        "v1",
        "RuntimeClass",
        "runtimeclasses",
        "runtimeclass",
        structure_of::<api::node::v1::RuntimeClass>,
    )
    .rules(&devices::RUNTIME_CLASS)
    .needs_resource_version()
    .create_on_update(),
    kind(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        "horizontalpodautoscaler",
        structure_of::<api::autoscaling::v2::HorizontalPodAutoscaler>,
    )
    .rules(&autoscaling::V2)
    .namespaced()
    .short(&["hpa"])
    .categories(&["all"])
    .subresources(&[STATUS]),
    kind(
        "autoscaling",
        "v1",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        "horizontalpodautoscaler",
        structure_of::<api::autoscaling::v1::HorizontalPodAutoscaler>,
    )
    .rules(&autoscaling::V1)
    .namespaced()
    .short(&["hpa"])
    .categories(&["all"])
    .subresources(&[STATUS])
    .view_of("autoscaling", "v2"),
    kind(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "customresourcedefinition",
        structure_of::<crd::CustomResourceDefinition>,
    )
    .short(&["crd", "crds"])
    .categories(&["api-extensions"])
    .subresources(&[STATUS])
    .needs_resource_version()
    .generation(Generation::Spec),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        "mutatingwebhookconfiguration",
        structure_of::<api::admissionregistration::v1::MutatingWebhookConfiguration>,
    )
    .rules(&webhooks::MUTATING)
    .categories(&["api-extensions"])
    .needs_resource_version()
    .generation(Generation::Content),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        "validatingadmissionpolicy",
        structure_of::<api::admissionregistration::v1::ValidatingAdmissionPolicy>,
    )
    .rules(&webhooks::POLICY)
    .categories(&["api-extensions"])
    .subresources(&[STATUS])
    .needs_resource_version()
    .generation(Generation::Spec),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicybinding",
        structure_of::<api::admissionregistration::v1::ValidatingAdmissionPolicyBinding>,
    )
    .rules(&webhooks::POLICY_BINDING)
    .categories(&["api-extensions"])
    .needs_resource_version()
    .generation(Generation::Spec),
    kind(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        "validatingwebhookconfiguration",
        structure_of::<api::admissionregistration::v1::ValidatingWebhookConfiguration>,
    )
    .rules(&webhooks::VALIDATING)
    .categories(&["api-extensions"])
    .needs_resource_version()
    .generation(Generation::Content),
    kind(
        "authorization.k8s.io",
        "v1",
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        "localsubjectaccessreview",
        structure_of::<api::authorization::v1::LocalSubjectAccessReview>,
    )
    .namespaced()
    .verbs(&["create"]),
    kind(
        "authorization.k8s.io",
        "v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        structure_of::<api::authorization::v1::SelfSubjectAccessReview>,
    )
    .verbs(&["create"]),
    kind(
        "authorization.k8s.io",
        "v1",
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        structure_of::<api::authorization::v1::SelfSubjectRulesReview>,
    )
    .verbs(&["create"]),
    kind(
        "authorization.k8s.io",
        "v1",
        "SubjectAccessReview",
        "subjectaccessreviews",
        "subjectaccessreview",
        structure_of::<api::authorization::v1::SubjectAccessReview>,
    )
    .verbs(&["create"]),
];
