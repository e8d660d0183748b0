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
	fieldOwner   = "slipway-manager"
	crdsWithin   = time.Minute
	betweenTries = 200 * time.Millisecond
)

// installCRDs brings Slipway's definitions up to this program's, and waits until they are served. Those that are newer are
// left as they are: the API server would drop what they have more from each object that is written.
func installCRDs(ctx context.Context, c client.Client, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, crdsWithin)
	defer cancel()
	definitions, err := crds.All()
	if err != nil {
		return err
	}
	for _, definition := range definitions {
		if err := bringUp(ctx, c, log, definition); err != nil {
			return installing(definition, err)
		}
		if err := awaitEstablished(ctx, c, definition); err != nil {
			return err
		}
	}
	return nil
}

// installUnasked is installCRDs for a command that does so by default: nobody may have given it the rights, and types that are
// served are enough to begin with.
func installUnasked(ctx context.Context, c client.Client, log *slog.Logger) error {
	err := installCRDs(ctx, c, log)
	if !apierrors.IsForbidden(err) {
		return err
	}
	for _, kind := range []string{"NodeGroup", "NodeRetirement"} {
		of := v1alpha1.GroupVersion.WithKind(kind)
		_, unserved := c.RESTMapper().RESTMapping(of.GroupKind(), of.Version)
		if meta.IsNoMatchError(unserved) {
			return err
		}
		if unserved != nil {
			return fmt.Errorf("whether %s is served: %w", of, unserved)
		}
	}
	log.Warn("Slipway's types are not brought up to this program's: apply api/crds when it is upgraded, or give it the rights of "+
		"deploy/manager/install-crds.yaml", "err", err)
	return nil
}

// bringUp writes a definition unless the cluster's is newer. Another program may be at it at the same moment, so that what is
// written holds only for what was read: where somebody else came between, it is read and judged again.
func bringUp(ctx context.Context, c client.Client, log *slog.Logger, definition *unstructured.Unstructured) error {
	for {
		there := &unstructured.Unstructured{}
		there.SetGroupVersionKind(definition.GroupVersionKind())
		err := c.Get(ctx, client.ObjectKeyFromObject(definition), there)
		switch {
		case apierrors.IsNotFound(err):
			err = create(ctx, c, definition)
		case err != nil:
			return err
		case generationOf(there) > generationOf(definition):
			log.Info("the cluster's definition is newer than this program's, and is left as it is", "definition", definition.GetName(),
				"generation", generationOf(there), "own", generationOf(definition))
			return nil
		default:
			err = applyOver(ctx, c, there, definition)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
		if !elapsed.Sleep(ctx, betweenTries) {
			return err
		}
	}
}

// create makes a definition that is not there. Applying would do that too, but also overwrite what has come to be there
// since. That the first one is so owned by an update does not keep later ones from taking fields out of the schema:
// spec.versions is one value to the API server, which has the owner who wrote it last.
func create(ctx context.Context, c client.Client, definition *unstructured.Unstructured) error {
	return c.Create(ctx, definition.DeepCopy(), client.FieldOwner(fieldOwner))
}

// applyOver applies a definition over the one that was read, and over no other: the API server refuses another resourceVersion
// as a conflict, which ForceOwnership, being about fields, does not overrule.
func applyOver(ctx context.Context, c client.Client, there, definition *unstructured.Unstructured) error {
	applied := definition.DeepCopy()
	applied.SetResourceVersion(there.GetResourceVersion())
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.ForceOwnership, client.FieldOwner(fieldOwner))
}

func generationOf(definition *unstructured.Unstructured) uint64 {
	return crds.Generation(definition.GetAnnotations())
}

func awaitEstablished(ctx context.Context, c client.Client, definition *unstructured.Unstructured) error {
	for {
		if err := c.Get(ctx, client.ObjectKeyFromObject(definition), definition); err != nil {
			return installing(definition, err)
		}
		if crds.IsEstablished(definition) {
			return nil
		}
		if !elapsed.Sleep(ctx, betweenTries) {
			return fmt.Errorf("installing %s: not served within %s", definition.GetName(), crdsWithin)
		}
	}
}

// installing says what failed. A right that is missing is not waited for.
func installing(definition *unstructured.Unstructured, err error) error {
	err = fmt.Errorf("installing %s: %w", definition.GetName(), err)
	if apierrors.IsForbidden(err) {
		return refusal{fmt.Errorf("%w; the ClusterRole slipway-manager-install-crds of deploy/manager/install-crds.yaml has the rights", err)}
	}
	return err
}
