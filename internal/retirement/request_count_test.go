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

// The most requests that one retirement of a node with 10 pods may take. Ten of them are the evictions. The target of a cluster is 45,
// where others write to the Nodes and to the NodeGroup's status; here nobody does.
const (
	mostAPIRequests   = 40
	mostCloudRequests = 8
)

// cost counts what a process has asked for: reads of a cache are free, and to follow is a list and a watch.
func cost(requests []string, told int) (api, cloud int, kinds map[string]int) {
	kinds = map[string]int{"event": told}
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
	return api + told, cloud, kinds
}

// TestTheCostOfOneRetirement counts the requests for one node of 10 pods, alone and while the budget makes it wait.
func TestTheCostOfOneRetirement(t *testing.T) {
	for name, waits := range map[string]bool{"at once": false, "after a wait for the budget": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, ctx context.Context) {
				s := ci(t)
				for i := range 10 {
					s.addPod("a", fmt.Sprint("web-", i), nil)
				}
				s.machines["sim://a"].takes = 8 * time.Second
				s.retire(t, "r", v1alpha1.NodeRetirementSpec{NodeName: "a", Reason: v1alpha1.Idle})
				c := s.controller(t)
				recorder := events.NewFakeRecorder(1000)
				c.o.Events, c.events = recorder, announcer{recorder}
				if waits {
					s.silence("b")
					for range 6 {
						s.turn(ctx, c, "r")
					}
					s.bringBack("b")
				}
				rt := s.settled(ctx, c, "r", time.Hour)
				if rt.Status.Phase != v1alpha1.Succeeded {
					t.Fatalf("%s: %s", rt.Status.Phase, rt.Status.Message)
				}
				api, cloud, kinds := cost(s.requests, len(recorder.Events))
				for _, k := range slices.Sorted(maps.Keys(kinds)) {
					t.Logf("%3d %s", kinds[k], k)
				}
				if api > mostAPIRequests || cloud > mostCloudRequests {
					t.Errorf("%d requests of the API server and %d of the cloud, want %d and %d at the most", api, cloud, mostAPIRequests, mostCloudRequests)
				}
			})
		})
	}
}
