// fakeinfra is the smallest infrastructure, bootstrap and control plane provider that Cluster API's real controllers accept, with knobs for
// delays and failures. It is no simulation of Cluster API: everything but the machines themselves is real.
//
//	fakeinfra install --config DIR --url URL --ca FILE      CRDs and webhooks of Cluster API (from its module) and our own CRDs
//	fakeinfra run [--workload-kubeconfig FILE]              the controller
//
// A FakeMachine gets a providerID and a Node of the same name in the workload cluster; kwok makes that Node Ready.
package main

import (
	"context"
	"flag"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

type object = map[string]any

func gvr(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}

const (
	infra        = "infrastructure.cluster.x-k8s.io"
	controlPlane = "controlplane.cluster.x-k8s.io"
	bootstrap    = "bootstrap.cluster.x-k8s.io"
)

var (
	crds          = gvr("apiextensions.k8s.io", "v1", "customresourcedefinitions")
	nodes         = gvr("", "v1", "nodes")
	secrets       = gvr("", "v1", "secrets")
	namespaces    = gvr("", "v1", "namespaces")
	clusters      = gvr("cluster.x-k8s.io", "v1beta2", "clusters")
	machines      = gvr("cluster.x-k8s.io", "v1beta2", "machines")
	fakeClusters  = gvr(infra, "v1beta1", "fakeclusters")
	fakeMachines  = gvr(infra, "v1beta1", "fakemachines")
	fakeTemplates = gvr(infra, "v1beta1", "fakemachinetemplates")
	fakePlanes    = gvr(controlPlane, "v1beta1", "fakecontrolplanes")
	fakeConfigs   = gvr(bootstrap, "v1beta1", "fakeconfigs")
)

// Our kinds, with those that only a ClusterClass uses.
var kinds = map[schema.GroupVersionResource]string{
	fakeClusters:  "FakeCluster",
	fakeMachines:  "FakeMachine",
	fakeTemplates: "FakeMachineTemplate",
	fakePlanes:    "FakeControlPlane",
	fakeConfigs:   "FakeConfig",
	gvr(bootstrap, "v1beta1", "fakeconfigtemplates"):          "FakeConfigTemplate",
	gvr(infra, "v1beta1", "fakeclustertemplates"):             "FakeClusterTemplate",
	gvr(controlPlane, "v1beta1", "fakecontrolplanetemplates"): "FakeControlPlaneTemplate",
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: fakeinfra install|run ...")
	}
	fs := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	kubeconfig := fs.String("kubeconfig", os.Getenv("KUBECONFIG"), "the management cluster")
	workload := fs.String("workload-kubeconfig", "", "the cluster whose Nodes the machines are; the management cluster if empty")
	config := fs.String("config", "", "core/config of the Cluster API module")
	hooks := fs.String("url", "", "where the Cluster API manager serves its webhooks")
	ca := fs.String("ca", "", "the certificate authority of that server")
	_ = fs.Parse(os.Args[2:])
	client, _ := connect(*kubeconfig)
	ctx := context.Background()
	switch os.Args[1] {
	case "install":
		check(install(ctx, client, *config, *hooks, *ca))
	case "run":
		if *workload == "" {
			*workload = *kubeconfig
		}
		data, err := os.ReadFile(*workload)
		check(err)
		theirs, rc := connect(*workload)
		run(ctx, &provider{hub: client, workload: theirs, kubeconfig: data, endpoint: endpoint(rc)})
	default:
		log.Fatalf("unknown command %s", os.Args[1])
	}
}

func connect(kubeconfig string) (dynamic.Interface, *rest.Config) {
	rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	check(err)
	rc.QPS, rc.Burst = 500, 1000
	client, err := dynamic.NewForConfig(rc)
	check(err)
	return client, rc
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func set(o object, value any, path ...string) { check(unstructured.SetNestedField(o, value, path...)) }

func str(o object, path ...string) string {
	s, _, _ := unstructured.NestedString(o, path...)
	return s
}

func num(o object, path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(o, path...)
	return n
}

func flagged(o object, path ...string) bool {
	b, _, _ := unstructured.NestedBool(o, path...)
	return b
}
