package retirement

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// The maximum number of requests for the retirement of a node with 10 pods. Ten of them are the evictions. The target
// for a real cluster is 45, where other clients write to the Nodes and to the NodeGroup's status.
const (
	mostAPIRequests   = 40
	mostCloudRequests = 8
)

// countRequests counts the requests of a process. Cache reads cost nothing; a follow counts as a list and a watch.
func countRequests(requests []string, events int) (api, cloud int, kinds map[string]int) {
	kinds = map[string]int{"event": events}
	for _, r := range requests {
		switch {
		case strings.HasPrefix(r, "cached "):
			continue
		case strings.HasPrefix(r, "cloud "):
			cloud++
		case strings.HasPrefix(r, "follow "):
			kinds[r]++ // a list, and the watch below
			api++
			fallthrough
		default:
			api++
		}
		kinds[r]++
	}
	return api + events, cloud, kinds
}

// TestRetirementStaysWithinRequestBudget counts the requests for one node of 10 pods, alone and while the disruption
// budget makes it wait.
func TestRetirementStaysWithinRequestBudget(t *testing.T) {
	for name, waits := range map[string]bool{"at once": false, "after a wait for the budget": true} {
		t.Run(name, func(t *testing.T) {
			runInVirtualTime(t, func(t *testing.T, ctx context.Context) {
				s := newGroupOfTwo(t)
				for i := range 10 {
					s.addPod("a", fmt.Sprint("web-", i), nil)
				}
				s.instances["sim://a"].deletionTakes = 8 * time.Second
				s.createRetirement(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
				c := s.newController(t)
				recorder := events.NewFakeRecorder(1000)
				c.options.Events, c.events = recorder, eventRecorder{recorder}
				if waits {
					s.makeNodeUnready("b")
					for range 6 {
						s.reconcileOnce(ctx, c, "r")
					}
					s.reviveNode("b")
				}
				rt := s.reconcileUntilDone(ctx, c, "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				api, cloud, kinds := countRequests(s.requests, len(recorder.Events))
				for _, k := range slices.Sorted(maps.Keys(kinds)) {
					t.Logf("%3d %s", kinds[k], k)
				}
				if api > mostAPIRequests || cloud > mostCloudRequests {
					t.Errorf("%d requests to the API server and %d to the cloud, want at most %d and %d", api, cloud, mostAPIRequests, mostCloudRequests)
				}
			})
		})
	}
}
