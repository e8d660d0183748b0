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

// installCRDs installs or upgrades Slipway's definitions, and waits until the API server serves them. It does not
// replace a newer definition: the API server would then remove the newer fields from every object that is written.
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

// installCRDsIfAllowed installs the definitions if the manager has the permission. Without the permission it succeeds
// if the API server already serves the types, and logs a warning.
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

// installOrUpgradeCRD writes a definition, unless the cluster's definition is newer. Another program may do the same at
// the same time. So each write requires the version that was read, and a conflict is retried.
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

// createDefinition creates a missing definition. It does not use Apply, because Apply would overwrite a definition that
// another program has created in the meantime. A later Apply of another program can still remove fields: spec.versions
// is a single value, which belongs to its last writer.
func createDefinition(ctx context.Context, c client.Client, definition *unstructured.Unstructured) error {
	return c.Create(ctx, definition.DeepCopy(), client.FieldOwner(fieldOwner))
}

// applyToVersion applies a definition over the version that was read. If the cluster has another resourceVersion, the
// API server returns a conflict. The option ForceOwnership resolves only conflicts about fields.
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

// wrapInstallError returns an error that names the definition. If a permission is missing, the error is a
// permanentError.
func wrapInstallError(definition *unstructured.Unstructured, err error) error {
	err = fmt.Errorf("installing %s: %w", definition.GetName(), err)
	if apierrors.IsForbidden(err) {
		return permanentError{fmt.Errorf("%w; the ClusterRole slipway-manager-install-crds in deploy/manager/install-crds.yaml has the permissions", err)}
	}
	return err
}
