//! The definition of ClusterAPINodeClass.

use karpenter_api::conditions;
use karpenter_api::crd::{Column, Crd, Scope};
use karpenter_api::schema::{DURATION_PATTERN, Schema};

use super::ClusterAPINodeClass;
use crate::GROUP;

const PRICE_PATTERN: &str = r"^\d+(\.\d+)?$";
/// Whatever can be read as a price: tables were not checked when they were written.
const TABLED_PRICE_PATTERN: &str = r"^\s*\+?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$";
/// A quantity or a percentage.
const THRESHOLD_PATTERN: &str =
    r"^\s*(\d+(\.\d*)?\s*%|\+?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?\d+)?)\s*$";
const LABEL_VALUE_PATTERN: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

impl ClusterAPINodeClass {
    /// The definition of the kind.
    pub fn crd() -> Crd {
        Crd {
            group: GROUP,
            version: "v1alpha1",
            kind: "ClusterAPINodeClass",
            plural: "clusterapinodeclasses",
            short_names: &["capinc", "capincs"],
            categories: &["karpenter"],
            scope: Scope::Cluster,
            columns: Vec::<Column>::new(),
            scale: None,
            schema: Crd::root("Which MachineDeployments of Cluster API may be scaled, and how.")
                .optional("spec", spec())
                .optional("status", status()),
        }
    }
}

fn spec() -> Schema {
    Schema::object()
        .describe("Which MachineDeployments may be scaled, and how.")
        .optional("clusterRef", cluster_reference())
        .optional(
            "namespaces",
            Schema::list_of(Schema::string().min_length(1).max_length(63))
                .describe("The namespaces of the management cluster that the NodeClass is for: in a cluster whose Cluster is in another one it offers nothing. Left out or empty, for all.")
                .set_list()
                .max_items(100),
        )
        .optional("scalableResourceSelector", selector("The labels of the MachineDeployments that may be scaled."))
        .optional(
            "selectorMode",
            Schema::string()
                .describe("Whether the selector narrows what carries the member label (And, the default) or decides alone (Replace).")
                .one_of(&["And", "Replace"]),
        )
        .optional(
            "launchMode",
            Schema::string()
                .describe("What is made for a NodeClaim: one more replica (MachineDeployment, the default) or a Machine of its own, cloned from the templates of a MachineDeployment or from machineTemplates (Machine).")
                .one_of(&["MachineDeployment", "Machine"]),
        )
        .optional(
            "adoption",
            Schema::string()
                .describe("Which Machines that Karpenter did not ask for become its own: none (Never, the default), those that nobody has claimed, once a NodeClaim waits (Unclaimed), or every one that has a Node, at once (Existing).")
                .one_of(&["Never", "Unclaimed", "Existing"]),
        )
        .optional(
            "inheritTaints",
            Schema::boolean()
                .describe("Whether NodePools need not declare the taints of nodes: pods have to tolerate them all the same, and NodeClaims carry them."),
        )
        .optional(
            "drift",
            Schema::string()
                .describe("Who replaces nodes whose template has changed: Cluster API by its rollouts (ClusterAPI, the default of Machines that MachineSets make), Karpenter under its budgets (Karpenter, the default of Machines that it makes itself, which no rollout replaces; use OnDelete MachineDeployments), or nobody (Off).")
                .one_of(&["Karpenter", "ClusterAPI", "Off"]),
        )
        .optional(
            "remediation",
            Schema::string()
                .describe("Who replaces Machines that a MachineHealthCheck condemns: Cluster API (ClusterAPI, the default) or Karpenter, at once (Karpenter); or health checks leave Machines alone, and Karpenter's node repair replaces nodes by their conditions, within budgets (NodeRepair; takes the feature gate NodeRepair).")
                .one_of(&["Karpenter", "NodeRepair", "ClusterAPI"]),
        )
        .optional(
            "repairConditions",
            Schema::list_of(repair_condition())
                .describe("Further conditions of Nodes that node repair goes by: takes the feature gate NodeRepair.")
                .atomic_list()
                .max_items(20),
        )
        .optional(
            "interruptionConditions",
            Schema::list_of(Schema::string().min_length(1))
                .describe("Types of conditions of Machines or Nodes that say, when True, that the machine is about to be taken away: its NodeClaim is deleted, so that its node is drained and replaced in time.")
                .atomic_list(),
        )
        .optional(
            "launchWhileRolloutPaused",
            Schema::boolean()
                .describe("Whether MachineDeployments are launched from while their spec.paused stops rollouts (default: false). One that stands still in the middle of a rollout is not, for its new Machines may be of either kind."),
        )
        .optional(
            "failureDomainZones",
            Schema::map_of(label_value().min_length(1)).describe("The zone label of nodes in each failure domain, where it is not the failure domain's name."),
        )
        .optional("instanceTypes", Schema::list_of(instance_type()).describe("What instance types have where neither annotations nor templates tell.").atomic_list())
        .optional("kubelet", kubelet())
        .optional(
            "defaultReservations",
            Schema::string()
                .describe("What kubelet is taken to reserve where neither kubelet, nor annotations, nor a Node tell: nothing, as kubeadm has it (None, the default), or as clouds usually have it, a share of cores and memory that falls with size (Curve).")
                .one_of(&["None", "Curve"]),
        )
        .optional("pricing", pricing())
        .optional("timeouts", timeouts())
        .optional("launchLimits", launch_limits())
        .optional("bootstrapPatches", patches("In Machine mode: what is changed in the spec of a bootstrap template's clone."))
        .optional("infrastructurePatches", patches("In Machine mode: what is changed in the spec of an infrastructure template's clone."))
        .optional(
            "machineTemplates",
            Schema::list_of(machine_template())
                .describe("In Machine mode: what Machines are made from, in place of MachineDeployments; each is an instance type.")
                .map_list("name")
                .max_items(100),
        )
        .optional("machineTemplateSelector", machine_template_selector())
        .cel(
            "!has(self.machineTemplates) || (has(self.launchMode) && self.launchMode == 'Machine')",
            "machineTemplates is for launchMode Machine",
        )
        .cel(
            "!has(self.machineTemplateSelector) || (has(self.launchMode) && self.launchMode == 'Machine')",
            "machineTemplateSelector is for launchMode Machine",
        )
        .cel(
            "!has(self.bootstrapPatches) || (has(self.launchMode) && self.launchMode == 'Machine')",
            "bootstrapPatches is for launchMode Machine",
        )
        .cel(
            "!has(self.infrastructurePatches) || (has(self.launchMode) && self.launchMode == 'Machine')",
            "infrastructurePatches is for launchMode Machine",
        )
        .cel(
            "!has(self.selectorMode) || self.selectorMode != 'Replace' || has(self.scalableResourceSelector)",
            "selectorMode Replace takes a scalableResourceSelector",
        )
}

fn cluster_reference() -> Schema {
    let text = |text: &str| Schema::string().describe(text).min_length(1).max_length(253);
    Schema::object()
        .describe("The Cluster that the NodeClass is for: in any other it offers nothing. Where neither CLUSTER_NAME nor Nodes say which Cluster this cluster is, this does.")
        .required("name", text("Its name."))
        .required("namespace", text("Its namespace in the management cluster."))
}

fn repair_condition() -> Schema {
    Schema::object()
        .describe("A condition of Nodes, and how long it is borne.")
        .required("type", Schema::string().describe("Its type.").min_length(1).max_length(316))
        .required(
            "status",
            Schema::string()
                .describe("Its status when the node is broken.")
                .one_of(&["True", "False", "Unknown"]),
        )
        .optional(
            "after",
            Schema::string().describe("How long that is borne (default 30m).").pattern(DURATION_PATTERN),
        )
}

fn template_reference(text: &str) -> Schema {
    template_kind(Schema::object().describe(text), "Its")
        .required("name", Schema::string().describe("Its name.").min_length(1).max_length(253))
}

fn template_kind(of: Schema, whose: &str) -> Schema {
    of.required(
        "apiGroup",
        Schema::string().describe(&format!("{whose} API group.")).min_length(1).max_length(253),
    )
    .required(
        "kind",
        Schema::string()
            .describe(&format!("{whose} kind."))
            .pattern("^[A-Z][A-Za-z0-9]*Template$")
            .max_length(63),
    )
}

fn machine_template_selector() -> Schema {
    let templates = Schema::object().describe(
        "In Machine mode: which infrastructure templates of the Cluster's namespace Machines are made from, besides machineTemplates and in place of MachineDeployments. Each is an instance type of its name, unless its annotations name another.",
    );
    made_with(
        template_kind(templates, "Their").required("selector", selector("The labels of the templates.")),
    )
}

fn machine_template() -> Schema {
    let templates = Schema::object()
        .describe("Templates that Machines of one instance type are made from.")
        .required(
            "name",
            Schema::string()
                .describe("The instance type, unless the infrastructure template names one.")
                .pattern("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
                .max_length(63),
        )
        .required(
            "infrastructureRef",
            template_reference("The template that infrastructure is cloned from, in the Cluster's namespace. Its status.capacity tells what a node has; its annotations are read as a MachineDeployment's are."),
        );
    made_with(templates)
}

/// What is said of Machines besides their infrastructure.
fn made_with(templates: Schema) -> Schema {
    templates
        .optional(
            "bootstrapRef",
            template_reference("The template that bootstrap configurations are cloned from."),
        )
        .optional(
            "bootstrapDataSecretName",
            Schema::string()
                .describe("The Secret with bootstrap data, in place of a bootstrapRef.")
                .min_length(1)
                .max_length(253),
        )
        .optional(
            "version",
            Schema::string()
                .describe("The Kubernetes version of the Machines.")
                .min_length(1)
                .max_length(256),
        )
        .optional(
            "failureDomains",
            Schema::list_of(Schema::string().min_length(1).max_length(256))
                .describe("Where Machines may be; left out, in each failure domain of the Cluster.")
                .atomic_list()
                .max_items(100),
        )
        .optional(
            "labels",
            Schema::map_of(label_value())
                .describe("Labels of the Machines: those of the domains that Cluster API copies to Nodes."),
        )
        .cel(
            "has(self.bootstrapRef) != has(self.bootstrapDataSecretName)",
            "either bootstrapRef or bootstrapDataSecretName has to be set",
        )
}

fn patches(text: &str) -> Schema {
    let patch = Schema::object()
        .describe("A change, as of JSON Patch.")
        .optional(
            "op",
            Schema::string().describe("What is done: Add (the default), Replace or Remove.").one_of(&["Add", "Replace", "Remove"]),
        )
        .required("path", Schema::string().describe("Where in the clone's spec, as a JSON pointer.").pattern("^/"))
        .optional("value", Schema::string().describe("With what, as JSON."))
        .optional(
            "valueFrom",
            Schema::string()
                .describe("With what instead: the labels of the NodeClaim, its taints (with the one that nodes register with), its name, or the arguments of kubelet that `kubelet` of this NodeClass comes to.")
                .one_of(&["Labels", "Taints", "Name", "Kubelet"]),
        )
        .cel("!has(self.value) || !has(self.valueFrom)", "value and valueFrom do not go together")
        .cel(
            "!(has(self.op) && self.op == 'Remove') == (has(self.value) || has(self.valueFrom))",
            "Add and Replace take value or valueFrom, Remove takes neither",
        );
    Schema::list_of(patch).describe(text).atomic_list().max_items(100)
}

fn launch_limits() -> Schema {
    Schema::object()
        .describe("How many nodes may be launched at a time; without it, as many as are needed.")
        .optional(
            "perResource",
            Schema::int32().describe("On their way at once, per MachineDeployment.").minimum(1),
        )
        .optional(
            "perMinute",
            Schema::int32().describe("Per minute, over all MachineDeployments of the NodeClass.").minimum(1),
        )
}

fn selector(text: &str) -> Schema {
    let values = Schema::list_of(Schema::string())
        .describe("The values: at least one for In and NotIn, none otherwise.")
        .atomic_list();
    let expression = Schema::object()
        .describe("A condition on one label.")
        .required("key", Schema::string().describe("The label."))
        .required(
            "operator",
            Schema::string()
                .describe("How the label relates to the values: In, NotIn, Exists or DoesNotExist.")
                .one_of(&["In", "NotIn", "Exists", "DoesNotExist"]),
        )
        .optional("values", values);
    Schema::object()
        .describe(text)
        .map_type("atomic")
        .optional(
            "matchExpressions",
            Schema::list_of(expression).describe("Conditions that must all hold.").atomic_list(),
        )
        .optional(
            "matchLabels",
            Schema::map_of(Schema::string()).describe("Labels and the values they must have."),
        )
}

/// What a label can have.
fn label_value() -> Schema {
    Schema::string().pattern(LABEL_VALUE_PATTERN).max_length(63)
}

fn price(text: &str) -> Schema {
    Schema::string().describe(text).pattern(PRICE_PATTERN)
}

fn instance_type() -> Schema {
    Schema::object()
        .describe("What an instance type has.")
        .required("name", Schema::string().describe("The instance type, or the name of a MachineDeployment."))
        .optional(
            "capacity",
            Schema::resource_list().describe("What its nodes have; cpu and memory are needed."),
        )
        .optional("price", price("Its price per hour."))
}

fn kubelet() -> Schema {
    Schema::object()
        .describe("How kubelet is set up on the nodes; needed to know what is left for pods.")
        .optional("kubeReserved", Schema::resource_list().describe("What is kept for kubelet and runtime."))
        .optional("systemReserved", Schema::resource_list().describe("What is kept for the system."))
        .optional(
            "evictionHard",
            Schema::map_of(Schema::string().pattern(THRESHOLD_PATTERN))
                .describe("What is kept free, by signal (memory.available, nodefs.available): a quantity or a percentage."),
        )
        .optional("maxPods", Schema::int32().describe("How many pods a node may have.").minimum(0))
}

fn pricing() -> Schema {
    Schema::object()
        .describe("Where prices come from, if annotations do not say.")
        .optional(
            "table",
            Schema::map_of(Schema::string().pattern(TABLED_PRICE_PATTERN)).describe(
                "Prices per hour by instance type, instance-type/zone or instance-type/zone/capacity-type.",
            ),
        )
        .optional(
            "configMapRef",
            Schema::object()
                .describe("A ConfigMap of the cluster that pods run in, with further entries of the table.")
                .required("namespace", Schema::string().describe("Its namespace.").min_length(1))
                .required("name", Schema::string().describe("Its name.").min_length(1)),
        )
        .optional(
            "endpoint",
            Schema::string()
                .describe(
                    "The URL of an endpoint that tells prices which neither table tells: a JSON object with the table's keys, or OpenCost's metric node_total_hourly_cost. Asked every 15 minutes; what it told last stays.",
                )
                .pattern("^https?://[^/@]+(/|$)")
                .max_length(2048),
        )
        .optional(
            "model",
            Schema::object()
                .describe(
                    "Prices worked out from resources, so that a larger node costs more than a smaller one.",
                )
                .optional("cpu", price("Of a core."))
                .optional("memoryGib", price("Of a GiB of memory."))
                .optional("gpu", price("Of one of any other countable resource.")),
        )
}

fn timeouts() -> Schema {
    let duration = |text: &str| Schema::string().describe(text).pattern(DURATION_PATTERN);
    Schema::object()
        .describe("How long things may take.")
        .optional("launch", duration("From NodeClaim to instance (default 5m); bare metal wants an hour."))
        .optional("registration", duration("From instance to registered node (default 15m)."))
        .optional("surplus", duration("For how long a Machine nobody waits for is kept (default 5m)."))
        .optional("hook", duration("For how long Cluster API waits for Karpenter to drain a Node whose Machine somebody else deletes. Left out, it does not wait."))
}

fn status() -> Schema {
    let text = |text: &str| Schema::string().describe(text);
    let offering = Schema::object()
        .describe("A place where it gives nodes.")
        .optional("zone", text("The zone."))
        .optional("price", text("The price per hour there."))
        .optional("priceSource", text("Where the price comes from."))
        .optional("unavailable", text("Why it is not offered there at the moment."));
    let learned = Schema::object()
        .describe(
            "What its Nodes told. It is kept for who runs next, and holds until the template is another.",
        )
        .optional("template", text("The template that they were made from."))
        .optional("templateHash", text("What that said, in short."))
        .optional("capacity", Schema::resource_list().describe("What a Node has."))
        .optional("allocatable", Schema::resource_list().describe("What of it pods may use."))
        .optional(
            "interruptible",
            Schema::boolean()
                .describe("Whether machines turned out to be such that may be taken away at any time."),
        );
    let resource = Schema::object()
        .describe("A scalable resource that takes part.")
        .required("name", text("Kind, namespace and name."))
        .optional("instanceType", text("The instance type it is offered as."))
        .optional("capacityType", text("How its nodes are paid for."))
        .optional("zone", text("Its zone, if it has one."))
        .optional("price", text("Its price per hour."))
        .optional("priceSource", text("Where the price comes from."))
        .optional(
            "offerings",
            Schema::list_of(offering).describe("Its zones and prices, where it has several.").atomic_list(),
        )
        .optional("replicas", Schema::int32().describe("How many replicas it has."))
        .optional("minReplicas", Schema::int32().describe("How many it has at least."))
        .optional(
            "unmanagedMachines",
            Schema::int32().describe("How many of its Machines are not Karpenter's."),
        )
        .optional("maxReplicas", Schema::int32().describe("How many it may have."))
        .optional("unavailable", text("Why it is not offered at the moment."))
        .optional(
            "waiting",
            text("What its Machines will have to wait for, where Cluster API holds them back: it is offered all the same."),
        )
        .optional("learned", learned);
    Schema::object()
        .describe("Whether the NodeClass can be used, and what it offers.")
        .optional("conditions", conditions::schema())
        .optional(
            "resources",
            Schema::list_of(resource)
                .describe("What takes part, and why it is or is not offered.")
                .atomic_list(),
        )
}
