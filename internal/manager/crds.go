package manager

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/crds"
	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

const (
	fieldOwner        = "slipway-manager"
	crdInstallTimeout = time.Minute
	crdPollInterval   = 200 * time.Millisecond
)

// installCRDs installs or upgrades Slipway's definitions, and waits until they are served. It keeps newer ones:
// otherwise the API server would drop their additional fields from every written object.
func installCRDs(ctx context.Context, c client.Client, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, crdInstallTimeout)
	defer cancel()
	definitions, err := crds.AllDefinitions()
	if err != nil {
		return err
	}
	for _, definition := range definitions {
		if err := installOrUpgradeCRD(ctx, c, log, definition); err != nil {
			return wrapInstallError(definition, err)
		}
		if err := awaitCRDEstablished(ctx, c, definition); err != nil {
			return err
		}
	}
	return nil
}

// installCRDsIfAllowed installs the definitions by default. If the permission is missing, it is enough that the types
// are served.
func installCRDsIfAllowed(ctx context.Context, c client.Client, log *slog.Logger) error {
	err := installCRDs(ctx, c, log)
	if !apierrors.IsForbidden(err) {
		return err
	}
	for _, kind := range []string{"NodeGroup", "NodeRetirement"} {
		gvk := v1alpha1.GroupVersion.WithKind(kind)
		_, restErr := c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(restErr) {
			return err
		}
		if restErr != nil {
			return fmt.Errorf("checking that %s is served: %w", gvk, restErr)
		}
	}
	log.Warn("Slipway's CustomResourceDefinitions were not upgraded: apply api/crds after an upgrade, or grant the permissions in "+
		"deploy/manager/install-crds.yaml", "err", err)
	return nil
}

// installOrUpgradeCRD writes a definition unless the cluster's is newer. Another program may do the same concurrently. So
// each write is valid only for the version read, and a conflict is retried.
func installOrUpgradeCRD(ctx context.Context, c client.Client, log *slog.Logger, definition *unstructured.Unstructured) error {
	for {
		current := &unstructured.Unstructured{}
		current.SetGroupVersionKind(definition.GroupVersionKind())
		err := c.Get(ctx, client.ObjectKeyFromObject(definition), current)
		switch {
		case apierrors.IsNotFound(err):
			err = createDefinition(ctx, c, definition)
		case err != nil:
			return err
		case generationOf(current) > generationOf(definition):
			log.Info("the cluster's definition is newer than this program's and is kept", "definition", definition.GetName(),
				"generation", generationOf(current), "own", generationOf(definition))
			return nil
		default:
			err = applyToVersion(ctx, c, current, definition)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
		if !elapsed.Sleep(ctx, crdPollInterval) {
			return err
		}
	}
}

// createDefinition creates a missing definition. Apply would do that too, but would overwrite one created meanwhile. A
// later Apply can still remove fields from the schema: spec.versions is one value with one owner, who wrote it last.
func createDefinition(ctx context.Context, c client.Client, definition *unstructured.Unstructured) error {
	return c.Create(ctx, definition.DeepCopy(), client.FieldOwner(fieldOwner))
}

// applyToVersion applies a definition over the version that was read. For another resourceVersion the API server
// returns a conflict. ForceOwnership is about fields and does not change that.
func applyToVersion(ctx context.Context, c client.Client, current, definition *unstructured.Unstructured) error {
	applied := definition.DeepCopy()
	applied.SetResourceVersion(current.GetResourceVersion())
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.ForceOwnership, client.FieldOwner(fieldOwner))
}

func generationOf(definition *unstructured.Unstructured) uint64 {
	return crds.Generation(definition.GetAnnotations())
}

func awaitCRDEstablished(ctx context.Context, c client.Client, definition *unstructured.Unstructured) error {
	for {
		if err := c.Get(ctx, client.ObjectKeyFromObject(definition), definition); err != nil {
			return wrapInstallError(definition, err)
		}
		if crds.IsEstablished(definition) {
			return nil
		}
		if !elapsed.Sleep(ctx, crdPollInterval) {
			return fmt.Errorf("installing %s: not served within %s", definition.GetName(), crdInstallTimeout)
		}
	}
}

// wrapInstallError adds what failed. A missing permission is permanent.
func wrapInstallError(definition *unstructured.Unstructured, err error) error {
	err = fmt.Errorf("installing %s: %w", definition.GetName(), err)
	if apierrors.IsForbidden(err) {
		return permanentError{fmt.Errorf("%w; the ClusterRole slipway-manager-install-crds in deploy/manager/install-crds.yaml has the permissions", err)}
	}
	return err
}
