//! The definition of the NodePool kind.

use serde_json::json;

use super::NodePool;
use crate::crd::{Column, Crd, Scale, Scope};
use crate::nodeclaim::{expire_after_schema, termination_grace_period_schema};
use crate::requirement::{Use, requirements_schema, taints_schema};
use crate::schema::{LABEL_VALUE_PATTERN, NILLABLE_DURATION_PATTERN, Schema};
use crate::{GROUP, NodeClassReference, conditions};

impl NodePool {
    /// The definition of the kind.
    pub fn crd() -> Crd {
        let spec = Schema::object()
            .describe("Which nodes may be launched, how many, and when they may be disrupted.")
            .required("template", template())
            .optional("disruption", disruption())
            .optional("limits", Schema::resource_list()
                .describe("The most of each resource the pool's nodes may have together; nodes counts nodes, and is the only limit of a static pool."))
            .optional("weight", Schema::int32()
                .describe("Pools of greater weight are tried first; without one the weight is 0. Not for static pools.")
                .minimum(1)
                .maximum(100))
            .optional("replicas", Schema::int64()
                .describe("Alpha: makes the pool static, with this many nodes whatever the pods need. Consolidation settings and weight do not apply then.")
                .minimum(0))
            .cel(
                "has(self.replicas) == has(oldSelf.replicas)",
                "Cannot transition NodePool between static (replicas set) and dynamic (replicas unset) provisioning modes",
            )
            .cel(
                "!has(self.replicas) || (!has(self.limits) || size(self.limits) == 0 || (size(self.limits) == 1 && 'nodes' in self.limits))",
                "only 'limits.nodes' is supported on static NodePools",
            )
            .cel("!has(self.replicas) || !has(self.weight)", "'weight' is not supported on static NodePools");
        let status = Schema::object()
            .describe("What there is of the pool.")
            .optional("conditions", conditions::keyed_schema())
            .optional(
                "nodeClassObservedGeneration",
                Schema::int64()
                    .describe("The generation of the NodeClass for which node registration was judged."),
            )
            .optional(
                "nodes",
                Schema::int64().describe("How many nodes the pool has.").default_value(0.into()),
            )
            .optional(
                "resources",
                Schema::resource_list().describe("The resources of the pool's nodes together."),
            );
        Crd {
            group: GROUP,
            version: "v1",
            kind: "NodePool",
            plural: "nodepools",
            short_names: &[],
            categories: &["karpenter"],
            scope: Scope::Cluster,
            columns: vec![
                Column::text("NodeClass", ".spec.template.spec.nodeClassRef.name"),
                Column::text("Nodes", ".status.nodes"),
                Column::text("Ready", r#".status.conditions[?(@.type=="Ready")].status"#),
                Column::age(),
                Column::integer("Weight", ".spec.weight").wide(),
                Column::text("CPU", ".status.resources.cpu").wide(),
                Column::text("Memory", ".status.resources.memory").wide(),
            ],
            scale: Some(Scale { spec_replicas: ".spec.replicas", status_replicas: ".status.nodes" }),
            schema: Crd::root("A kind of node to launch for pods that need one.")
                .required("spec", spec)
                .optional("status", status),
        }
    }
}

fn template() -> Schema {
    let metadata = Schema::object()
        .describe("Labels and annotations of the NodeClaims and nodes.")
        .optional("annotations", Schema::map_of(Schema::string())
            .describe("Annotations of the NodeClaims and nodes.")
            .map_type("granular"))
        .optional("labels", Schema::map_of(Schema::string().max_length(63).pattern(LABEL_VALUE_PATTERN))
            .describe("Labels of the NodeClaims and nodes.")
            .max_properties(100)
            .map_type("atomic")
            .cel(
                r#"self.all(x, x in ["karpenter.sh/capacity-type", "karpenter.sh/nodepool"] || !x.find("^([^/]+)").endsWith("karpenter.sh"))"#,
                r#"label domain "karpenter.sh" is restricted"#,
            )
            .cel(r#"self.all(x, x != "karpenter.sh/nodepool")"#, r#"label "karpenter.sh/nodepool" is restricted"#)
            .cel(r#"self.all(x, x != "kubernetes.io/hostname")"#, r#"label "kubernetes.io/hostname" is restricted"#));
    let spec = Schema::object()
        .describe("What every NodeClaim of the pool asks for; each may narrow it further.")
        .optional("expireAfter", expire_after_schema())
        .required("nodeClassRef", NodeClassReference::schema()
            .cel("self.group == oldSelf.group", "nodeClassRef.group is immutable")
            .cel("self.kind == oldSelf.kind", "nodeClassRef.kind is immutable"))
        .required("requirements", requirements_schema(Use::Pool))
        .optional("startupTaints", taints_schema("Taints the nodes start with and that some other program removes soon; pods need not tolerate them for a node to be launched."))
        .optional("taints", taints_schema("Taints the nodes get."))
        .optional("terminationGracePeriod", termination_grace_period_schema());
    Schema::object()
        .describe("What the pool's NodeClaims look like.")
        .optional("metadata", metadata)
        .required("spec", spec)
}

fn disruption() -> Schema {
    let budget = Schema::object()
        .describe("A bound on how many nodes are disrupted at once.")
        .optional("duration", Schema::string()
            .describe("How long the budget counts from each time the schedule hits, in hours and minutes. Goes with schedule.")
            .pattern("^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"))
        .required("nodes", Schema::string()
            .describe("How many of the pool's nodes may be under way at once: a number, or a percentage, rounded up.")
            .pattern("^((100|[0-9]{1,2})%|[0-9]+)$")
            .default_value("10%".into()))
        .optional("reasons", Schema::list_of(Schema::string()
                .describe("A reason to disrupt a node.")
                .one_of(&["Underutilized", "Empty", "Drifted", "Unhealthy"]))
            .describe("The reasons the budget is about; all of them if left out.")
            .max_items(50)
            .set_list())
        .optional("schedule", Schema::string()
            .describe("When the budget begins to count: a cron schedule or macro in UTC. Without it the budget always counts. Goes with duration.")
            .pattern(r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"));
    Schema::object()
        .describe("When and how many nodes may be disrupted.")
        .default_value(json!({ "consolidateAfter": "0s" }))
        .optional("budgets", Schema::list_of(budget)
            .describe("Bounds on how many nodes are disrupted at once; of those that count at a time the strictest holds.")
            .default_value(json!([{ "nodes": "10%" }]))
            .max_items(50)
            .atomic_list()
            .cel("self.all(x, has(x.schedule) == has(x.duration))", "'schedule' must be set with 'duration'"))
        .optional("consolidateAfter", Schema::string()
            .describe("How long pods must have come to or left a node no more before it may be consolidated; Never switches consolidation off. Ignored by static pools.")
            .pattern(NILLABLE_DURATION_PATTERN)
            .default_value("0s".into()))
        .optional("consolidationPolicy", Schema::string()
            .describe("Which nodes may be consolidated: WhenEmpty, WhenEmptyOrUnderutilized or Balanced. Ignored by static pools.")
            .one_of(&["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"])
            .default_value("WhenEmptyOrUnderutilized".into()))
}
