package manager

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// TestServedCRDsSufficeWithoutInstallPermission lacks the permission to read definitions.
func TestServedCRDsSufficeWithoutInstallPermission(t *testing.T) {
	definitions := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	forbidden := apierrors.NewForbidden(definitions, "nodegroups.slipway.dev", errors.New("cannot get"))
	for name, tt := range map[string]struct {
		serves []string
		err    error
		ends   bool
	}{
		"served":            {serves: []string{"NodeGroup", "NodeRetirement"}, err: forbidden},
		"one is not served": {serves: []string{"NodeGroup"}, err: forbidden, ends: true},
		"none is served":    {err: forbidden, ends: true},
		"another error":     {serves: []string{"NodeGroup", "NodeRetirement"}, err: errors.New("no answer"), ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			mapper := meta.NewDefaultRESTMapper(nil)
			for _, kind := range tt.serves {
				mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
			}
			c := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithRESTMapper(mapper).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return tt.err
				},
			}).Build()
			var said bytes.Buffer
			err := installCRDsIfAllowed(t.Context(), c, slog.New(slog.NewTextHandler(&said, nil)))
			if ends := err != nil; ends != tt.ends {
				t.Fatalf("%v", err)
			}
			if tt.ends && strings.Contains(err.Error(), "--install-crds:") {
				t.Errorf("it names a flag that nobody has given: %v", err)
			}
			if warned := strings.Contains(said.String(), "level=WARN") && strings.Contains(said.String(), "deploy/manager/install-crds.yaml"); warned == tt.ends {
				t.Errorf("said %q", said.String())
			}
		})
	}
}
