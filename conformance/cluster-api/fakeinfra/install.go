// What a manager's kustomization would install: Cluster API's CRDs and webhook configurations, read from its module, with every
// service reference turned into a URL on loopback; and the CRDs of this provider.
package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

func install(ctx context.Context, client dynamic.Interface, config, hooks, caFile string) error {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	ca := base64.StdEncoding.EncodeToString(pem)
	apply := func(r schema.GroupVersionResource, o object) error {
		u := &unstructured.Unstructured{Object: o}
		_, err := client.Resource(r).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "fakeinfra", Force: true})
		return err
	}
	ns := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": "capi-system"}}
	if err := apply(namespaces, ns); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(config, "crd/bases/*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no CRDs under %s: %w", config, err)
	}
	var names []string
	for _, file := range files {
		docs, err := read(file)
		if err != nil {
			return err
		}
		for _, crd := range docs {
			set(crd, object{"strategy": "Webhook", "webhook": object{
				"conversionReviewVersions": []any{"v1"},
				"clientConfig":             object{"url": hooks + "/convert", "caBundle": ca},
			}}, "spec", "conversion")
			// which API version serves which contract
			if strings.HasSuffix(str(crd, "spec", "group"), "cluster.x-k8s.io") {
				set(crd, "v1beta1", "metadata", "labels", "cluster.x-k8s.io/v1beta1")
				set(crd, "v1beta2", "metadata", "labels", "cluster.x-k8s.io/v1beta2")
			}
			names = append(names, str(crd, "metadata", "name"))
			if err := apply(crds, crd); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	for r, kind := range kinds {
		names = append(names, r.Resource+"."+r.Group)
		if err := apply(crds, own(r, kind)); err != nil {
			return err
		}
	}
	// The webhook configurations come last: with failurePolicy Fail they block writes until the manager serves.
	docs, err := read(filepath.Join(config, "webhook/manifests.yaml"))
	if err != nil {
		return err
	}
	for _, doc := range docs {
		list, _, _ := unstructured.NestedSlice(doc, "webhooks")
		for _, w := range list {
			path := str(w.(object), "clientConfig", "service", "path")
			set(w.(object), object{"url": hooks + path, "caBundle": ca}, "clientConfig")
		}
		set(doc, list, "webhooks")
		resource := strings.ToLower(str(doc, "kind")) + "s"
		set(doc, "capi-"+str(doc, "metadata", "name"), "metadata", "name")
		if err := apply(gvr("admissionregistration.k8s.io", "v1", resource), doc); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := established(ctx, client, name); err != nil {
			return err
		}
	}
	fmt.Printf("fakeinfra: %d CRDs and the webhook configurations are in place\n", len(names))
	return nil
}

func own(r schema.GroupVersionResource, kind string) object {
	open := object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": r.Resource + "." + r.Group, "labels": object{"cluster.x-k8s.io/v1beta2": r.Version}},
		"spec": object{
			"group": r.Group, "scope": "Namespaced",
			"names": object{"kind": kind, "listKind": kind + "List", "plural": r.Resource, "singular": strings.ToLower(kind), "categories": []any{"cluster-api"}},
			"versions": []any{object{
				"name": r.Version, "served": true, "storage": true, "subresources": object{"status": object{}},
				"schema": object{"openAPIV3Schema": object{"type": "object", "properties": object{"spec": open, "status": open}}},
			}},
		},
	}
}

func established(ctx context.Context, client dynamic.Interface, name string) error {
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		crd, err := client.Resource(crds).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, c := range conditions {
			if str(c.(object), "type") == "Established" && str(c.(object), "status") == "True" {
				return nil
			}
		}
	}
	return fmt.Errorf("%s is not established", name)
}

func read(file string) (docs []object, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for d := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		var o object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if o != nil {
			docs = append(docs, o)
		}
	}
}
