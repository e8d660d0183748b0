package manager

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/crds"
)

const (
	fieldOwner     = "slipway-manager"
	crdsWithin     = time.Minute
	establishedGap = 200 * time.Millisecond
)

// installCRDs applies Slipway's definitions, and waits until they are served.
func installCRDs(ctx context.Context, c client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, crdsWithin)
	defer cancel()
	files, err := crds.Files.ReadDir(".")
	if err != nil {
		return err
	}
	for _, file := range files {
		raw, err := crds.Files.ReadFile(file.Name())
		if err != nil {
			return err
		}
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(raw, &definition.Object); err != nil {
			return fmt.Errorf("%s: %w", file.Name(), err)
		}
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(definition), client.ForceOwnership,
			client.FieldOwner(fieldOwner)); err != nil {
			return installing(definition, err)
		}
		if err := awaitEstablished(ctx, c, definition); err != nil {
			return err
		}
	}
	return nil
}

func awaitEstablished(ctx context.Context, c client.Client, definition *unstructured.Unstructured) error {
	for {
		if err := c.Get(ctx, client.ObjectKeyFromObject(definition), definition); err != nil {
			return installing(definition, err)
		}
		conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
		for _, one := range conditions {
			if one, ok := one.(map[string]any); ok && one["type"] == "Established" && one["status"] == "True" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("installing %s: not served within %s", definition.GetName(), crdsWithin)
		case <-time.After(establishedGap):
		}
	}
}

// installing says what failed. A right that is missing is not waited for.
func installing(definition *unstructured.Unstructured, err error) error {
	err = fmt.Errorf("--install-crds: installing %s: %w", definition.GetName(), err)
	if apierrors.IsForbidden(err) {
		return refusal{fmt.Errorf("%w; the ClusterRole slipway-manager-install-crds of deploy/manager/install-crds.yaml has the rights", err)}
	}
	return err
}
