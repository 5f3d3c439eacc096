"""A small Kubernetes client: requests, and watches that keep what they saw. Only the standard library."""

import base64
import http.client
import json
import re
import ssl
import threading
import time

CAPI = "/apis/cluster.x-k8s.io/v1beta2"
INFRA = "/apis/infrastructure.cluster.x-k8s.io/v1beta1"
PLANE = "/apis/controlplane.cluster.x-k8s.io/v1beta1"
# Where the objects of a kind are, and whether they have namespaces.
KINDS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "Secret": ("/api/v1", "secrets", True),
    "Event": ("/api/v1", "events", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "NodePool": ("/apis/karpenter.sh/v1", "nodepools", False),
    "NodeClaim": ("/apis/karpenter.sh/v1", "nodeclaims", False),
    "ClusterAPINodeClass": ("/apis/karpenter.cluster.x-k8s.io/v1alpha1", "clusterapinodeclasses", False),
    "Cluster": (CAPI, "clusters", True),
    "ClusterClass": (CAPI, "clusterclasses", True),
    "MachineDeployment": (CAPI, "machinedeployments", True),
    "MachineSet": (CAPI, "machinesets", True),
    "Machine": (CAPI, "machines", True),
    "MachineHealthCheck": (CAPI, "machinehealthchecks", True),
    "FakeCluster": (INFRA, "fakeclusters", True),
    "FakeClusterTemplate": (INFRA, "fakeclustertemplates", True),
    "FakeMachine": (INFRA, "fakemachines", True),
    "FakeMachineTemplate": (INFRA, "fakemachinetemplates", True),
    "FakeControlPlane": (PLANE, "fakecontrolplanes", True),
    "FakeControlPlaneTemplate": (PLANE, "fakecontrolplanetemplates", True),
    "FakeConfig": ("/apis/bootstrap.cluster.x-k8s.io/v1beta1", "fakeconfigs", True),
    "FakeConfigTemplate": ("/apis/bootstrap.cluster.x-k8s.io/v1beta1", "fakeconfigtemplates", True),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
}


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """One API server, as the user of a kubeconfig."""

    def __init__(self, kubeconfig):
        text = open(kubeconfig).read()
        found = lambda pattern: re.search(pattern, text).group(1)
        self.host, port = re.match(r"https://([^:/]+):(\d+)", found(r'server: "?([^",\s}]+)')).groups()
        self.port, self.token = int(port), found(r"token: ([0-9a-zA-Z._-]+)")
        authority = base64.b64decode(found(r"certificate-authority-data: ([0-9A-Za-z+/=]+)")).decode()
        self.tls = ssl.create_default_context(cadata=authority)
        self.local = threading.local()

    def connect(self, timeout):
        return http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=timeout)

    def request(self, method, path, body=None, content="application/json"):
        headers = {"Authorization": "Bearer " + self.token, "Content-Type": content, "Accept": "application/json"}
        data = None if body is None else json.dumps(body)
        for attempt in range(3):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = self.local.connection = self.connect(60)
            try:
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException):
                self.local.connection = None
                if attempt == 2:
                    raise
        value = json.loads(text) if text else {}
        if answer.status >= 400:
            raise Refused(answer.status, value.get("message", text))
        return value

    @staticmethod
    def path(kind, namespace=None, name=None, sub=None):
        root, resource, namespaced = KINDS[kind]
        path = root + (f"/namespaces/{namespace}" if namespaced and namespace else "") + "/" + resource
        return path + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")

    def get(self, kind, name, namespace=None):
        return self.request("GET", self.path(kind, namespace, name))

    def exists(self, kind, name, namespace=None):
        try:
            return self.get(kind, name, namespace)
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def list(self, kind, namespace=None, labels=None):
        query = "?labelSelector=" + labels.replace("=", "%3D").replace(",", "%2C") if labels else ""
        return self.request("GET", self.path(kind, namespace) + query)["items"]

    def create(self, value):
        namespace = value["metadata"].get("namespace")
        return self.request("POST", self.path(value["kind"], namespace), value)

    def patch(self, kind, name, change, namespace=None, sub=None):
        return self.request("PATCH", self.path(kind, namespace, name, sub), change, "application/merge-patch+json")

    def delete(self, kind, name, namespace=None):
        try:
            return self.request("DELETE", self.path(kind, namespace, name))
        except Refused as refused:
            if refused.code != 404:
                raise

    def scale(self, kind, name, replicas, namespace=None):
        return self.patch(kind, name, {"spec": {"replicas": replicas}}, namespace, "scale")


class Watch(threading.Thread):
    """All objects of a kind as they are, and every change with the time it was seen."""

    def __init__(self, api, kind, moved):
        super().__init__(daemon=True)
        self.api, self.kind, self.moved = api, kind, moved
        self.objects, self.history, self.listeners = {}, [], []
        self.version = None
        self.start()

    @staticmethod
    def key(value):
        return (value["metadata"].get("namespace", ""), value["metadata"]["name"])

    def note(self, what, value):
        key = self.key(value)
        if what == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = value
        with self.moved:
            self.history.append((time.time(), what, value))
            for listener in self.listeners:
                listener(what, value)
            self.moved.notify_all()

    def run(self):
        while True:
            try:
                if self.version is None:
                    listed = self.api.request("GET", Api.path(self.kind))
                    there = {self.key(item) for item in listed["items"]}
                    for key in set(self.objects) - there:
                        self.note("DELETED", self.objects[key])
                    for item in listed["items"]:
                        if self.objects.get(self.key(item)) != item:
                            self.note("LISTED", item)
                    self.version = listed["metadata"]["resourceVersion"]
                self.follow()
            except Exception:  # the server may be stopped on purpose; it is asked again
                time.sleep(0.3)

    def follow(self):
        connection = self.api.connect(None)
        path = f"{Api.path(self.kind)}?watch=1&allowWatchBookmarks=true&resourceVersion={self.version}"
        connection.request("GET", path, headers={"Authorization": "Bearer " + self.api.token})
        answer = connection.getresponse()
        if answer.status != 200:
            self.version = None
            raise Refused(answer.status, answer.read())
        for line in answer:
            event = json.loads(line)
            if event["type"] == "ERROR":
                self.version = None
                return
            self.version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self.note(event["type"], event["object"])
