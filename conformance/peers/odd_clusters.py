"""Small clusters in which rarely combined features meet, for `decisions`: few objects, few values, every feature likely.

`make(seed, mode)` is a scenario; the same seed always gives the same one. Where the oracle's own generator imitates real clusters, this one
looks for corners: each cluster has moods (a feature is absent, occasional or frequent), and values are drawn from so few that they collide.
"""
import copy, random

ZONES = ["zone-a", "zone-b", "zone-c"]
ZONE, CT, ARCH, OS, IT, HOST, POOL = ("topology.kubernetes.io/zone", "karpenter.sh/capacity-type", "kubernetes.io/arch", "kubernetes.io/os",
                                "node.kubernetes.io/instance-type", "kubernetes.io/hostname", "karpenter.sh/nodepool")
RID, CPU, FAMILY, TEAM, TIER = ("karpenter.kwok.sh/reservation-id", "karpenter.kwok.sh/instance-cpu", "karpenter.kwok.sh/instance-family",
                               "example.com/team", "example.com/tier")
NOW = "2026-01-01T12:00:00Z"
DRIVER = "csi.test"

class Maker:
    def __init__(self, seed, mode):
        self.r = random.Random(f"{mode}-{seed}")
        self.mode = mode
        self.objects, self.types, self.nodes, self.pools, self.claims = [], [], [], [], []
        self.uid = 0
        # Each cluster has its own moods: some features are everywhere, others absent.
        self.mood = {}
        self.calm = self.r.choice([.3, .6, 1])

    def p(self, x): return self.r.random() < x
    def pick(self, *xs): return self.r.choice(xs)
    def feature(self, name, x=0.35):
        if name not in self.mood:
            self.mood[name] = self.calm * self.r.choice([0, 0, x, x, min(1, 2 * x)])
        return self.p(self.mood[name])
    def some(self, xs, least=1, most=None):
        n = self.r.randint(least, min(len(xs), most or len(xs)))
        return self.r.sample(xs, n)
    def next_uid(self):
        self.uid += 1
        return f"{self.r.randint(0, 9)}{self.uid:04d}"

    def make_types(self):
        r = self.r
        archs = self.pick(["amd64"], ["amd64", "arm64"])
        families = ["a", "b", "c"]
        for i in range(r.randint(1, self.pick(3, 6, 12))):
            cpu = self.pick(1, 2, 2, 4, 4, 8, 16)
            family = self.pick(*families)
            name = f"{family}-{i}" if self.p(.8) else f"{family}.{self.pick('small', 'large', '2xlarge')}{i}"
            base = cpu * self.pick(0.05, 0.05, 0.1)
            t = {"name": name, "architecture": self.pick(*archs), "operatingSystems": self.pick(["linux"], ["linux"], ["linux", "windows"]),
                 "resources": {"cpu": str(cpu), "memory": f"{cpu * self.pick(2, 4, 4)}Gi", "pods": str(self.pick(3, 5, 110, 110))}, "offerings": []}
            if self.feature("gpu", .3): t["resources"]["example.com/gpu"] = str(self.pick(1, 2))
            if self.feature("type-labels", .4): t["requirements"] = [{"key": TIER, "operator": "In", "values": self.some(["gold", "silver", "iron"])}]
            if self.feature("overhead", .3): t["overhead"] = {"kubeReserved": {"cpu": self.pick("80m", "1"), "memory": "100Mi"}, "evictionThreshold": {"memory": self.pick("100Mi", "0")}}
            if self.feature("attach-limits", .3): t["volumeAttachmentLimits"] = {DRIVER: self.pick(0, 1, 2, 5)}
            for zone in self.some(ZONES):
                for ct in self.some(["spot", "on-demand"]):
                    price = base * (0.6 if ct == "spot" else 1) * self.pick(1, 1, 1.1)
                    o = {"Price": round(price, 4), "Requirements": [self.req(CT, "In", [ct]), self.req(ZONE, "In", [zone])]}
                    if self.feature("reserved", .5): o["Requirements"].append({"key": RID, "operator": "DoesNotExist"})
                    if self.p(.08): o["Available"] = False
                    if self.feature("offering-override", .15): o["CapacityOverride"] = {"cpu": str(cpu * 2)} if self.p(.5) else {"memory": "1Gi"}
                    if self.feature("offering-overhead", .1): o["OverheadOverride"] = {"kubeReserved": {"cpu": "500m"}}
                    t["offerings"].append(o)
                if self.feature("reserved", .5):
                    t["offerings"].append({"Price": self.pick(0.0, 1e-6, 0.01), "ReservationCapacity": self.pick(0, 1, 1, 2, 3), "Available": self.p(.9),
                                           "Requirements": [self.req(CT, "In", ["reserved"]), self.req(ZONE, "In", [zone]), self.req(RID, "In", [self.pick("r1", "r2", f"r-{i}")])]})
            self.types.append(t)

    def req(self, key, op, values=None, least=None):
        out = {"key": key, "operator": op}
        if values is not None: out["values"] = values
        if least: out["minValues"] = least
        return out

    def requirement(self, pool=False):
        key = self.pick(ZONE, ZONE, CT, CT, ARCH, OS, IT, CPU, FAMILY, TEAM, TIER, *([HOST, POOL] if not pool else []), *([RID] if self.mood.get("reserved") else []))
        values = {ZONE: ZONES + (["zone-x"] if self.p(.2) else []), CT: ["spot", "on-demand", "reserved"], ARCH: ["amd64", "arm64"], OS: ["linux", "windows"], IT: [t["name"] for t in self.types] or ["none"],
                  CPU: ["1", "2", "4", "8", "16"], FAMILY: ["a", "b", "c"], TEAM: ["red", "blue"], TIER: ["gold", "silver", "iron"], RID: ["r1", "r2"],
                  HOST: [n["name"] for n in self.nodes] or ["n-0"], POOL: [p["metadata"]["name"] for p in self.pools] or ["p-0"]}[key]
        op = self.pick("In", "In", "In", "NotIn", "Exists", "DoesNotExist") if key != CPU else self.pick("In", "NotIn", "Gt", "Lt", "Gte", "Lte", "Exists")
        if not pool and op in ("Gte", "Lte") : op = op[:2]
        least = None
        if pool and op in ("In", "NotIn", "Exists", "Gt", "Lt", "Gte", "Lte") and self.feature("minValues", .35): least = self.pick(1, 2, 2, 3)
        if op in ("Exists", "DoesNotExist"): return self.req(key, op, None, least)
        if op in ("Gt", "Lt", "Gte", "Lte"): return self.req(key, op, [self.pick(*values)], least)
        return self.req(key, op, self.some(values, 1, 3), least)

    def taint(self):
        t = {"key": self.pick("example.com/a", "example.com/b"), "effect": self.pick("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule")}
        if self.p(.6): t["value"] = self.pick("x", "y", "5")
        return t

    def toleration(self):
        t = {"key": self.pick("example.com/a", "example.com/b"), "operator": self.pick("Exists", "Equal", "Equal", "Gt", "Lt") if self.feature("odd-tolerations", .3) else self.pick("Exists", "Equal")}
        if t["operator"] == "Equal": t["value"] = self.pick("x", "y", "5")
        if t["operator"] in ("Gt", "Lt"): t["value"] = self.pick("3", "9")
        if self.p(.5): t["effect"] = self.pick("NoSchedule", "NoExecute", "PreferNoSchedule")
        if t["operator"] == "Exists" and self.p(.1): del t["key"]
        return t

    def make_pools(self):
        for i in range(self.r.randint(1, 4)):
            spec = {"nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}, "requirements": []}
            for _ in range(self.pick(0, 0, 0, 1, 1, 2) if self.calm < 1 else self.pick(0, 1, 2, 3)): spec["requirements"].append(self.requirement(pool=True))
            keys = set(); spec["requirements"] = [q for q in spec["requirements"] if self.p(.15) or (q["key"] not in keys and not keys.add(q["key"]))]
            if self.feature("taints"): spec["taints"] = [self.taint()]
            if self.feature("startup-taints", .2): spec["startupTaints"] = [self.taint()]
            if self.feature("expire", .2): spec["expireAfter"] = self.pick("24h", "Never")
            meta = {}
            if self.feature("pool-labels"): meta["labels"] = {self.pick(TEAM, TIER): self.pick("red", "blue", "gold")}
            pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": f"p-{i}"}, "spec": {"template": {"metadata": meta, "spec": spec}}}
            s = pool["spec"]
            if self.feature("weights", .5): s["weight"] = self.pick(1, 10, 10, 50)
            if self.feature("limits", .3): s["limits"] = self.pick({"cpu": str(self.pick(2, 6, 20))}, {"memory": "20Gi"}, {"nodes": str(self.pick(1, 2, 3))}, {"cpu": "10", "nodes": "2"}, {"example.com/gpu": "1"})
            if self.feature("static", .15): s["replicas"] = self.pick(0, 1, 3)
            if self.p(.04): pool["metadata"]["deletionTimestamp"] = NOW; pool["metadata"]["finalizers"] = ["x/y"]
            if self.p(.04): pool["status"] = {"conditions": [{"type": "Ready", "status": "False", "reason": "x", "message": "", "lastTransitionTime": NOW}]}
            if self.mode == "disrupt":
                d = {"consolidateAfter": self.pick("0s", "0s", "0s", "30s", "1h", "Never"), "consolidationPolicy": self.pick("WhenEmptyOrUnderutilized", "WhenEmptyOrUnderutilized", "WhenEmpty", *(["Balanced"] if self.feature("balanced", .6) else []))}
                if self.feature("budgets", .5):
                    d["budgets"] = []
                    for _ in range(self.pick(1, 1, 2, 3)):
                        b = {"nodes": self.pick("0", "1", "2", "10%", "50%", "100%", "100%")}
                        if self.p(.4): b["reasons"] = self.some(["Empty", "Drifted", "Underutilized"], 1, 2)
                        if self.p(.3): b["schedule"], b["duration"] = self.pick("0 12 * * *", "0 0 * * *", "@daily", "*/5 * * * *", "0 11 * * 4"), self.pick("1h", "13h", "5m", "12h")
                        d["budgets"].append(b)
                else: d["budgets"] = [{"nodes": "100%"}]
                s["disruption"] = d
            self.pools.append(pool); self.objects.append(pool)

    def make_overlays(self):
        for i in range(self.pick(1, 2, 3)):
            spec = {"requirements": [self.requirement(pool=False) for _ in range(self.pick(1, 1, 2))], "weight": self.pick(1, 1, 10)}
            for q in spec["requirements"]: q.pop("minValues", None)
            if self.p(.5): spec["requirements"] = [self.req(FAMILY, "In", [self.pick("a", "b")])]
            kind = self.pick("price", "adjust", "capacity", "both")
            if kind == "price": spec["price"] = self.pick("0.01", "0.5", "0")
            if kind in ("adjust", "both"): spec["priceAdjustment"] = self.pick("-20%", "+50%", "+0.1", "-0.05", "-100%")
            if kind in ("capacity", "both"): spec["capacity"] = {self.pick("example.com/gpu", "example.com/fpga"): self.pick("1", "2")}
            self.objects.append({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": f"o-{i}", "uid": self.next_uid()}, "spec": spec})

    def make_nodes(self):
        for i in range(self.pick(0, 1, 3, 6) if self.mode == "provision" else self.r.randint(1, self.pick(3, 6, 12))):
            name = f"n-{i}"
            if self.p(.1) or not self.types:
                labels = {HOST: name, ZONE: self.pick(*ZONES), ARCH: "amd64", OS: "linux"}
                cap = {"cpu": "4", "memory": "8Gi", "pods": "10"}
                self.objects.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"providerID": f"other://{name}", **({"taints": [self.taint()]} if self.p(.3) else {})},
                                     "status": {"capacity": cap, "allocatable": cap, "conditions": [{"type": "Ready", "status": "True"}]}})
                self.nodes.append({"name": name, "cpu": 4.0, "zone": labels[ZONE]})
                continue
            pool, t = self.pick(*self.pools), self.pick(*self.types)
            o = self.pick(*t["offerings"])
            get = lambda key: next((q["values"][0] for q in o["Requirements"] if q["key"] == key and q.get("values")), None)
            labels = {POOL: pool["metadata"]["name"], IT: t["name"], ZONE: get(ZONE), CT: get(CT), ARCH: t["architecture"], OS: t["operatingSystems"][0],
                      CPU: t["resources"]["cpu"], FAMILY: t["name"][0]}
            if get(RID): labels[RID] = get(RID)
            labels.update(pool["spec"]["template"]["metadata"].get("labels", {}))
            if self.p(.2): labels[TEAM] = self.pick("red", "blue")
            state = self.pick("ready", "ready", "ready", "ready", "registered", "launched", "unlaunched") if self.mode == "provision" else self.pick(*["ready"] * 9, "registered")
            cap = dict(t["resources"])
            alloc = dict(cap, cpu=f"{int(cap['cpu']) * 1000 - 100}m")
            taints = list(pool["spec"]["template"]["spec"].get("taints", []))
            startup = list(pool["spec"]["template"]["spec"].get("startupTaints", []))
            since = self.pick("2026-01-01T00:00:00Z", "2026-01-01T11:59:45Z", "2026-01-01T06:00:00Z")
            cond = lambda type_, at=since: {"type": type_, "status": "True", "reason": type_, "message": "", "lastTransitionTime": at}
            conditions = [] if state == "unlaunched" else [cond("Launched")]
            if state in ("registered", "ready"): conditions.append(cond("Registered"))
            if state == "ready": conditions.append(cond("Initialized"))
            if state == "ready" and self.p(.9): conditions.append(cond("Consolidatable"))
            if self.feature("drift", .3) and self.mode == "disrupt": conditions.append(cond("Drifted", self.pick("2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z")))
            claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": f"c-{name}", "uid": self.next_uid(), "creationTimestamp": since, "labels": labels, "annotations": {}},
                     "spec": {"nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}, "requirements": [], "taints": taints, "startupTaints": startup},
                     "status": {"capacity": cap, "allocatable": alloc, "conditions": conditions}}
            if "expireAfter" in pool["spec"]["template"]["spec"]: claim["spec"]["expireAfter"] = pool["spec"]["template"]["spec"]["expireAfter"]
            if self.feature("grace", .15): claim["spec"]["terminationGracePeriod"] = "10m"
            if state != "unlaunched": claim["status"]["providerID"] = f"kwok://{name}"
            if self.feature("last-pod-event", .3): claim["status"]["lastPodEventTime"] = self.pick("2026-01-01T11:59:50Z", "2026-01-01T10:00:00Z")
            deleting = self.feature("deleting", .15)
            if deleting: claim["metadata"]["deletionTimestamp"] = NOW; claim["metadata"]["finalizers"] = ["karpenter.sh/termination"]
            self.objects.append(claim)
            if state in ("registered", "ready"):
                nl = dict(labels, **{HOST: name if self.p(.95) else f"{name}.local", "karpenter.sh/registered": "true"})
                if state == "ready": nl["karpenter.sh/initialized"] = "true"
                nt = list(taints) + (startup if state != "ready" or self.p(.2) else [])
                if state == "registered" and self.p(.5): nt.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
                if self.feature("disrupted-taint", .1): nt.append({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"})
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": self.next_uid(), "labels": nl, "creationTimestamp": since, "annotations": {}}, "spec": {"providerID": f"kwok://{name}", "taints": nt},
                        "status": {"capacity": cap, "allocatable": {} if state == "registered" and self.p(.4) else alloc, "conditions": [{"type": "Ready", "status": "True"}]}}
                if self.feature("dnd-node", .15): node["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] = "true"
                if deleting: node["metadata"]["deletionTimestamp"] = NOW; node["metadata"]["finalizers"] = ["karpenter.sh/termination"]
                self.objects.append(node)
                self.nodes.append({"name": name, "cpu": int(cap["cpu"]) - .1, "zone": labels[ZONE], "pods": int(cap["pods"])})
                if self.feature("csinode", .3): self.objects.append({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": [{"name": DRIVER, "nodeID": name, **({"allocatable": {"count": self.pick(0, 1, 2)}} if self.p(.8) else {})}]}})

    def selector(self):
        kind = self.r.random()
        if kind < .6: return {"matchLabels": {"app": self.pick("x", "y", "z")}}
        if kind < .85: return {"matchExpressions": [self.pick({"key": "app", "operator": "In", "values": self.some(["x", "y", "z"])}, {"key": "app", "operator": "Exists"}, {"key": "rev", "operator": "DoesNotExist"}, {"key": "app", "operator": "NotIn", "values": ["x"]})]}
        if kind < .95: return {}
        return None

    def affinity_term(self):
        t = {"topologyKey": self.pick(HOST, HOST, ZONE, ZONE, CT, TEAM, ARCH)}
        s = self.selector()
        if s is not None: t["labelSelector"] = s
        if self.feature("namespaces", .25):
            if self.p(.5): t["namespaces"] = self.some(["default", "other", "third"], 1, 2)
            else: t["namespaceSelector"] = self.pick({}, {"matchLabels": {"env": "a"}}, {"matchExpressions": [{"key": "env", "operator": "Exists"}]})
        return t

    def workload(self, i):
        r = self.r
        spec, labels = {}, {"app": self.pick("x", "y", "z")}
        if self.p(.4): labels["rev"] = self.pick("1", "2")
        requests = {"cpu": self.pick("100m", "500m", "500m", "1", "1", "2", "3500m"), "memory": self.pick("64Mi", "256Mi", "1Gi", "3Gi")}
        if self.p(.05): requests = {}
        if self.mood.get("gpu") and self.p(.3): requests["example.com/gpu"] = "1"
        if self.feature("fpga", .1): requests["example.com/fpga"] = "1"
        container = {"name": "c", "image": "x", "resources": {"requests": requests}}
        if self.feature("limits-only", .1): container["resources"] = {"limits": requests}
        if self.feature("ports", .25):
            container["ports"] = [{"containerPort": 80, "hostPort": self.pick(80, 443), **({"protocol": "UDP"} if self.p(.2) else {}), **({"hostIP": self.pick("10.0.0.1", "0.0.0.0", "::")} if self.p(.3) else {})}]
        spec["containers"] = [container]
        if self.feature("init", .15):
            spec["initContainers"] = [{"name": "i", "image": "x", "resources": {"requests": {"cpu": self.pick("100m", "3")}}, **({"restartPolicy": "Always"} if self.p(.5) else {})}]
        if self.feature("node-selector", .3):
            key = self.pick(ZONE, CT, ARCH, OS, TEAM, TIER, POOL)
            spec["nodeSelector"] = {key: {ZONE: self.pick(*ZONES), CT: self.pick("spot", "on-demand", "reserved"), ARCH: self.pick("amd64", "arm64"), OS: "linux", TEAM: self.pick("red", "blue"), TIER: self.pick("gold", "silver"), POOL: "p-0"}[key]}
        affinity = {}
        na = {}
        if self.feature("required", .25): na["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [{"matchExpressions": [self.requirement() for _ in range(self.pick(1, 1, 2))]} for _ in range(self.pick(1, 1, 2, 3))]}
        if self.feature("preferred", .25): na["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": self.pick(1, 5, 5, 100), "preference": {"matchExpressions": [self.requirement()]}} for _ in range(self.pick(1, 2, 3))]
        if na: affinity["nodeAffinity"] = na
        for kind in ("podAffinity", "podAntiAffinity"):
            a = {}
            if self.feature(kind, .25): a["requiredDuringSchedulingIgnoredDuringExecution"] = [self.affinity_term() for _ in range(self.pick(1, 1, 2))]
            if self.feature("preferred-" + kind, .2): a["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": self.pick(1, 10, 100), "podAffinityTerm": self.affinity_term()} for _ in range(self.pick(1, 2))]
            if a: affinity[kind] = a
        if affinity: spec["affinity"] = affinity
        if self.feature("spread", .4):
            spec["topologySpreadConstraints"] = []
            for _ in range(self.pick(1, 1, 2, 3)):
                c = {"maxSkew": self.pick(1, 1, 2), "topologyKey": self.pick(ZONE, ZONE, HOST, CT, TEAM, TIER, ARCH, IT), "whenUnsatisfiable": self.pick("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")}
                s = self.selector() if self.p(.5) else {"matchLabels": {"app": labels["app"]}}
                if s is not None: c["labelSelector"] = s
                if self.p(.3): c["minDomains"] = self.pick(1, 2, 3, 5)
                if self.p(.4): c["nodeTaintsPolicy"] = self.pick("Honor", "Ignore")
                if self.p(.3): c["nodeAffinityPolicy"] = self.pick("Honor", "Ignore")
                if self.p(.3): c["matchLabelKeys"] = self.some(["rev", "app", "none"], 1, 2)
                spec["topologySpreadConstraints"].append(c)
        if self.feature("tolerations", .5): spec["tolerations"] = [self.toleration() for _ in range(self.pick(1, 2))]
        annotations = {}
        if self.feature("dnd", .12): annotations["karpenter.sh/do-not-disrupt"] = self.pick("true", "true", "1h", "13h", "no")
        if self.feature("cost", .2): annotations["controller.kubernetes.io/pod-deletion-cost"] = self.pick("-100", "1000", "2147483647", "junk")
        if self.feature("priority", .2): spec["priority"] = self.pick(-10, 0, 1000, 2000000000)
        if self.feature("volumes", .25): spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": self.pick(*self.claims)}} for _ in range(self.pick(1, 1, 2))]
        if self.feature("ephemeral", .08): spec.setdefault("volumes", []).append({"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "wait"}}}})
        return spec, labels, annotations

    def make_storage(self):
        topo = lambda: [{"matchLabelExpressions": [{"key": ZONE, "values": self.some(ZONES, 1, 2)}]} for _ in range(self.pick(1, 2))]
        self.objects += [
            {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "wait"}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer", **({"allowedTopologies": topo()} if self.p(.5) else {})},
            {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "now"}, "provisioner": self.pick(DRIVER, "other.csi", "kubernetes.io/aws-ebs"), "volumeBindingMode": "Immediate"}]
        for i in range(5):
            name = f"v-{i}"; self.claims.append(name)
            spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": self.pick("wait", "wait", "wait", "wait", "now", "now", "missing" if self.p(.3) else "wait")}
            if self.p(.4):
                spec["volumeName"] = f"pv-{i}"
                if self.p(.97):
                    terms = [{"matchExpressions": [{"key": self.pick(ZONE, ZONE, ZONE, HOST), "operator": "In", "values": self.some(ZONES, 1, 2)}]} for _ in range(self.pick(1, 1, 2))]
                    for t in terms:
                        for e in t["matchExpressions"]:
                            if e["key"] == HOST: e["values"] = [self.pick("n-0", "n-1")]
                    source = {"csi": {"driver": self.pick(DRIVER, "other.csi"), "volumeHandle": name}} if self.p(.7) else {"local": {"path": "/x"}}
                    self.objects.append({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv-{i}"}, "spec": {**source, **({"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if self.p(.9) else {}), "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}})
            self.objects.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": {"phase": "Bound" if "volumeName" in spec else "Pending"}})
        if self.p(.1): self.claims.append("v-none")

    def make_pods(self):
        n = 0
        count = self.r.randint(1, self.pick(4, 10, 25))
        w = 0
        while n < count:
            spec, labels, annotations = self.workload(w); w += 1
            namespace = "default" if self.p(.8) or spec.get("volumes") else self.pick("other", "third")
            for _ in range(self.r.randint(1, self.pick(1, 3, 8))):
                meta = {"name": f"w{w}-{n}", "namespace": namespace, "uid": self.next_uid(), "labels": dict(labels), "annotations": annotations}
                if self.p(.9): meta["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": self.pick("ReplicaSet", "ReplicaSet", "StatefulSet"), "name": f"w{w}", "uid": f"w{w}", "controller": True}]
                if self.p(.3): meta["creationTimestamp"] = self.pick("2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z")
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": copy.deepcopy(spec)}
                place = self.p(.85 if self.mode == "disrupt" else .35) and self.nodes
                if place:
                    cpu = sum(self.cpu(c) for c in spec["containers"])
                    fits = [x for x in self.nodes if x["cpu"] >= cpu and x.get("pods", 10) > 0]
                    if self.p(.05): fits = self.nodes
                    if not fits: n += 1; continue
                    node = self.pick(*fits)
                    node["cpu"] -= cpu; node["pods"] = node.get("pods", 10) - 1
                    pod["spec"]["nodeName"] = node["name"]
                    pod["status"] = {"phase": self.pick(*["Running"] * 12, "Pending", "Succeeded", "Failed"), "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}], "startTime": "2026-01-01T10:30:00Z"}
                    if self.p(.05): meta["deletionTimestamp"] = "2026-01-01T11:59:00Z"; meta["finalizers"] = ["x/y"]
                else:
                    pod["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
                    if self.p(.03): pod["status"]["nominatedNodeName"] = "n-0"
                    if self.p(.03): pod["status"]["conditions"] = []
                if self.p(.8):
                    for v in spec.get("volumes", []):
                        if "ephemeral" in v: self.objects.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": f"{meta['name']}-{v['name']}", "namespace": namespace}, "spec": {"storageClassName": "wait", "accessModes": ["ReadWriteOnce"]}})
                self.objects.append(pod); n += 1

    def cpu(self, c):
        v = c["resources"].get("requests", {}).get("cpu", "0")
        return int(v[:-1]) / 1000 if v.endswith("m") else int(v)

    def make_daemons(self):
        for i in range(self.pick(1, 1, 2, 3)):
            spec, labels, _ = self.workload(100 + i)
            for key in ("topologySpreadConstraints", "volumes", "priority"): spec.pop(key, None)
            spec["containers"][0]["resources"]["requests"] = {"cpu": self.pick("50m", "100m", "900m", "2"), "memory": "32Mi"}
            if self.p(.5): spec.get("affinity", {}).pop("podAffinity", None); spec.get("affinity", {}).pop("podAntiAffinity", None)
            ds = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": f"d-{i}", "namespace": "kube-system", "uid": f"d-{i}"}, "spec": {"selector": {"matchLabels": {"ds": f"d-{i}"}}, "template": {"metadata": {"labels": {"ds": f"d-{i}", **labels}}, "spec": spec}}}
            self.objects.append(ds)
            for node in self.nodes:
                if self.p(.4):
                    self.objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"d-{i}-{node['name']}", "namespace": "kube-system", "uid": self.next_uid(), "labels": {"ds": f"d-{i}", **labels},
                                         "creationTimestamp": self.pick("2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"), "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": f"d-{i}", "uid": f"d-{i}", "controller": True}]},
                                         "spec": dict(spec, nodeName=node["name"]), "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})

    def make(self):
        gates = {}
        options = {}
        self.make_types(); self.make_pools()
        if self.p(.2): gates["NodeOverlay"] = True; self.make_overlays()
        if self.mood.get("static"): gates["StaticCapacity"] = self.p(.8)
        if self.mood.get("reserved") and self.p(.15): gates["ReservedCapacity"] = False
        if self.mode == "disrupt" and self.p(.5): gates["SpotToSpotConsolidation"] = True
        self.make_nodes(); self.make_storage()
        self.objects += [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n, "labels": l}} for n, l in (("default", {"env": "a"}), ("other", {"env": "b"}), ("third", {}))]
        if self.p(.4): self.make_daemons()
        self.make_pods()
        if self.p(.3):
            for i in range(self.pick(1, 2)):
                self.objects.append({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": f"b-{i}", "namespace": "default"}, "spec": {"selector": self.selector() or {}, **self.pick({"maxUnavailable": 0}, {"minAvailable": 1}, {"maxUnavailable": "0%"}), **({"unhealthyPodEvictionPolicy": "AlwaysAllow"} if self.p(.2) else {})}, "status": {"disruptionsAllowed": self.pick(0, 1)}})
        if self.p(.25): options["preferencePolicy"] = "Ignore"
        if self.mood.get("minValues") and self.p(.5): options["minValuesPolicy"] = "BestEffort"
        if self.p(.1): options["schedulerConfig"] = {"podTopologySpread": {"defaultConstraints": [{"maxSkew": 1, "topologyKey": self.pick(ZONE, HOST), "whenUnsatisfiable": self.pick("DoNotSchedule", "ScheduleAnyway")}]}}
        if options.get("schedulerConfig"): self.objects.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "x"}}})
        if gates: options["featureGates"] = gates
        s = {"mode": self.mode, "now": NOW, "options": options, "instanceTypes": self.types, "objects": self.objects}
        real = [n["name"] for n in self.nodes]
        state = {}
        if real and self.feature("marked", .2): state["markedForDeletion"] = [self.pick(*real)]
        if real and self.feature("nominated", .2): state["nominated"] = [self.pick(*real)]
        if state: s["state"] = state
        return s

def make(seed, mode):
    return Maker(seed, mode).make()
