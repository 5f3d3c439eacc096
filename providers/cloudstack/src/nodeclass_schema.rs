//! The definition of CloudStackNodeClass: what the API server takes and refuses, beside what [`crate::nodeclass`] reads.

use karpenter_api::conditions;
use karpenter_api::crd::{Column, Crd, Scope};
use karpenter_api::schema::Schema;

use crate::GROUP;
use crate::instancetypes::{MAX_CPUS, MAX_DISK_GB, MAX_MEMORY_LOST_PERCENT, MAX_MEMORY_MIB};
use crate::nodeclass::CloudStackNodeClass;

/// No server takes more user data, however it is compressed.
const MAX_USER_DATA: u32 = 1 << 20;

/// What can be the id of one thing: `-1` would be all projects at once.
const ID: &str = "^[A-Za-z0-9][A-Za-z0-9-]*$";

impl CloudStackNodeClass {
    /// The definition of the kind.
    pub fn crd() -> Crd {
        Crd {
            group: GROUP,
            version: "v1",
            kind: "CloudStackNodeClass",
            plural: "cloudstacknodeclasses",
            short_names: &["csnc", "csncs"],
            categories: &["karpenter"],
            scope: Scope::Cluster,
            columns: vec![
                Column::text("Ready", ".status.conditions[?(@.type=='Ready')].status"),
                Column::text("Zones", ".status.zoneNames"),
                Column::text("Offerings", ".status.offeringsAvailable"),
                Column::age(),
                Column::text("Zone", ".spec.zone").wide(),
            ],
            scale: None,
            schema: Crd::root("What the virtual machines of CloudStack are made of.")
                .optional("spec", spec_schema())
                .optional("status", status_schema()),
        }
    }
}

fn spec_schema() -> Schema {
    let text = |description| Schema::string().describe(description);
    let tags = Schema::map_of(Schema::string())
        .describe("Tags of the virtual machines.")
        .cel("self.all(k, k != '')", "empty tag keys aren't supported")
        .cel(
            "self.all(k, k != 'karpenter.sh/nodepool')",
            "tag contains a restricted tag matching karpenter.sh/nodepool",
        )
        .cel(
            "self.all(k, k !='karpenter.sh/nodeclaim')",
            "tag contains a restricted tag matching karpenter.sh/nodeclaim",
        )
        .cel(
            "self.all(k, k !='karpenter.k8s.cloudstack/nodeclass')",
            "tag contains a restricted tag matching karpenter.k8s.cloudstack/nodeclass",
        );
    let template = term("template")
        .optional("osType", text("Operating system of the template."))
        .optional(
            "family",
            text("Family the template says it is of, in a tag or detail.").min_length(1).max_length(255),
        )
        .optional(
            "version",
            text("Version of that family; * stands for anything.").min_length(1).max_length(255),
        );
    Schema::object()
        .describe("What the virtual machines are made of.")
        .required("networkSelectorTerms", terms("networkSelectorTerms", "networks", term("network")))
        .required(
            "serviceOfferingSelectorTerms",
            terms("serviceOfferingSelectorTerms", "service offerings", offering_term()),
        )
        .required(
            "templateSelectorTerms",
            terms_by("templateSelectorTerms", "templates", template, &["tags", "id", "name", "osType", "family"]),
        )
        .optional("diskOffering", text("Offering of an additional disk."))
        .optional(
            "rootDiskSize",
            Schema::int64().describe("Size of the root disk in gigabytes.").minimum(1).maximum(1000),
        )
        .optional("sshKeyPair", text("Name of the SSH key pair."))
        .optional("userData", text("User data the machine starts with.").max_length(MAX_USER_DATA))
        .optional("tags", tags)
        .optional("zone", text("Name of the zone."))
        .optional("zones", texts("More zones, by name or id."))
        .optional(
            "zoneSelectorTerms",
            Schema::list_of(term("zone")).describe("More zones: whatever any of the terms selects.").max_items(30).cel(
                "self.all(x, has(x.tags) || has(x.id) || has(x.name))",
                "expected at least one, got none, ['tags', 'id', 'name']",
            ),
        )
        .optional(
            "additionalNetworkSelectorTerms",
            Schema::list_of(term("network"))
                .describe("Networks of further interfaces, one per term, in order.")
                .max_items(7)
                .cel(
                    "self.all(x, has(x.tags) || has(x.id) || has(x.name))",
                    "expected at least one, got none, ['tags', 'id', 'name']",
                ),
        )
        .optional(
            "networkSelection",
            text("Which of several networks a machine gets: the first that has addresses, or one after the other.")
                .one_of(&["First", "Spread"]),
        )
        .optional("securityGroups", texts("Security groups, by name or id."))
        .optional(
            "securityGroupSelectorTerms",
            terms("securityGroupSelectorTerms", "security groups", term("security group")),
        )
        .optional("sshKeyPairs", texts("Names of further SSH key pairs."))
        .optional("rootDiskOffering", text("Disk offering of the root disk, by name or id."))
        .optional("dataDisks", data_disks())
        .optional("affinity", affinity())
        .optional(
            "projectID",
            text("Id of the project everything belongs to. Machines cannot follow to another.")
                .max_length(64)
                .pattern(ID)
                .cel("self == oldSelf", "projectID is immutable"),
        )
        .optional(
            "account",
            text("Name of the account everything belongs to, for administrators. Machines cannot follow to another.")
                .min_length(1)
                .max_length(255)
                .cel("self == oldSelf", "account is immutable"),
        )
        .optional(
            "domainID",
            text("Id of the domain of that account.")
                .min_length(1)
                .max_length(64)
                .pattern(ID)
                .cel("self == oldSelf", "domainID is immutable"),
        )
        .optional("credentialsRef", credentials_ref())
        .optional("customSizes", custom_sizes())
        .optional("customOfferings", custom_offerings())
        .optional("pricing", pricing())
        .optional(
            "capacityTypes",
            Schema::map_of(text("Capacity type of the offering.").one_of(&["spot", "on-demand"]))
                .describe("Capacity types of offerings by name; * stands for anything.")
                .max_properties(100),
        )
        .optional("reservations", reservations())
        .optional("maxPods", Schema::int64().describe("Pods per node.").minimum(1).maximum(1000))
        .optional(
            "deletionPolicy",
            text("Whether machines are expunged where that is allowed, or only destroyed.")
                .one_of(&["Expunge", "Destroy"]),
        )
        .optional(
            "arch",
            text("Architecture of templates that do not say theirs.").one_of(&["amd64", "arm64"]),
        )
        .optional(
            "details",
            Schema::map_of(Schema::string()).describe("Settings of the machines.").max_properties(50),
        )
        .optional("bootType", text("Firmware of the machines.").one_of(&["Bios", "UEFI"]))
        .optional("bootMode", text("How they boot.").one_of(&["Legacy", "Secure"]))
        .optional(
            "hypervisor",
            text("Hypervisor, such as KVM, where the template leaves it open.").min_length(1).max_length(63),
        )
        .optional(
            "dynamicScaling",
            Schema::boolean()
                .describe("Whether machines may be given more cores or memory while they run; they may not unless this is true."),
        )
        .optional("group", text("Group of machines in the user interface.").min_length(1).max_length(255))
        .optional(
            "vmMemoryOverheadPercent",
            Schema::int64()
                .describe("Percent of its memory that a machine never sees.")
                .minimum(0)
                .maximum(MAX_MEMORY_LOST_PERCENT),
        )
        .optional(
            "volatileOfferings",
            Schema::boolean().describe("Whether offerings with volatile root disks are used."),
        )
        .optional("userDataRef", value_ref("Secret or ConfigMap with the user data, instead of userData."))
        .optional(
            "userDataCompression",
            text("Whether user data is compressed however short it is.").one_of(&["Always", "WhenLong"]),
        )
        .optional("kubeReserved", Schema::resource_list().describe("What kubelet keeps for itself."))
        .optional("systemReserved", Schema::resource_list().describe("What kubelet keeps for the system."))
        .optional(
            "gpuResource",
            text("Resource GPUs are asked for by, such as amd.com/gpu, where the card's name does not tell.")
                .min_length(1)
                .max_length(253),
        )
        .optional("bootstrap", bootstrap())
        .optional("userDataID", text("Id of user data registered with CloudStack, instead of userData."))
        .optional(
            "userDataDetails",
            Schema::map_of(Schema::string())
                .describe("Values of the variables that registered user data declares; {{nodeClaim}} and its kind are filled in.")
                .max_properties(50),
        )
        .cel(
            "has(self.zone) || has(self.zones) || has(self.zoneSelectorTerms)",
            "expected at least one, got none, ['zone', 'zones', 'zoneSelectorTerms']",
        )
        .cel("has(self.projectID) == has(oldSelf.projectID)", "projectID is immutable")
        .cel("has(self.account) == has(oldSelf.account)", "account is immutable")
        .cel("has(self.credentialsRef) == has(oldSelf.credentialsRef)", "credentialsRef is immutable")
        .cel("has(self.account) == has(self.domainID)", "account and domainID need each other")
        .cel("!(has(self.account) && has(self.projectID))", "account and projectID exclude each other")
        .cel("!(has(self.userData) && has(self.userDataID))", "userData and userDataID exclude each other")
        .cel("!(has(self.userDataRef) && (has(self.userData) || has(self.userDataID)))", "userDataRef excludes userData and userDataID")
        .cel("!(has(self.bootstrap) && has(self.userDataID))", "bootstrap and userDataID exclude each other")
        .cel("!has(self.userDataDetails) || has(self.userDataID)", "userDataDetails are for userDataID")
        .cel(
            "!has(self.bootstrap) || !(self.bootstrap.mode in ['Talos', 'Custom']) || has(self.userData) || has(self.userDataRef)",
            "bootstrap of mode Talos or Custom needs userData or userDataRef",
        )
}

fn affinity() -> Schema {
    let kinds = ["hostAntiAffinity", "hostAffinity", "softHostAntiAffinity", "softHostAffinity"];
    let kind = Schema::string()
        .describe("Kind of a group of Karpenter's own; the soft ones give way when hosts are full.")
        .one_of(&kinds);
    Schema::object()
        .describe("How machines keep apart or together.")
        .optional("type", kind)
        .optional(
            "scope",
            Schema::string()
                .describe("Whose machines that group holds; of a NodePool unless said otherwise.")
                .one_of(&["NodePool", "NodeClass"]),
        )
        .optional(
            "groupIDs",
            texts("Ids of groups that are there already, such as one that dedicates hosts."),
        )
        .optional("groupNames", texts("Names of groups that are there already."))
        .cel(
            "has(self.type) || has(self.groupIDs) || has(self.groupNames)",
            "expected at least one, got none, ['type', 'groupIDs', 'groupNames']",
        )
}

fn value_ref(description: &str) -> Schema {
    let text = |description: &str| Schema::string().describe(description).min_length(1).max_length(253);
    Schema::object()
        .describe(description)
        .optional("kind", Schema::string().describe("What it is.").one_of(&["Secret", "ConfigMap"]))
        .required("namespace", text("Its namespace."))
        .required("name", text("Its name."))
        .required("key", text("Which of its values."))
}

fn credentials_ref() -> Schema {
    let text = |description: &str| Schema::string().describe(description).min_length(1).max_length(253);
    Schema::object()
        .describe("Secret with the keys machines are made with (api-url, api-key, secret-key), where they are not those Karpenter was given. Machines cannot follow to another account.")
        .required("namespace", text("Its namespace."))
        .required("name", text("Its name."))
        .cel("self == oldSelf", "credentialsRef is immutable")
}

fn bootstrap() -> Schema {
    let text = |description: &str| Schema::string().describe(description).max_length(253);
    Schema::object()
        .describe("How the machine joins the cluster, where its image brings what it takes.")
        .required(
            "mode",
            text("What joins; with Talos and Custom, what the user data says.")
                .one_of(&["Kubeadm", "K3s", "RKE2", "Talos", "Custom"]),
        )
        .optional("apiServer", text("Host and port of the API server.").pattern("^[A-Za-z0-9.:\\[\\]-]+$"))
        .optional("tokenSecretRef", value_ref("Where the token is."))
        .optional(
            "tokenTTL",
            text("Has Karpenter make a bootstrap token for each NodeClaim that expires after so long, 10m to 24h, instead of tokenSecretRef.")
                .pattern("^([0-9]+(s|m|h))+$"),
        )
        .optional(
            "caCertHash",
            text("Hash of the cluster's authority, which kubeadm needs.").pattern("^sha256:[0-9a-f]+$"),
        )
        .optional(
            "caVerification",
            text("Skip to let kubeadm join whoever answers as the API server, without a hash.")
                .one_of(&["Required", "Skip"]),
        )
        .optional(
            "kubeletExtraArgs",
            Schema::map_of(text("Value of the argument."))
                .describe("Further arguments of kubelet.")
                .max_properties(50),
        )
        .cel(
            "self.mode in ['Talos', 'Custom'] || (has(self.apiServer) && (has(self.tokenSecretRef) || has(self.tokenTTL)))",
            "apiServer and either tokenSecretRef or tokenTTL are needed",
        )
        .cel("!(has(self.tokenSecretRef) && has(self.tokenTTL))", "tokenSecretRef and tokenTTL exclude each other")
        .cel(
            "!has(self.tokenTTL) || self.mode in ['Kubeadm', 'Custom']",
            "tokenTTL is for the modes Kubeadm and Custom",
        )
}

fn texts(description: &str) -> Schema {
    Schema::list_of(Schema::string()).describe(description).max_items(30)
}

fn data_disks() -> Schema {
    let disk = Schema::object()
        .describe("An additional disk.")
        .required("offering", Schema::string().describe("Its disk offering, by name or id."))
        .optional(
            "size",
            Schema::int64()
                .describe("Its size in gigabytes, where the offering leaves it open.")
                .minimum(1)
                .maximum(MAX_DISK_GB),
        )
        .optional(
            "iops",
            Schema::object()
                .describe("Operations per second, where the offering leaves them open.")
                .required("min", Schema::int64().describe("At least.").minimum(1))
                .required("max", Schema::int64().describe("At most.").minimum(1))
                .cel("self.min <= self.max", "min cannot be more than max"),
        )
        .optional(
            "deleteOnTermination",
            Schema::boolean()
                .describe("Whether the disk goes with its machine; it does unless this is false."),
        );
    Schema::list_of(disk).describe("Additional disks.").max_items(10)
}

fn reservations() -> Schema {
    let text = |description: &str| Schema::string().describe(description).min_length(1);
    let reservation = Schema::object()
        .describe("Room for some machines that is set aside for this account.")
        .required(
            "name",
            text("Its name, as the label karpenter.k8s.cloudstack/reservation-id has it.")
                .max_length(63)
                .pattern("^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$"),
        )
        .required(
            "offering",
            text("The service offering, by name or id; * stands for anything.").max_length(255),
        )
        .required("count", Schema::int64().describe("For how many machines.").minimum(0))
        .optional("groupID", text("Id of the affinity group that leads to its hosts.").max_length(64));
    Schema::list_of(reservation)
        .describe("Room that is set aside for this account, taken before anything else.")
        .max_items(30)
        .cel("self.all(x, self.exists_one(y, x.name == y.name))", "names of reservations must be unique")
}

fn custom_sizes() -> Schema {
    let numbers = |description: &str, most: i64| {
        let number = Schema::int64().describe("A number.").minimum(1).maximum(most);
        Schema::list_of(number).describe(description).max_items(20)
    };
    Schema::object()
        .describe("Sizes of customised offerings, within their bounds.")
        .optional("cpus", numbers("Cores.", MAX_CPUS))
        .optional("memoryPerCPU", numbers("Gigabytes of memory per core.", MAX_MEMORY_MIB >> 10))
}

fn custom_offerings() -> Schema {
    let offering = custom_sizes().describe("Sizes of a customised offering.").required(
        "offering",
        Schema::string()
            .describe("Which, by name or id; * stands for anything.")
            .min_length(1)
            .max_length(255),
    );
    Schema::list_of(offering)
        .describe("Sizes of particular customised offerings, instead of customSizes; the first that matches counts.")
        .max_items(30)
}

fn pricing() -> Schema {
    let price = |description: &str| {
        Schema::string().describe(description).pattern("^[0-9]+(\\.[0-9]+)?$").max_length(20)
    };
    Schema::object()
        .describe("What machines cost per hour.")
        .optional("cpu", price("Per core."))
        .optional("memory", price("Per gigabyte of memory."))
        .optional("gpu", price("Per GPU."))
        .optional("storage", price("Per gigabyte of the disks a machine is made with."))
        .optional(
            "configMapRef",
            Schema::object()
                .describe("ConfigMap with prices by name of offering or instance type.")
                .required(
                    "namespace",
                    Schema::string().describe("Its namespace.").min_length(1).max_length(63),
                )
                .required("name", Schema::string().describe("Its name.").min_length(1).max_length(253)),
        )
        .optional(
            "currency",
            Schema::string()
                .describe("What prices are in, for metrics: such as EUR.")
                .min_length(1)
                .max_length(16),
        )
        .optional(
            "quotaTariff",
            Schema::string()
                .describe("Whether to take what the quota plug-in says of machines and volumes.")
                .one_of(&["Use", "Ignore"]),
        )
        .optional(
            "overrides",
            Schema::map_of(price("Price of the offering."))
                .describe("Of offerings by name; * stands for anything.")
                .max_properties(100),
        )
}

fn terms(field: &str, what: &str, item: Schema) -> Schema {
    terms_by(field, what, item, &["tags", "id", "name"])
}

/// Terms each of which says at least one of these.
fn terms_by(field: &str, what: &str, item: Schema, one_of: &[&str]) -> Schema {
    let has: Vec<String> = one_of.iter().map(|name| format!("has(x.{name})")).collect();
    let names: Vec<String> = one_of.iter().map(|name| format!("'{name}'")).collect();
    Schema::list_of(item)
        .describe(&format!("Which {what} may be used; what any of the terms selects."))
        .max_items(30)
        .cel("self.size() != 0", &format!("{field} cannot be empty"))
        .cel(
            &format!("self.all(x, {})", has.join(" || ")),
            &format!("expected at least one, got none, [{}]", names.join(", ")),
        )
}

fn term(what: &str) -> Schema {
    let tags = Schema::map_of(Schema::string())
        .describe(&format!("Tags the {what} must have."))
        .max_properties(20)
        .cel("self.all(k, k != '' && self[k] != '')", "empty tag keys or values aren't supported");
    Schema::object()
        .describe(&format!("Selects by id, name or tags of the {what}."))
        .optional("id", Schema::string().describe(&format!("Id of the {what}.")))
        .optional("name", Schema::string().describe(&format!("Name of the {what}.")))
        .optional("tags", tags)
}

fn offering_term() -> Schema {
    let number = |description: &str| Schema::int64().describe(description).minimum(1);
    term("service offering")
        .optional("minCPU", number("Cores at least."))
        .optional("maxCPU", number("Cores at most."))
        .optional("minMemory", number("Mebibytes of memory at least."))
        .optional("maxMemory", number("Mebibytes of memory at most."))
        .optional(
            "gpu",
            Schema::string().describe("With GPUs only, or without only.").one_of(&["Required", "Excluded"]),
        )
        .cel(
            "!has(self.minCPU) || !has(self.maxCPU) || self.minCPU <= self.maxCPU",
            "minCPU cannot be more than maxCPU",
        )
        .cel(
            "!has(self.minMemory) || !has(self.maxMemory) || self.minMemory <= self.maxMemory",
            "minMemory cannot be more than maxMemory",
        )
}

fn status_schema() -> Schema {
    let text = |description| Schema::string().describe(description);
    let number = |description| Schema::integer().describe(description);
    let zone = Schema::object()
        .describe("A zone that was found.")
        .required("id", text("Its id."))
        .required("name", text("Its name."));
    let network = Schema::object()
        .describe("A network that was found.")
        .required("id", text("Its id."))
        .required("name", text("Its name."))
        .optional("type", text("Its type."))
        .required("zone", text("Its zone."));
    let offering = Schema::object()
        .describe("A service offering that was found.")
        .required("id", text("Its id."))
        .required("name", text("Its name."))
        .required("cpuNumber", number("Cores."))
        .optional("cpuSpeed", number("Megahertz per core."))
        .required("memory", number("Memory in megabytes."))
        .optional("networkRate", number("Megabits per second."))
        .optional("price", text("What an hour of it costs; of customised ones, the cheapest size."))
        .optional("available", text("Whether it can be had at the moment, in any zone."));
    let template = Schema::object()
        .describe("A template that was found.")
        .required("id", text("Its id."))
        .required("name", text("Its name."))
        .optional("osType", text("Its operating system."))
        .required("zone", text("Its zone."));
    Schema::object()
        .describe("What was found for the NodeClass.")
        .optional("zoneNames", text("Names of the zones, for kubectl."))
        .optional("offeringsAvailable", text("How many of the service offerings can be had, for kubectl."))
        .optional("zones", Schema::list_of(zone).describe("The zones that were selected."))
        .optional("networks", Schema::list_of(network).describe("The networks that were selected."))
        .optional(
            "serviceOfferings",
            Schema::list_of(offering).describe("The service offerings that were selected."),
        )
        .optional("templates", Schema::list_of(template).describe("The templates that were selected."))
        .optional("conditions", conditions::schema())
}
