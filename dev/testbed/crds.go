package testbed

import (
	"context"
	"fmt"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// ApplyCRDs applies the CRDs in a directory and waits until the API server serves the resources of the group and
// version.
func (t *Testbed) ApplyCRDs(ctx context.Context, dir string, gv schema.GroupVersion, resources ...string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := t.ApplyFile(ctx, file); err != nil {
			return err
		}
	}
	client, err := dynamic.NewForConfig(t.RESTConfig())
	if err != nil {
		return err
	}
	return PollUntil(ctx, fmt.Sprintf("%s is served", gv), func() bool {
		if _, err := t.Client().Discovery().ServerResourcesForGroupVersion(gv.String()); err != nil {
			return false
		}
		for _, r := range resources {
			if _, err := client.Resource(gv.WithResource(r)).List(ctx, metav1.ListOptions{}); err != nil {
				return false
			}
		}
		return true
	})
}
