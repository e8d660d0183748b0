package controller

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestServerAnswerReachesClientOfOtherReplica lets another replica forward the change.
func TestServerAnswerReachesClientOfOtherReplica(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.startReplica("a")
		s.advance(5 * time.Second)
		s.pool.setFailure("desired", serverError(http.StatusUnprocessableEntity))
		w := post(t, s.newFrontServer(s.startReplica("b")), "/pool/size", `{"desiredSize": 5}`)
		if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), `"no"`) {
			t.Errorf("%d %s; want the server's message", w.Code, w.Body)
		}
		if asked := s.pool.changeRequests(); !slices.Equal(asked, []string{"size 5"}) {
			t.Errorf("the server was asked %q, want once", asked)
		}
	})
}

func TestOldFinishedUpdatesAreDeleted(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		front := s.newFrontServer(s.startReplica("a"))
		for range MaxFinishedUpdates + 5 {
			if w := post(t, front, "/pool/size", `{"desiredSize": 5}`); w.Code != http.StatusOK {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		s.advance(5 * time.Second)
		names := map[string]bool{}
		for _, up := range s.listUpdates() {
			names[up.Name] = true
		}
		if len(names) != MaxFinishedUpdates || !names["workers-25"] || names["workers-5"] {
			t.Errorf("%v are kept, want the latest %d", names, MaxFinishedUpdates)
		}
	})
}
