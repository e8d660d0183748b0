package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestErrorsHaveKubectlsTexts(t *testing.T) {
	noNode := &kubeapi.StatusError{Code: 404, Reason: "NotFound", Message: `nodes "n1" not found`}
	group := apierrors.NewNotFound(schema.GroupResource{Group: "slipway.dev", Resource: "nodegroups"}, "ci")
	offline := fmt.Errorf("GET /api/v1/nodes: %w", &connectError{"10.0.0.1:443", errors.New("dial tcp: lookup x: no such host")})
	refused := field.ErrorList{
		field.Invalid(field.NewPath("spec", "reason"), "a b", "should match a word"), field.Required(field.NewPath("spec", "nodeUID"), ""),
		field.Required(field.NewPath("spec", "nodeUID"), ""),
	}
	retirements := schema.GroupKind{Group: "slipway.dev", Kind: "NodeRetirement"}
	tests := map[string]struct {
		err  error
		want string
	}{
		"an invalid object": {
			apierrors.NewInvalid(retirements, "n1-x2m4z", refused[:1]), `The NodeRetirement "n1-x2m4z" is invalid: spec.reason: Invalid value: "a b": should match a word`,
		},
		"several invalid fields": {
			apierrors.NewInvalid(retirements, "n1-x2m4z", refused),
			"The NodeRetirement \"n1-x2m4z\" is invalid: \n* spec.reason: Invalid value: \"a b\": should match a word\n* spec.nodeUID: Required value",
		},
		"an invalid object without causes": {apierrors.NewInvalid(retirements, "n1-x2m4z", nil), `The NodeRetirement "n1-x2m4z" is invalid`},
		"invalid for a webhook": {
			&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Message: `admission webhook "x" denied the request`}},
			`The request is invalid: admission webhook "x" denied the request`,
		},
		"an invalid node": {
			&kubeapi.StatusError{
				Code: 422, Reason: "Invalid", Message: `Node "n1" is invalid: spec.taints: Required value`, Kind: "Node", Name: "n1",
				Causes: []kubeapi.Cause{{Field: "spec.taints", Message: "Required value"}},
			},
			`The Node "n1" is invalid: spec.taints: Required value`,
		},
		"a response without a reason": {
			&apierrors.StatusError{ErrStatus: metav1.Status{Message: "This pod has more than one PodDisruptionBudget"}},
			"Error from server: This pod has more than one PodDisruptionBudget",
		},
		"a response":                      {noNode, `Error from server (NotFound): nodes "n1" not found`},
		"a response of client-go":         {group, `Error from server (NotFound): nodegroups.slipway.dev "ci" not found`},
		"with an exit code":               {&exitError{2, noNode}, `Error from server (NotFound): nodes "n1" not found`},
		"with a hint":                     {&hintError{noNode, "create it"}, "Error from server (NotFound): nodes \"n1\" not found\ncreate it"},
		"in a sentence":                   {fmt.Errorf("node n1: cannot cordon it: %w", noNode), `error: node n1: cannot cordon it: nodes "n1" not found (NotFound)`},
		"two responses":                   {errors.Join(noNode, group), "Error from server (NotFound): nodes \"n1\" not found\nError from server (NotFound): nodegroups.slipway.dev \"ci\" not found"},
		"without credentials":             {&kubeapi.StatusError{Code: 401, Reason: "Unauthorized", Message: "Unauthorized"}, "error: You must be logged in to the server (Unauthorized)"},
		"a proxy's response":              {&kubeapi.StatusError{Code: 502, Message: "<html>"}, "Error from server: <html> (HTTP status 502)"},
		"another error":                   {errors.New("no node"), "error: no node"},
		"no connection":                   {offline, "Unable to connect to the server: dial tcp: lookup x: no such host"},
		"no connection for several nodes": {&exitError{1, errors.Join(offline, offline)}, "Unable to connect to the server: dial tcp: lookup x: no such host"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { check.Is(t, tt.want, formatError(tt.err)) })
	}
}

func TestFailuresToConnectHaveKubectlsTexts(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	denying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`))
	}))
	defer denying.Close()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for server, want := range map[string]string{
		closed.URL:  "The connection to the server " + strings.TrimPrefix(closed.URL, "http://") + " was refused - did you specify the right host or port?",
		denying.URL: "error: You must be logged in to the server (",
		secure.URL:  "Unable to connect to the server: tls: failed to verify certificate: x509: certificate signed by unknown authority",
	} {
		for _, line := range []string{
			"drain n1", "drain -l a=b", "retire n1", "status", "plan", "why n1", "doctor", "snapshot save -", "simulate-eviction n1", "version",
			"report node/n1", "report noderetirement/r1", "report --since 1h", "top --plain",
		} {
			_, err := runOffline(t, strings.Fields(line+" --server "+server)...)
			if err == nil {
				t.Errorf("%s: no error", line)
			} else if got := formatError(err); got != want && !(server == denying.URL && strings.HasPrefix(got, want)) {
				t.Errorf("%s:\n got %s\nwant %s", line, got, want)
			}
		}
	}
}

func TestRequestTimeoutLimitsRequestsOfDrain(t *testing.T) {
	k := newKubeFlags("drain")
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	k.addFlags(fs)
	asked := make(chan bool)
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(asked)
	}))
	defer hanging.Close()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	must.NoError(t, fs.Parse([]string{"--request-timeout=100ms", "--server=" + hanging.URL}))
	api, err := k.newAPIClient()
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), kubeapi.DefaultTimeout/2)
	defer cancel()
	_, err = api.GetNode(ctx, "n1")
	<-asked
	check.Not(t, !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil, "%v, and the context of the test: %v", err, ctx.Err())
}

func TestTimeoutHasKubectlsText(t *testing.T) {
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hanging.Close()
	for _, line := range []string{"status", "retire n1", "version", "why n1"} { // drain has texts of its own
		_, err := runOffline(t, strings.Fields(line+" --request-timeout 100ms --server "+hanging.URL)...)
		if err == nil || !strings.HasPrefix(formatError(err), "Unable to connect to the server: ") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
