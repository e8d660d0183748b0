package start

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/config"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/observe"
)

func TestFailedPartStopsOthers(t *testing.T) {
	broken := errors.New("address in use")
	ended := false
	err := runAllUntilFailure(t.Context(),
		func(ctx context.Context) error { <-ctx.Done(); ended = true; return ctx.Err() },
		func(context.Context) error { return broken },
	)
	if !errors.Is(err, broken) || !ended {
		t.Errorf("error %v, the other part ended: %t", err, ended)
	}
}

func TestCancellationIsNoFailure(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := runAllUntilFailure(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }); err != nil {
		t.Error(err)
	}
}

// newNodeServer returns a client of a server that answers every request with the status and body.
func newNodeServer(t *testing.T, status int, body string) *kubeapi.Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return kubeapi.NewClient(base, s.Client(), "test")
}

func TestI10CloudAndNameComeFromProviderID(t *testing.T) {
	const azure = `{"metadata":{"name":"n"},"spec":{"providerID":"azure:///subscriptions/s/resourceGroups/g/providers/` +
		`Microsoft.Compute/virtualMachineScaleSets/pool/virtualMachines/7"}}`
	const ec2 = `{"metadata":{"name":"n"},"spec":{"providerID":"aws:///eu-west-1a/i-0123456789abcdef0"}}`
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut:
			_, _ = io.WriteString(w, "token")
		case r.URL.Path == aws.InstanceIDPath:
			_, _ = io.WriteString(w, "i-0fedcba9876543210\n")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(metadata.Close)
	for name, tt := range map[string]struct {
		status int
		body   string
		cloud  string // --cloud
		want   instance
		err    []string
	}{
		"machine of a scale set": {200, azure, "", instance{cloud: "azure", resource: "pool_7"}, nil},
		"EC2 instance":           {200, ec2, "auto", instance{cloud: "aws", resource: "i-0123456789abcdef0"}, nil},
		"no provider ID":         {200, `{"metadata":{"name":"n"},"spec":{}}`, "aws", instance{cloud: "aws", resource: "i-0fedcba9876543210"}, nil},
		"other cloud than set": {
			200, ec2, "azure", instance{}, []string{"node n", "spec.providerID", "aws:///eu-west-1a/i-0123456789abcdef0", "--resource-name"},
		},
		"unknown cloud": {
			200, `{"metadata":{"name":"n"},"spec":{"providerID":"openstack:///0"}}`, "auto", instance{},
			[]string{"node n", "spec.providerID", "openstack:///0", "azure://", "aws://", "--resource-name"},
		},
		"no cloud": {200, ec2, "none", instance{cloud: "none", resource: "n"}, nil},
		"no permission": {
			403, `{"kind":"Status","reason":"Forbidden","message":"nodes is forbidden","code":403}`, "", instance{}, []string{"forbidden"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := awaitInstance(t.Context(), config.Agent{NodeName: "n", Cloud: tt.cloud, Endpoint: metadata.URL}, slog.New(slog.DiscardHandler),
				newNodeServer(t, tt.status, tt.body), observe.NewHeartbeat("test", time.Minute))
			got.node = nil
			if got != tt.want || (err == nil) != (tt.err == nil) {
				t.Fatalf("%+v, %v; want %+v", got, err, tt.want)
			}
			for _, want := range tt.err {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestI10AgentRefusesBadOptions(t *testing.T) {
	err := RunAgent(t.Context(), config.Agent{}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "--node-name") {
		t.Errorf("error %v", err)
	}
}

func TestI10BadEndpointIsRefusedAtTheStart(t *testing.T) {
	for cloud, endpoint := range map[string]string{"azure": "http://h/x", "aws": "http://h/latest/meta-data", "auto": "http://h"} {
		c := config.NewDefaultAgent()
		c.NodeName, c.Cloud, c.Endpoint, c.ResourceName = "n", cloud, endpoint, "i-0"
		c.Kubeconfig = writeKubeconfig(t)
		if err := RunAgent(t.Context(), c, io.Discard); err == nil || !strings.Contains(err.Error(), "--endpoint") || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("%s: error %v", cloud, err)
		}
	}
}

// writeKubeconfig writes a kubeconfig of an API server that does not exist.
func writeKubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
		`"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"t"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
