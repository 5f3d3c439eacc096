#!/usr/bin/env python3
"""Records what a real kube-apiserver makes of the objects in this folder's JSON files.

    kubectl proxy --port 18443 &          # a server started with --disable-admission-plugins=ServiceAccount
    ./record.py http://localhost:18443            # fill in every "expect"
    ./record.py http://localhost:18443 --check    # compare only; exit 1 on a difference

A case creates one object ("create") or changes one it created before ("patch", a JSON merge patch, optionally on a
"subresource"); "given" are objects that must exist first. What the server makes up (uid, times, versions, addresses)
is replaced by fixed words. Everything a case creates is deleted again.
"""

import glob
import json
import os
import re
import sys
import urllib.error
import urllib.request

BASE = sys.argv[1].rstrip("/")


def call(method, path, body=None, ctype="application/json"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data=data, method=method, headers={"Content-Type": ctype})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


CLUSTER_SCOPED = {
    "nodes", "namespaces", "persistentvolumes", "priorityclasses", "storageclasses", "csinodes", "csidrivers",
    "volumeattachments", "clusterroles", "clusterrolebindings", "deviceclasses", "resourceslices", "ingressclasses",
    "runtimeclasses", "customresourcedefinitions", "volumeattributesclasses", "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
}


def collection(kind):
    group_version, plural = kind.rsplit("/", 1)
    root = "/api/v1" if group_version == "v1" else "/apis/" + group_version
    return root + ("" if plural in CLUSTER_SCOPED else "/namespaces/default") + "/" + plural


def normalised(value):
    """The answer without what the server makes up."""
    metadata = value.get("metadata", {})
    uid = metadata.get("uid")
    text = json.dumps(value)
    if uid:
        text = text.replace(uid, "the-uid")
    text = re.sub(r'"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"', lambda m: '"<time>"' if m.group(0) > '"2026-01-02' else m.group(0), text)
    text = re.sub(r'"10\.96\.\d+\.\d+"', '"<address>"', text)
    text = re.sub(r'"nodePort": (\d+)', lambda m: '"nodePort": 30000' if m.group(1) != "31234" else m.group(0), text)
    text = re.sub(r'resourceVersion: \\"\d+\\"', 'resourceVersion: "<version>"', text)
    value = json.loads(text)
    for name in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        value.get("metadata", {}).pop(name, None)
    return value


def outcome(code, answer):
    if code < 400:
        return normalised(answer)
    expect = {"code": code, "reason": answer.get("reason", "")}
    causes = answer.get("details", {}).get("causes")
    if causes:
        # Rules over maps are checked in no particular order.
        expect["causes"] = sorted((shortened(cause) for cause in causes), key=lambda c: (c["field"], c["message"]))
    else:
        expect["message"] = answer["message"]
    return {"status": expect}


def shortened(cause):
    """A cause without the parts that print Go's internal structs, and without uids."""
    message = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "the-uid", cause["message"])
    message = message.split("\n@@")[0]
    message = re.sub(r'value: \{"(labels|[A-Z]).*\}: ', "value: {...}: ", message)
    return {**cause, "message": message}


def run(case):
    made = []

    def create(kind, body):
        code, answer = call("POST", collection(kind), body)
        if code >= 400:
            sys.exit(f"{case['name']}: cannot prepare: {answer['message']}")
        made.append(collection(kind) + "/" + answer["metadata"]["name"])
        return answer

    try:
        for given in case.get("given", []):
            create(given["kind"], given["object"])
        if "patch" not in case:
            return outcome(*call("POST", collection(case["kind"]) + "?dryRun=All", case["create"]))
        name = create(case["kind"], case["create"])["metadata"]["name"]
        path = collection(case["kind"]) + "/" + name
        for patch in case.get("before", []):
            sub = "/" + patch["subresource"] if "subresource" in patch else ""
            code, answer = call("PATCH", path + sub, patch["patch"], "application/merge-patch+json")
            if code >= 400:
                sys.exit(f"{case['name']}: cannot prepare: {answer['message']}")
        if "subresource" in case:
            path += "/" + case["subresource"]
        return outcome(*call("PATCH", path + "?dryRun=All", case["patch"], "application/merge-patch+json"))
    finally:
        for path in reversed(made):
            call("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
            call("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
            if "/namespaces/" in path and path.count("/") == 4:
                # No controller runs here that would end a namespace.
                call("PUT", path + "/finalize", {"metadata": {"name": path.rsplit("/", 1)[1]}, "spec": {}})


def main():
    differences = 0
    for file in sorted(glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "*.json"))):
        with open(file, encoding="utf-8") as source:
            cases = json.load(source)
        for case in cases:
            expect = run(case)
            if "--check" in sys.argv:
                if expect != case.get("expect"):
                    differences += 1
                    print(f"{os.path.basename(file)}: {case['name']}: now {json.dumps(expect)}")
            case["expect"] = expect
        if "--check" not in sys.argv:
            with open(file, "w", encoding="utf-8") as out:
                out.write("[\n" + ",\n".join(json.dumps(case, sort_keys=True) for case in cases) + "\n]\n")
    sys.exit(1 if differences else 0)


main()
