package bareclient

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// slowServer answers each request after one second. It records when each request began.
type slowServer struct {
	mu    sync.Mutex
	start time.Time
	began map[string]time.Duration // by node or pod
}

func (s *slowServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.began[path.Base(strings.TrimSuffix(r.URL.Path, "/eviction"))] = time.Since(s.start)
	s.mu.Unlock()
	_ = r.Body.Close()
	time.Sleep(time.Second)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"metadata":{"name":"any"}}`)), Request: r}, nil
}

func TestPodsOfOneQueueAreEvictedOneAfterAnotherOverAllNodes(t *testing.T) {
	testbed.UseOneThread(t)
	byName := func(p kubeapi.Pod) string { name, _, _ := strings.Cut(p.Name, "-"); return name }
	for name, tc := range map[string]struct {
		run  func(context.Context, []*Client) error
		want map[string]time.Duration
	}{
		"queues over all nodes": {
			func(ctx context.Context, clients []*Client) error { return CordonAndEvictAll(ctx, clients, byName) },
			map[string]time.Duration{"shared-0": time.Second, "shared-1": 2 * time.Second, "own0-0": time.Second, "own1-1": time.Second},
		},
		"at once": {
			func(ctx context.Context, clients []*Client) error {
				return CordonAndEvictAll(ctx, clients, func(p kubeapi.Pod) string { return p.UID })
			},
			map[string]time.Duration{"shared-0": time.Second, "shared-1": time.Second, "own0-0": time.Second, "own1-1": time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &slowServer{start: time.Now(), began: map[string]time.Duration{}}
				api := kubeapi.NewClient(&url.URL{Scheme: "http", Host: "server"}, &http.Client{Transport: server}, userAgent)
				newClient := func(node string, pods ...string) *Client {
					c := &Client{api: api, node: node}
					for _, p := range pods {
						c.Pods = append(c.Pods, kubeapi.Pod{ObjectMeta: kubeapi.ObjectMeta{Namespace: "work", Name: p, UID: p}})
					}
					return c
				}
				if err := tc.run(t.Context(), []*Client{newClient("node-0", "shared-0", "own0-0"), newClient("node-1", "shared-1", "own1-1")}); err != nil {
					t.Fatal(err)
				}
				tc.want["node-0"], tc.want["node-1"] = 0, 0
				if diff := cmp.Diff(tc.want, server.began); diff != "" {
					t.Errorf("start of each request, -want +got:\n%s", diff)
				}
			})
		})
	}
}
