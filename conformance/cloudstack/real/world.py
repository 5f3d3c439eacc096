"""One Karpenter on one real CloudStack, as a tenant: what scenarios do and see."""

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter

from cloud import Cloud
from kube import Kube, Play, Refused, condition, is_true
from road import Road


class Failed(Exception):
    pass


class World:
    def __init__(self, arguments):
        self.arguments, self.out = arguments, arguments.out
        os.makedirs(self.out, exist_ok=True)
        self.tenant = Cloud(arguments.endpoint, arguments.key, arguments.secret)
        self.root = Cloud(arguments.endpoint, arguments.root_key, arguments.root_secret) if arguments.root_key else None
        self.road = Road(arguments.endpoint)
        self.processes, self.logs = [], []
        kubeconfig = f"{self.out}/kubeconfig"
        if os.path.exists(kubeconfig):
            os.remove(kubeconfig)
        self.kubeconfig = kubeconfig
        self.start([arguments.karpenter, "apiserver", "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig], "apiserver", {})
        self.until("the API server is there", 10, lambda: os.path.exists(kubeconfig))
        self.kube = Kube(kubeconfig)
        definitions = subprocess.run([arguments.karpenter, "crds"], capture_output=True, check=True).stdout
        subprocess.run(["kubectl", "--kubeconfig", kubeconfig, "create", "-f", "-"], input=definitions, check=True, capture_output=True)
        self.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karpenter"}})
        if not self.kube.get("Namespace", "default"):
            self.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        self.prefix = "karpenter-"
        self.play = Play(self.kube, self.tenant, self.prefix)
        self.play.start()
        self.keys(arguments.key, arguments.secret)

    # ---- processes

    def start(self, command, name, env):
        log = f"{self.out}/{name}.log"
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        process = subprocess.Popen(command, stdout=open(log, "a"), stderr=subprocess.STDOUT, env={**clean, **env})
        self.processes.append(process)
        return process

    def karpenter(self, name="karpenter", **env):
        ports = 12000 + os.getpid() % 400 * 40 + len(self.processes) * 2  # below those that connections are given
        settings = {
            "KUBECONFIG": self.kubeconfig, "CLUSTER_NAME": self.arguments.cluster, "CLOUDSTACK_CREDENTIALS_SECRET": "karpenter/cloudstack-credentials",
            "CLOUDSTACK_ALLOW_INSECURE_HTTP": "true", "METRICS_PORT": str(ports), "HEALTH_PROBE_PORT": str(ports + 1), "LOG_LEVEL": "debug",
            "DISABLE_LEADER_ELECTION": "true", **env,
        }
        log = f"{self.out}/{name}.log"
        if log not in self.logs:
            self.logs.append(log)
        process = self.start([self.arguments.karpenter, "run", "--provider", "cloudstack"], name, settings)
        process.port = ports
        return process

    def kill(self, process, how=signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(how)
            process.wait(30)

    def stop(self):
        self.play.stop = True
        for process in reversed(self.processes):
            self.kill(process, signal.SIGTERM)

    # ---- what is asked for

    def keys(self, key, secret, **more):
        value = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloudstack-credentials", "namespace": "karpenter"}, "type": "Opaque",
                 "stringData": {"api-url": self.road.url, "api-key": key, "secret-key": secret, **more}}
        if self.kube.get("Secret", "cloudstack-credentials"):
            self.kube.patch("Secret", "cloudstack-credentials", {"stringData": value["stringData"]})
        else:
            self.kube.create(value)

    def node_class(self, name="default", **spec):
        a = self.arguments
        value = {"apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": name}, "spec": {
            "zone": a.zone, "networkSelectorTerms": [{"name": a.network}], "serviceOfferingSelectorTerms": [{"tags": {"compute-type": "general-purpose"}}],
            "templateSelectorTerms": [{"name": a.template}], "userData": "#!/bin/bash\n# Bootstrap script\n", **spec}}
        value["spec"] = {k: v for k, v in value["spec"].items() if v is not None}
        self.kube.create(value)
        self.kube.create({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": {
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "5s", "budgets": [{"nodes": "100%"}]},
            "template": {"spec": {"expireAfter": "Never", "nodeClassRef": {"group": "karpenter.k8s.cloudstack", "kind": "CloudStackNodeClass", "name": name}, "requirements": [
                {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}}}})

    def want(self, count, app="web", cpu="600m", memory="256Mi", pool="default", alone=True):
        spec = {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
                "nodeSelector": {"karpenter.sh/nodepool": pool}}
        if alone:
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}]}}
        self.play.wanted[app] = (count, spec)

    # ---- what is seen

    def until(self, what, seconds, holds):
        end, found = time.time() + seconds * self.arguments.patience, None
        while time.time() < end:
            found = holds()
            if found:
                return found
            time.sleep(1)
        raise Failed(f"not within {seconds * self.arguments.patience:.0f} s: {what}")

    def stays(self, what, seconds, holds):
        end = time.time() + seconds
        while time.time() < end:
            if not holds():
                raise Failed(f"did not stay: {what}")
            time.sleep(1)

    def claims(self):
        return self.kube.list("NodeClaim")

    def machines(self, **scope):
        return [m for m in self.tenant.machines(keyword=self.prefix, **scope) if m["name"].startswith(self.prefix)]

    def running(self, app=None):
        return sum(1 for p in self.kube.list("Pod") if p.get("status", {}).get("phase") == "Running" and (not app or p["metadata"]["labels"]["app"] == app))

    def initialized(self):
        return sum(1 for c in self.claims() if is_true(c, "Initialized"))

    def up(self, count, seconds=120, nodes=None):
        nodes = count if nodes is None else nodes
        return self.until(f"{count} pods run on {nodes} nodes", seconds, lambda: self.running() == count and self.initialized() == nodes)

    def down(self, seconds=180):
        for app in self.play.wanted:
            self.play.wanted[app] = (0, self.play.wanted[app][1])
        return self.until("no NodeClaim and no machine is left", seconds, lambda: not self.claims() and not self.machines())

    def events(self, reason):
        return [e for e in self.kube.list("Event") if e.get("reason") == reason]

    def ready(self, name="default"):
        return self.kube.get("CloudStackNodeClass", name) or {}

    def told(self, kind, name="default"):
        return condition(self.ready(name), kind)

    # ---- what must hold

    def same(self, what, found, wanted):
        if found != wanted:
            raise Failed(f"{what}: {found!r}, not {wanted!r}")

    def at_rest(self, **scope):
        """One machine per NodeClaim, each the one it names, tagged."""
        machines = [m for m in self.machines(**scope) if m["state"] not in ("Destroyed", "Expunging")]
        claims = self.claims()
        ids = sorted(c["status"].get("providerID", "").split("/")[-1] for c in claims)
        self.same("machines and those NodeClaims name", sorted(m["id"] for m in machines), ids)
        by_id = {c["status"]["providerID"].split("/")[-1]: c for c in claims}
        for machine in machines:
            tags = {t["key"]: t["value"] for t in machine.get("tags", [])}
            self.same("tag nodeclaim", tags.get("karpenter.sh/nodeclaim"), by_id[machine["id"]]["metadata"]["name"])
            self.same("tag cluster", tags.get(f"kubernetes.io/cluster/{self.arguments.cluster}"), "owned")

    def clear(self):
        """Everything away, with Karpenter if it can, else by hand."""
        for process in self.processes[1:]:
            self.kill(process)
        self.play.wanted = {}
        self.play.scopes, self.play.never_join = [{}], set()
        self.road.before = self.road.after = None
        for kind in ("Pod", "NodeClaim", "Node", "NodePool", "CloudStackNodeClass", "Event"):
            for value in self.kube.list(kind):
                name = value["metadata"]["name"]
                if value["metadata"].get("finalizers"):
                    try:
                        self.kube.patch(kind, name, {"metadata": {"finalizers": None}})
                    except Refused:
                        pass
                self.kube.delete(kind, name, gracePeriodSeconds=0)
        cloud = self.root or self.tenant
        for machine in self.machines():
            try:
                if cloud is self.root:
                    cloud.call("destroyVirtualMachine", id=machine["id"], expunge="true")
                else:
                    cloud.call("destroyVirtualMachine", id=machine["id"])
            except Exception as error:
                print("   ", error)
        self.until("machines are gone", 120, lambda: not self.machines())

    def row(self, since, began):
        calls = [c for c in self.road.calls if c[0] >= since]
        codes = Counter(f"{c[1]} {c[2]} {c[5][:70]}".strip() for c in calls if c[2] != 200)
        return {"deploys": sum(1 for c in calls if c[1] == "deployVirtualMachine" and str(c[2]).startswith("200")), "calls": len(calls),
                "seconds": round(time.time() - began), "refused": dict(codes), "commands": dict(Counter(c[1] for c in calls).most_common())}

    def complaints(self, begin):
        """Errors, warnings and panics in Karpenter's logs since their lengths were taken."""
        found = Counter()
        for log in self.logs:
            with open(log) as lines:
                lines.seek(begin.get(log, 0))
                for line in lines:
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        found["NOT JSON " + line.strip()[:200]] += 1
                        continue
                    if str(entry.get("level", "")).lower() in ("error", "warn", "warning"):
                        text = " ".join(str(entry.get(k, "")) for k in ("level", "message", "msg", "error"))
                        found[re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|default-\w{5}|karpenter-[\w-]+", "*", text)[:400]] += 1
        return found
