// The controller: clusters are provisioned at once, control planes too unless they are told to upgrade for ever, machines as
// their spec says.
//
// Knobs of a FakeMachine, from its template (the simulator of the Rust tests has the same ones):
// provisionSeconds, joinSeconds, deleteSeconds, never, neverJoins, fails {seconds, reason, message}, capacity, nodeLabels, untainted,
// alias (the provider id of somebody else's machine).
// Of a FakeControlPlane: reported, the version its status shows while it "upgrades" to spec.version.
// Of a FakeCluster: failureDomains, a list of names.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const finalizer = "fakemachine.infrastructure.cluster.x-k8s.io"

type provider struct {
	hub, workload dynamic.Interface
	kubeconfig    []byte // of the workload cluster, as Cluster API wants it in a Secret
	endpoint      object
}

type key struct {
	resource  schema.GroupVersionResource
	namespace string
	name      string
}

// again asks for another look after a while; it is no failure.
type again time.Duration

func (a again) Error() string { return time.Duration(a).String() + " left" }

func endpoint(rc *rest.Config) object {
	host, err := url.Parse(rc.Host)
	check(err)
	port, err := strconv.ParseInt(host.Port(), 10, 64)
	check(err)
	return object{"host": host.Hostname(), "port": port}
}

func run(ctx context.Context, p *provider) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](50*time.Millisecond, 5*time.Second))
	informers := dynamicinformer.NewDynamicSharedInformerFactory(p.hub, 0)
	reconcilers := map[schema.GroupVersionResource]func(context.Context, *unstructured.Unstructured) error{
		clusters: p.cluster, fakeClusters: p.infrastructure, fakePlanes: p.controlPlane, fakeMachines: p.machine, fakeConfigs: p.config,
	}
	for r := range reconcilers {
		enqueue := func(o any) {
			u := o.(*unstructured.Unstructured)
			queue.Add(key{r, u.GetNamespace(), u.GetName()})
		}
		_, err := informers.ForResource(r).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) },
		})
		check(err)
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	log.Print("fakeinfra is running")
	for range 8 {
		go func() {
			for {
				k, _ := queue.Get()
				cached, err := informers.ForResource(k.resource).Lister().ByNamespace(k.namespace).Get(k.name)
				if err == nil {
					err = reconcilers[k.resource](ctx, cached.(*unstructured.Unstructured).DeepCopy())
				}
				if wait, ok := err.(again); ok {
					queue.Forget(k)
					queue.AddAfter(k, time.Duration(wait))
				} else if err != nil && !apierrors.IsNotFound(err) {
					log.Printf("%s %s/%s: %v", k.resource.Resource, k.namespace, k.name, err)
					queue.AddRateLimited(k)
				} else {
					queue.Forget(k)
				}
				queue.Done(k)
			}
		}()
	}
	select {}
}

// cluster writes the Secret by which Cluster API reaches the workload cluster.
func (p *provider) cluster(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	_, err := p.hub.Resource(secrets).Namespace(o.GetNamespace()).Create(ctx, &unstructured.Unstructured{Object: object{
		"apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
		"metadata": object{"name": o.GetName() + "-kubeconfig", "labels": object{"cluster.x-k8s.io/cluster-name": o.GetName()}},
		"data":     object{"value": base64.StdEncoding.EncodeToString(p.kubeconfig)},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (p *provider) infrastructure(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	status := object{"initialization": object{"provisioned": true}}
	names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "failureDomains")
	var domains []any
	for _, name := range names {
		domains = append(domains, object{"name": name, "controlPlane": false})
	}
	if domains != nil {
		status["failureDomains"] = domains
	}
	return p.update(ctx, fakeClusters, o, object{"controlPlaneEndpoint": p.endpoint}, status)
}

func (p *provider) controlPlane(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	version := str(o.Object, "spec", "reported")
	if version == "" {
		version = str(o.Object, "spec", "version")
	}
	return p.update(ctx, fakePlanes, o, nil, object{
		"initialization": object{"controlPlaneInitialized": true}, "externalManagedControlPlane": true,
		"version": version, "versions": []any{object{"version": version, "replicas": int64(1)}},
		"conditions": []any{condition(o, "Available", "True", "Available", "")},
	})
}

// config makes the Secret a machine would boot with.
func (p *provider) config(ctx context.Context, o *unstructured.Unstructured) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	labels := object{"cluster.x-k8s.io/cluster-name": o.GetLabels()["cluster.x-k8s.io/cluster-name"]}
	_, err := p.hub.Resource(secrets).Namespace(o.GetNamespace()).Create(ctx, &unstructured.Unstructured{Object: object{
		"apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret", "metadata": object{"name": o.GetName(), "labels": labels},
		"stringData": object{"value": "#cloud-config"},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return p.update(ctx, fakeConfigs, o, nil, object{"dataSecretName": o.GetName(), "initialization": object{"dataSecretCreated": true}})
}

func condition(o *unstructured.Unstructured, kind, status, reason, message string) object {
	return object{"type": kind, "status": status, "reason": reason, "message": message,
		"lastTransitionTime": o.GetCreationTimestamp().UTC().Format(time.RFC3339)}
}

// after is nil once so many seconds have passed since the machine was made.
func after(o *unstructured.Unstructured, seconds int64) error {
	if left := time.Until(o.GetCreationTimestamp().Add(time.Duration(seconds) * time.Second)); seconds > 0 && left > 0 {
		return again(left + 50*time.Millisecond)
	}
	return nil
}

func (p *provider) machine(ctx context.Context, o *unstructured.Unstructured) error {
	finalizers := o.GetFinalizers()
	if deleted := o.GetDeletionTimestamp(); deleted != nil {
		if left := time.Until(deleted.Add(time.Duration(num(o.Object, "spec", "deleteSeconds")) * time.Second)); left > 0 {
			return again(left + 50*time.Millisecond)
		}
		if !slices.Contains(finalizers, finalizer) {
			return nil
		}
		left := slices.DeleteFunc(finalizers, func(f string) bool { return f == finalizer })
		return p.patch(ctx, fakeMachines, o, object{"metadata": object{"finalizers": left, "resourceVersion": o.GetResourceVersion()}})
	}
	if !slices.Contains(finalizers, finalizer) {
		added := append(finalizers, finalizer)
		return p.patch(ctx, fakeMachines, o, object{"metadata": object{"finalizers": added, "resourceVersion": o.GetResourceVersion()}})
	}
	owner := ""
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == "Machine" {
			owner = ref.Name
		}
	}
	if owner == "" || flagged(o.Object, "spec", "never") {
		return nil // Cluster API comes back to set the owner
	}
	if fails, ok, _ := unstructured.NestedMap(o.Object, "spec", "fails"); ok {
		if err := after(o, num(fails, "seconds")); err != nil {
			return err
		}
		// The v1beta2 contract knows no failureReason: the Machine mirrors the Ready condition.
		return p.update(ctx, fakeMachines, o, nil, object{
			"conditions": []any{condition(o, "Ready", "False", str(fails, "reason"), str(fails, "message"))},
		})
	}
	provision := num(o.Object, "spec", "provisionSeconds")
	if err := after(o, provision); err != nil {
		return err
	}
	id := "fake://" + o.GetNamespace() + "/" + o.GetName()
	if alias := str(o.Object, "spec", "alias"); alias != "" {
		id = alias
	}
	if err := p.update(ctx, fakeMachines, o, object{"providerID": id}, object{
		"initialization": object{"provisioned": true},
		"conditions":     []any{condition(o, "Ready", "True", "Ready", "")},
		"addresses":      []any{object{"type": "InternalIP", "address": "127.0.0.1"}, object{"type": "Hostname", "address": o.GetName()}},
	}); err != nil {
		return err
	}
	if flagged(o.Object, "spec", "neverJoins") || flagged(o.Object, "status", "joined") {
		return nil
	}
	if err := after(o, provision+num(o.Object, "spec", "joinSeconds")); err != nil {
		return err
	}
	if err := p.join(ctx, o, owner, id); err != nil {
		return err
	}
	return p.update(ctx, fakeMachines, o, nil, object{"joined": true})
}

// join makes the Node, as kubelet would.
func (p *provider) join(ctx context.Context, o *unstructured.Unstructured, owner, id string) error {
	labels, _, _ := unstructured.NestedMap(o.Object, "spec", "nodeLabels")
	all := object{"kubernetes.io/hostname": o.GetName(), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
	for k, v := range labels {
		all[k] = v
	}
	m, err := p.hub.Resource(machines).Namespace(o.GetNamespace()).Get(ctx, owner, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if domain := str(m.Object, "spec", "failureDomain"); domain != "" {
		all["topology.kubernetes.io/zone"] = domain
	}
	capacity, _, _ := unstructured.NestedMap(o.Object, "spec", "capacity")
	if capacity == nil {
		capacity = object{"cpu": "4", "memory": "16Gi", "pods": "110"}
	}
	// As kubeadm has it: Cluster API takes the first one off when it knows the Node.
	taints := []any{object{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}}
	if !flagged(o.Object, "spec", "untainted") {
		taints = append(taints, object{"key": "karpenter.sh/unregistered", "effect": "NoExecute"})
	}
	spec := object{"providerID": id, "taints": taints}
	status := object{"capacity": capacity, "allocatable": capacity}
	if version := str(m.Object, "spec", "version"); version != "" {
		status["nodeInfo"] = object{"kubeletVersion": version} // else the Machine is never up to date
	}
	_, err = p.workload.Resource(nodes).Create(ctx, &unstructured.Unstructured{Object: object{
		"apiVersion": "v1", "kind": "Node",
		"metadata": object{"name": o.GetName(), "labels": all, "annotations": object{"kwok.x-k8s.io/node": "fake"}},
		"spec":     spec, "status": status,
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (p *provider) patch(ctx context.Context, r schema.GroupVersionResource, o *unstructured.Unstructured, change object, subresources ...string) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	changed, err := p.hub.Resource(r).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.MergePatchType, body, metav1.PatchOptions{}, subresources...)
	if err == nil {
		o.Object = changed.Object
	}
	return err
}

// update writes the given spec and status fields, each by a merge patch, and only where something differs.
func (p *provider) update(ctx context.Context, r schema.GroupVersionResource, o *unstructured.Unstructured, spec, status object) error {
	for _, part := range []struct {
		name         string
		want         object
		subresources []string
	}{{"spec", spec, nil}, {"status", status, []string{"status"}}} {
		have, _, _ := unstructured.NestedMap(o.Object, part.name)
		changed := false
		for k, v := range part.want {
			changed = changed || !reflect.DeepEqual(have[k], v)
		}
		if !changed {
			continue
		}
		if err := p.patch(ctx, r, o, object{part.name: part.want}, part.subresources...); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
