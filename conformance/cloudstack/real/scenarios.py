"""What is tried. A scenario returns what is to be told beside its calls and seconds."""

import base64
import gzip
import json
import os
import shlex
import subprocess
import time

from cloud import Refused
from kube import condition, is_true
from world import Failed


def _ready(w, name="default"):
    w.until("the NodeClass is ready", 60, lambda: w.told("Ready", name).get("status") == "True")


def _tool(w, *words):
    """`karpenter cloudstack …`, with the tenant's keys."""
    env = {"PATH": os.environ["PATH"], "HOME": "/", "KUBECONFIG": w.kubeconfig, "CLUSTER_NAME": w.arguments.cluster, "CLOUDSTACK_API_URL": w.road.url,
           "CLOUDSTACK_API_KEY": w.arguments.key, "CLOUDSTACK_SECRET_KEY": w.arguments.secret, "CLOUDSTACK_ALLOW_INSECURE_HTTP": "true"}
    done = subprocess.run([w.arguments.karpenter, "cloudstack", *words], env=env, capture_output=True, text=True, timeout=120)
    open(f"{w.out}/tools.log", "a").write(f"$ karpenter cloudstack {' '.join(words)}\n{done.stdout}{done.stderr}exit {done.returncode}\n\n")
    return done


def _volumes(w, **more):
    return w.tenant.list("listVolumes", "volume", **more)


def _setting(w, name, value):
    w.root.call("updateConfiguration", name=name, value=value)


def tools(w):
    """doctor, types and orphans, with keys that work and keys that do not"""
    w.node_class()
    path = f"{w.out}/nodeclass.json"
    value = w.kube.get("CloudStackNodeClass", "default")
    json.dump({k: value[k] for k in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "default"}}, open(path, "w"))
    w.same("doctor", _tool(w, "doctor", "-f", path).returncode, 0)
    types = _tool(w, "types", "-f", path)
    w.same("types", types.returncode, 0)
    w.same("types names the offerings", [n for n in ("k8s.small", "k8s.medium", "k8s.large") if n not in types.stdout], [])
    w.same("orphans", _tool(w, "orphans").returncode, 0)
    secret, w.arguments.secret = w.arguments.secret, "wrong"
    try:
        w.same("doctor with a wrong secret", _tool(w, "doctor").returncode, 1)
    finally:
        w.arguments.secret = secret


def first_node(w):
    """the architecture document's NodeClass and a NodePool end in a running pod; tags, user data and provider id are right; and back to nothing"""
    w.node_class(userData="#!/bin/bash\n# Bootstrap script {{nodeClaim}}\n", tags={"team": "plätform x"})
    w.karpenter()
    began = time.time()
    _ready(w)
    w.want(1)
    w.up(1)
    up = time.time() - began
    w.at_rest()
    machine, claim = w.machines()[0], w.claims()[0]
    w.same("tag of the user", {t["key"]: t["value"] for t in machine["tags"]}.get("team"), "plätform x")
    w.same("offering", machine["serviceofferingname"], "k8s.small")
    w.same("provider id", claim["status"]["providerID"], f"external-cloudstack://{machine['id']}")
    data = w.tenant.call("getVirtualMachineUserData", virtualmachineid=machine["id"])["virtualmachineuserdata"]["userdata"]
    text = base64.b64decode(data).decode()
    w.same("user data", text, f"#!/bin/bash\n# Bootstrap script {claim['metadata']['name']}\n")
    down = time.time()
    w.down()
    return {"up": round(up), "down": round(time.time() - down)}


def twenty_nodes(w, count=20):
    """twenty nodes at once, and back to nothing"""
    w.node_class()
    w.karpenter()
    _ready(w)
    began = time.time()
    w.want(count)
    w.up(count, 400)
    up = time.time() - began
    w.at_rest()
    before = time.time()
    w.down(400)
    return {"up": round(up), "down": round(time.time() - before)}


def expunge(w):
    """deletion without the right to expunge leaves the machine Destroyed for its time, with it nothing; both let the NodeClaim go"""
    facts = {}
    for right in ("false", "true"):
        _setting(w, "allow.user.expunge.recover.vm", right)
        w.node_class()
        w.karpenter(f"karpenter-expunge-{right}")
        _ready(w)
        w.want(1)
        w.up(1)
        machine = w.machines()[0]["id"]
        before = time.time()
        w.down()
        facts[f"down {right}"] = round(time.time() - before)
        seen = w.root.call("listVirtualMachines", id=machine, listall="true").get("virtualmachine", [])
        facts[f"after {right}"] = seen[0]["state"] if seen else "gone"
        w.clear()
    _setting(w, "allow.user.expunge.recover.vm", "false")
    return facts


def data_disks(w):
    """two data disks are made with the machine, one goes with it and one stays; then the one that stayed is removed by hand"""
    before = {v["id"] for v in _volumes(w)}
    disk = w.arguments.disk_offering
    w.node_class(dataDisks=[{"offering": disk}, {"offering": disk, "deleteOnTermination": False}])
    w.karpenter()
    _ready(w)
    w.want(1)
    w.up(1)
    new = [v for v in _volumes(w) if v["id"] not in before]
    w.same("volumes", sorted(v["type"] for v in new), ["DATADISK", "DATADISK", "ROOT"])
    w.down()
    # The server shows a destroyed one until it cleans up its storage, and the root disk of a machine until it is expunged.
    there = lambda: [v for v in _volumes(w, type="DATADISK") if v["id"] not in before and v["state"] != "Destroy"]
    w.until("one volume is left", 60, lambda: len(there()) == 1)
    left = there()
    tags = {t["key"]: t["value"] for t in left[0].get("tags", [])}
    w.same("it is marked as kept", "karpenter.k8s.cloudstack/kept" in tags, True)
    w.tenant.call("deleteVolume", id=left[0]["id"])
    return {"tags of the one that stays": tags}


def anti_affinity(w, hosts=6):
    """one machine per host in a strict group: as many as there are hosts are placed, the others told why not; the group goes with the pool"""
    w.node_class(affinity={"type": "hostAntiAffinity"})
    w.karpenter()
    _ready(w)
    w.want(hosts + 2)
    w.up(hosts, 300, nodes=hosts)
    w.stays("no more are placed", 30, lambda: w.initialized() == hosts)
    placed = [m["hostname"] for m in w.root.machines(keyword=w.prefix, listall="true") if m["state"] == "Running"]
    w.same("hosts", len(set(placed)), hosts)
    w.down(240)
    w.kube.delete("NodePool", "default")
    w.kube.delete("CloudStackNodeClass", "default")
    # It is looked for every two minutes, and a destroyed machine is in it until it is expunged.
    w.until("the group is gone", 330, lambda: not [g for g in w.tenant.list("listAffinityGroups", "affinitygroup") if g["name"].startswith("karpenter")])


def custom_offering(w):
    """a constrained custom offering sells the sizes that are asked for, with and without a speed of its own"""
    facts = {}
    for name in w.arguments.custom_offering.split(","):
        w.node_class(serviceOfferingSelectorTerms=[{"name": name}], customSizes={"cpus": [1, 2], "memoryPerCPU": [1, 2]})
        w.karpenter("karpenter-custom")
        _ready(w)
        w.want(1, cpu="1200m", memory="2500Mi")
        w.up(1)
        machine = w.machines()[0]
        w.same("size", (machine["cpunumber"], machine["memory"]), (2, 4096))
        facts[name] = w.claims()[0]["metadata"]["labels"]["node.kubernetes.io/instance-type"]
        w.at_rest()
        w.down()
        w.clear()
    return facts


def project(w):
    """machines of a NodeClass with a projectID are made, seen and removed there"""
    found = [p for p in w.tenant.list("listProjects", "project") if p["name"] == f"karpenter-{w.arguments.cluster}"]
    number = found[0]["id"] if found else w.tenant.job("createProject", name=f"karpenter-{w.arguments.cluster}", displaytext="x")["project"]["id"]
    zone = w.tenant.list("listZones", "zone", name=w.arguments.zone)[0]["id"]
    networks = [n for n in w.tenant.list("listNetworks", "network", projectid=number) if n["name"] == "project-net"]
    if not networks:
        offering = w.tenant.list("listNetworkOfferings", "networkoffering", name="DefaultIsolatedNetworkOfferingWithSourceNatService")[0]["id"]
        w.tenant.call("createNetwork", name="project-net", displaytext="x", networkofferingid=offering, zoneid=zone, projectid=number)
    w.node_class(projectID=number, networkSelectorTerms=[{"name": "project-net"}], affinity={"type": "softHostAntiAffinity"},
                 dataDisks=[{"offering": w.arguments.disk_offering}])
    w.play.scopes = [{}, {"projectid": number}]
    w.karpenter()
    _ready(w)
    w.want(2)
    w.up(2, 180)
    w.same("machines outside of the project", len(w.machines()), 0)
    w.at_rest(projectid=number)
    for app in w.play.wanted:
        w.play.wanted[app] = (0, w.play.wanted[app][1])
    w.until("all is gone", 180, lambda: not w.claims() and not w.machines(projectid=number))
    w.until("and its disks", 60, lambda: not [v for v in _volumes(w, projectid=number, type="DATADISK") if v["state"] != "Destroy"])


def two_nics(w):
    """a second interface per machine, in the order asked for"""
    w.node_class(additionalNetworkSelectorTerms=[{"name": w.arguments.second_network}])
    w.karpenter()
    _ready(w)
    w.want(1)
    w.up(1, 180)
    nics = w.machines()[0]["nic"]
    w.same("interfaces", [(n["networkname"], n["isdefault"]) for n in sorted(nics, key=lambda n: int(n["deviceid"]))],
           [(w.arguments.network, True), (w.arguments.second_network, False)])
    w.down()


def full(w):
    """hosts are filled by another; the cheapest fitting size is refused and nothing fits; when there is room for a smaller one again it is launched"""
    zone = w.root.list("listZones", "zone", name=w.arguments.zone)[0]["id"]
    pick = lambda command, what, name: next(v["id"] for v in w.root.list(command, what, listall="true", **({"templatefilter": "executable"} if what == "template" else {})) if v["name"] == name)
    offering, template = pick("listServiceOfferings", "serviceoffering", "k8s.medium"), pick("listTemplates", "template", w.arguments.template)
    network = w.tenant.list("listNetworks", "network", keyword=w.arguments.network)[0]["id"]
    account = w.tenant.call("listAccounts")["account"][0]
    fill = []
    try:
        while True:
            try:
                made = w.root.job("deployVirtualMachine", zoneid=zone, serviceofferingid=offering, templateid=template, networkids=network,
                                  account=account["name"], domainid=account["domainid"], name=f"fill-{int(time.time()*10)}")
                fill.append(made["virtualmachine"]["id"])
            except Refused as refused:
                filled = str(refused)[:60]
                break
        w.node_class()
        w.karpenter()
        _ready(w)
        w.want(1, cpu="1500m")
        w.until("the refusal is told", 120, lambda: w.events("InsufficientCapacity"))
        time.sleep(60)
        deploys = sum(1 for c in w.road.calls if c[1] == "deployVirtualMachine" and c[0] > time.time() - 70)
        w.want(0)
        # Room for a small one is there, or is made.
        w.want(1, app="small", cpu="600m")
        began = time.time()
        freed = None
        while time.time() < began + 300 and w.running("small") < 1:
            if time.time() > began + 30 and freed is None:
                freed = fill.pop()
                w.root.job("destroyVirtualMachine", id=freed, expunge="true")
            time.sleep(1)
        w.same("small one runs", w.running("small"), 1)
        small = w.machines()[0]["serviceofferingname"]
        w.down()
        return {"filled by": len(fill) + bool(freed), "with": filled, "deploys in a minute of want": deploys, "then": small}
    finally:
        for machine in fill:
            w.root.call("destroyVirtualMachine", id=machine, expunge="true")


def next_type(w):
    """the first type is refused for want of a host; the same NodeClaim is launched with the next"""
    w.node_class(serviceOfferingSelectorTerms=[{"name": "k8s.tagged"}, {"name": "k8s.small"}], pricing={"overrides": {"k8s.tagged": "0.001"}})
    w.karpenter()
    _ready(w)
    began = time.time()
    w.want(1)
    w.up(1)
    up = time.time() - began
    w.at_rest()
    w.same("NodeClaims there ever were", len({c[4].get("name", "").split("--")[0] for c in w.road.calls if c[0] > began and c[1] == "deployVirtualMachine"}), 1)
    w.same("offering", w.machines()[0]["serviceofferingname"], "k8s.small")
    w.down()
    return {"up": round(up)}


def quota(w):
    """a limit of the account: what does not fit is not asked for, and told; when it is raised, the rest comes"""
    account = w.tenant.call("listAccounts")["account"][0]
    limit = lambda value: w.root.call("updateResourceLimit", account=account["name"], domainid=account["domainid"], resourcetype=0, max=value)
    w.node_class()
    w.karpenter()
    _ready(w)
    try:
        limit(2 + int(account["vmtotal"]))
        w.want(4)
        w.until("two nodes are up", 120, lambda: w.initialized() == 2)
        w.stays("no more come", 20, lambda: w.initialized() == 2)
        told = w.told("QuotaAvailable")
        limit(-1)
        raised = time.time()
        w.up(4, 180)
        return {"condition": [told.get("status"), told.get("reason"), told.get("message", "")[:150]], "after it was raised": round(time.time() - raised)}
    finally:
        limit(-1)
        w.down()


def lost_answers(w):
    """the first answer to every command that changes something is lost after it was done: one machine per NodeClaim, up and down"""
    seen = {}

    def after(command, fields, code):
        if command.startswith(("list", "query", "get")):
            return None
        key = (command, fields.get("name") or fields.get("id") or fields.get("resourceids"))
        seen[key] = seen.get(key, 0) + 1
        return "lose" if seen[key] == 1 else None

    w.road.after = after
    w.node_class()
    w.karpenter()
    _ready(w)
    w.want(3)
    w.up(3, 240)
    w.until("everything is as it should be", 120, lambda: _rests(w))
    w.down(240)


def _rests(w):
    try:
        w.at_rest()
        return True
    except Failed:
        return False


def lost_requests(w):
    """the first of every request that changes something never arrives"""
    seen = {}

    def before(command, fields):
        if command.startswith(("list", "query", "get")):
            return None
        key = (command, fields.get("name") or fields.get("id") or fields.get("resourceids"))
        seen[key] = seen.get(key, 0) + 1
        return "lose" if seen[key] == 1 else None

    w.road.before = before
    w.node_class()
    w.karpenter()
    _ready(w)
    w.want(3)
    w.up(3, 240)
    w.until("everything is as it should be", 120, lambda: _rests(w))
    w.down(240)


def killed(w):
    """killed right after each deployVirtualMachine, createTags and destroyVirtualMachine was done and before it was answered"""
    w.node_class()
    process = w.karpenter()
    _ready(w)
    kills = []
    current = [process]

    def after(command, fields, code):
        if code == 200 and command in ("deployVirtualMachine", "createTags", "destroyVirtualMachine") and len(kills) < 9 and sum(k == command for k in kills) < 3:
            kills.append(command)
            w.kill(current[0])
            return "lose"

    w.road.after = after
    w.want(3)
    end = time.time() + 300
    def keep():
        if current[0].poll() is not None:
            current[0] = w.karpenter()
    while time.time() < end and not (w.running() == 3 and w.initialized() == 3):
        keep()
        time.sleep(0.5)
    w.same("pods that run", w.running(), 3)
    w.until("everything is as it should be", 120, lambda: _rests(w))
    w.want(0)
    end = time.time() + 300
    while time.time() < end and (w.claims() or w.machines()):
        keep()
        time.sleep(0.5)
    w.same("left", (len(w.claims()), len(w.machines())), (0, 0))
    return {"kills": kills}


def two_leaders(w):
    """two programs that both believe to lead"""
    w.node_class()
    first = w.karpenter("karpenter-one")
    second = w.karpenter("karpenter-two")
    _ready(w)
    w.want(5)
    w.up(5, 240)
    w.same("both ran all the while", [first.poll(), second.poll()], [None, None])
    w.kill(second)
    twins = len(w.machines()) - len(w.claims())
    # The server takes two orders of one name that come at once: the second machine is an orphan, and gone after five minutes.
    w.until("everything is as it should be", 480, lambda: _rests(w))
    w.down(240)
    return {"machines too many": twins}


def keys_rotated(w):
    """new keys are written while nodes come, the old ones revoked first: no node is lost, the new ones are used"""
    user = next(u for u in w.root.list("listUsers", "user", listall="true") if u["account"] == w.tenant.call("listAccounts")["account"][0]["name"])
    w.node_class()
    w.karpenter()
    _ready(w)
    w.want(2)
    w.up(2, 180)
    keys = w.root.call("registerUserKeys", id=user["id"])["userkeys"]
    time.sleep(15)
    told = w.told("CredentialsReady")
    w.same("NodeClaims while the keys are revoked", len(w.claims()), 2)
    w.tenant.key, w.tenant.secret = w.arguments.key, w.arguments.secret = keys["apikey"], keys["secretkey"]
    if w.arguments.save_keys:
        json.dump({"key": keys["apikey"], "secret": keys["secretkey"]}, open(w.arguments.save_keys, "w"))
    w.keys(keys["apikey"], keys["secretkey"])
    began = time.time()
    w.want(3)
    w.up(3, 180)
    w.at_rest()
    w.down(180)
    return {"while revoked": [told.get("status"), told.get("reason"), told.get("message", "")[:120]], "node after new keys": round(time.time() - began)}


def keys_wrong(w):
    """keys that do not work are told by condition, without a tight loop; right ones heal it without a restart"""
    w.keys("nonsense", "wrong")
    w.node_class()
    w.karpenter()
    w.want(1)
    w.until("it is told", 60, lambda: w.told("CredentialsReady").get("status") == "False")
    before = len(w.road.calls)
    time.sleep(30)
    calls = len(w.road.calls) - before
    told = w.told("CredentialsReady")
    w.keys(w.arguments.key, w.arguments.secret)
    began = time.time()
    w.up(1, 180)
    healed = time.time() - began
    w.down()
    return {"told": [told.get("reason"), told.get("message", "")[:160]], "calls in 30 s": calls, "up after": round(healed)}


def server_restarted(w):
    """the management server is killed and started again while three machines are being deployed"""
    w.node_class()
    w.karpenter()
    _ready(w)
    accepted = []
    def after(command, fields, code):
        if command == "deployVirtualMachine" and code == 200:
            accepted.append(fields.get("name"))
    w.road.after = after
    w.want(3)
    w.until("a deployment is accepted", 60, lambda: accepted)
    began = time.time()
    subprocess.run(shlex.split(w.arguments.restart), check=True)
    away = time.time() - began
    states = sorted(m["state"] for m in w.machines())
    w.up(3, 600)
    up = time.time() - began
    w.until("everything is as it should be", 400, lambda: _rests(w))
    w.down(240)
    return {"away": round(away), "states after": states, "up after": round(up)}


def behind_our_back(w):
    """one machine is stopped, one destroyed, one expunged by an administrator: the stopped one is started again, the others replaced"""
    w.node_class()
    w.karpenter()
    _ready(w)
    w.want(3)
    w.up(3, 180)
    machines = sorted(w.machines(), key=lambda m: m["name"])
    stopped, destroyed, expunged = (m["id"] for m in machines)
    w.root.job("stopVirtualMachine", id=stopped)
    w.root.job("destroyVirtualMachine", id=destroyed)
    w.root.job("destroyVirtualMachine", id=expunged, expunge="true")
    began = time.time()
    w.until("three nodes are up again", 600, lambda: w.running() == 3 and w.initialized() == 3 and _rests(w)
            and all(m["state"] == "Running" for m in w.machines()))
    took = time.time() - began
    ids = {m["id"] for m in w.machines()}
    w.down(240)
    return {"healed after": round(took), "the stopped one was kept": stopped in ids}


def stale_name(w):
    """a machine of another with the very name is in the way"""
    w.node_class()
    w.karpenter()
    _ready(w)
    taken = []

    def before(command, fields):
        if command == "deployVirtualMachine" and not taken:
            taken.append(fields["name"])
            made = w.tenant.call("deployVirtualMachine", zoneid=fields["zoneid"], serviceofferingid=fields["serviceofferingid"], templateid=fields["templateid"],
                                 networkids=fields["networkids"], name=fields["name"], startvm="false")
            taken.append(made["id"])

    w.road.before = before
    w.want(1)
    w.up(1, 500)
    names = sorted((m["name"], m["state"]) for m in w.machines())
    w.road.before = None
    ids = [c["status"]["providerID"].split("/")[-1] for c in w.claims()]
    w.want(0)
    w.until("no NodeClaim is left", 240, lambda: not w.claims())
    return {"in the way": taken[0], "machines": names, "the foreign one was adopted": taken[1] in ids}


def user_data(w):
    """user data of 20,000 characters is compressed, and longer than CloudStack takes is told without a machine"""
    facts = {}
    text = "#!/bin/bash\n" + "".join(f"echo line {i} of a long bootstrap script\n" for i in range(900))
    w.node_class(userData=text)
    w.karpenter()
    _ready(w)
    w.want(1)
    w.up(1, 120)
    data = w.tenant.call("getVirtualMachineUserData", virtualmachineid=w.machines()[0]["id"])["virtualmachineuserdata"]["userdata"]
    raw = base64.b64decode(data)
    facts["sent"] = len(data)
    w.same("user data arrives", (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode(), text)
    facts["compressed"] = raw[:2] == b"\x1f\x8b"
    w.down()
    w.clear()
    noise = base64.b64encode(os.urandom(45000)).decode()
    w.node_class(userData="#!/bin/bash\n# " + noise)
    w.karpenter()
    w.want(1)
    w.until("it is told", 60, lambda: w.told("Ready").get("status") == "False" or w.events("UserDataTooLong"))
    bad = [c for c in w.ready()["status"]["conditions"] if c["status"] == "False"]
    facts["told"] = [(c["type"], c["reason"], c["message"][:150]) for c in bad]
    time.sleep(10)
    w.same("machines", len(w.machines()), 0)
    return facts


def network_full(w):
    """a network of few addresses: as many nodes as it has, then the next network; told by event"""
    w.node_class(networkSelectorTerms=[{"name": w.arguments.tiny_network}, {"name": w.arguments.network}])
    w.karpenter()
    _ready(w)
    w.want(6)
    w.up(6, 300)
    w.at_rest()
    networks = sorted(m["nic"][0]["networkname"] for m in w.machines())
    told = [e.get("message", "")[:150] for e in w.events("NetworkExhausted")]
    w.down(240)
    return {"networks": networks, "told": told[:2], "NetworksReady": w.told("NetworksReady").get("reason")}


def drift(w):
    """a tag taken off is put back; another interface and another offering are drift, and the node is replaced"""
    facts = {}
    w.node_class()
    w.karpenter()
    _ready(w)
    w.want(1)
    w.up(1, 120)
    first = w.claims()[0]["status"]["providerID"].split("/")[-1]
    w.tenant.job("deleteTags", resourceids=first, resourcetype="UserVm", **{"tags[0].key": "karpenter.sh/nodepool"})
    tags = lambda: {t["key"] for t in next(m for m in w.machines() if m["id"] == first)["tags"]}
    began = time.time()
    w.until("the tag is back", 400, lambda: "karpenter.sh/nodepool" in tags())
    facts["tag back after"] = round(time.time() - began)
    network = next(n for n in w.tenant.list("listNetworks", "network") if n["name"] == w.arguments.second_network)["id"]
    w.tenant.job("addNicToVirtualMachine", virtualmachineid=first, networkid=network)
    began = time.time()
    seen = set()
    def replaced():
        for claim in w.claims():
            told = condition(claim, "Drifted")
            if told.get("status") == "True":
                seen.add(told.get("reason"))
        return {m["id"] for m in w.machines()} - {first} and len(w.machines()) == 1 and w.running() == 1
    w.until("the node is replaced", 500, replaced)
    facts["replaced after"], facts["reasons"] = round(time.time() - began), sorted(seen)
    w.until("everything is as it should be", 60, lambda: _rests(w))
    w.down()
    return facts


def orphan(w):
    """machines nobody wants: of our name without a tag (removed), of another cluster (stays), of a user (stays)"""
    w.node_class()
    w.karpenter()
    _ready(w)
    w.want(1)
    w.up(1, 120)
    mine = w.machines()[0]
    digest = mine["name"].removeprefix("karpenter-").split("-")[0]
    like = {"zoneid": mine["zoneid"], "serviceofferingid": mine["serviceofferingid"], "templateid": mine["templateid"], "networkids": mine["nic"][0]["networkid"]}
    names = {"ours": f"karpenter-{digest}-default-zzzzz", "another": "karpenter-ffffff-default-aaaaa", "user": "karpenter-of-bob"}
    w.play.never_join |= set(names.values())
    ids = {k: w.tenant.call("deployVirtualMachine", name=n, **like)["id"] for k, n in names.items()}
    listed = _tool(w, "orphans").stdout
    w.same("orphans lists what is younger than five minutes", ids["ours"] in listed or names["ours"] in listed, False)
    began = time.time()
    w.until("ours is gone", 600, lambda: ids["ours"] not in {m["id"] for m in w.machines()})
    took = time.time() - began
    left = {m["id"] for m in w.machines()}
    w.same("others stay", {ids["another"], ids["user"], mine["id"]} <= left, True)
    for kind in ("another", "user"):
        w.root.job("destroyVirtualMachine", id=ids[kind], expunge="true")
    w.down()
    return {"gone after": round(took), "told": [e["message"][:120] for e in w.events("OrphanDeleted")][:1]}


def template_gone(w):
    """the template is deleted by its owner after nodes were made: they stay, the NodeClass says so; with another one nodes drift to it"""
    zone = w.tenant.list("listZones", "zone", name=w.arguments.zone)[0]["id"]
    source = next(t for t in w.root.list("listTemplates", "template", templatefilter="all") if t["name"] == w.arguments.template)
    w.node_class()
    w.karpenter(CLOUDSTACK_CACHE_TEMPLATES="10s")
    _ready(w)
    w.want(1)
    w.up(1, 120)
    first = w.machines()[0]["id"]
    w.root.call("updateTemplate", id=source["id"], name="hidden-away")
    try:
        w.until("it is told", 120, lambda: w.told("TemplatesReady").get("status") == "False" or w.told("Ready").get("status") == "False")
        bad = w.told("TemplatesReady")
        w.want(2)
        w.stays("the node stays", 30, lambda: [m["id"] for m in w.machines()] == [first])
    finally:
        w.root.call("updateTemplate", id=source["id"], name=w.arguments.template)
    w.up(2, 180)
    w.same("the first machine is still there", first in {m["id"] for m in w.machines()}, True)
    w.down()
    return {"told": [bad.get("reason"), bad.get("message", "")[:160]]}


def proxy_pages(w):
    """a proxy in front of the server answers with pages of its own, cuts answers short and is away now and then"""
    count = [0]

    def after(command, fields, code):
        count[0] += 1
        if count[0] % 5 == 1:
            return 502, "text/html", b"<html><body>Bad Gateway</body></html>"
        if count[0] % 7 == 3:
            return 200, "application/json", b'{"listvirtualmachinesresponse":{"count":1,"virt'
        if count[0] % 11 == 5:
            return 503, "text/html", b"<html>Service Unavailable</html>"

    w.road.after = after
    w.node_class()
    w.karpenter()
    _ready(w)
    w.want(3)
    w.up(3, 300)
    w.until("everything is as it should be", 120, lambda: _rests(w))
    w.down(300)


def slow_start(w):
    """deleted while the machine starts slowly: it goes when the start is over, with one order"""
    w.node_class()
    w.karpenter()
    _ready(w)
    zone = w.root.list("listZones", "zone", name=w.arguments.zone)[0]["id"]
    mock = w.root.call("configureSimulator", zoneid=zone, name="StartCommand", value="wait:40000")  # milliseconds
    try:
        w.want(1)
        w.until("a machine is there", 60, lambda: w.machines())
        w.until("it is launched", 60, lambda: [c for c in w.claims() if is_true(c, "Launched")])
        w.want(0)
        time.sleep(2)
        for claim in w.claims():
            w.kube.delete("NodeClaim", claim["metadata"]["name"])
        began = time.time()
        w.until("it is gone", 200, lambda: not w.claims() and not w.machines())
        orders = sum(1 for c in w.road.calls if c[0] >= began - 3 and c[1] == "destroyVirtualMachine")
        return {"gone after": round(time.time() - began), "orders": orders}
    finally:
        # The server gives what it made no name of its own.
        w.root.call("cleanupSimulatorMock", id=next(iter(mock.values()))["id"])
