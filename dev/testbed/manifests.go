package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/dev/workload"
)

// AgentNamespace and AgentAccount are those of the shipped manifests.
const (
	AgentNamespace = "slipway"
	AgentAccount   = "slipway-agent"
)

// install applies what the agents need of the shipped manifests. Their DaemonSet is left out: nothing runs containers
// here, and the testbed starts the processes itself.
func (t *Testbed) install(ctx context.Context) error {
	root, err := Root()
	if err != nil {
		return err
	}
	for _, file := range []string{"namespace.yaml", "rbac.yaml", "admission.yaml", "flowcontrol.yaml"} {
		if err := t.Apply(ctx, filepath.Join(root, "deploy", "agent", file)); err != nil {
			return err
		}
	}
	return nil
}

// AgentPod makes what a node's kubelet would run the agent in, without running it: a pod of the agent's account, whose
// token says which node it is of, also after the Node object was made anew. It returns the pod's name.
func (t *Testbed) AgentPod(ctx context.Context, node string) (string, error) {
	pod := workload.App{Namespace: AgentNamespace, Name: AgentAccount + "-" + node}.Pod()
	pod.Spec.ServiceAccountName, pod.Spec.NodeName = AgentAccount, node
	if err := workload.CreateSettled(ctx, t.Client(), pod); err != nil {
		return "", fmt.Errorf("pod of the agent on %s: %w", node, err)
	}
	return pod.Name, nil
}

// Apply applies every object of a YAML file, server-side, as kubectl apply would.
func (t *Testbed) Apply(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // It was only read.
	client, err := dynamic.NewForConfig(t.RESTConfig())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(t.Client().Discovery()))
	docs := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(f), 4096)
	for {
		var o unstructured.Unstructured
		if err := docs.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(o.Object) == 0 {
			continue
		}
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("%s: %s %s: %w", path, kind.Kind, o.GetName(), err)
		}
		resource := client.Resource(mapping.Resource).Namespace(o.GetNamespace())
		if _, err := resource.Apply(ctx, o.GetName(), &o, metav1.ApplyOptions{FieldManager: "slipway-dev"}); err != nil {
			return fmt.Errorf("%s: %s %s: %w", path, kind.Kind, o.GetName(), err)
		}
	}
}
