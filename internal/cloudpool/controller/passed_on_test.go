package controller

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestWhatAServerSaysToAChangeIsToldWhereverItWasAskedFor has another replica pass it on.
func TestWhatAServerSaysToAChangeIsToldWhereverItWasAskedFor(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		s.replica("a")
		s.passes(5 * time.Second)
		s.pool.fail("desired", own(http.StatusUnprocessableEntity))
		w := posted(t, s.served(s.replica("b")), "/pool/size", `{"desiredSize": 5}`)
		if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), `"no"`) {
			t.Errorf("%d %s; want the server's own words", w.Code, w.Body)
		}
		if asked := s.pool.requests(); !slices.Equal(asked, []string{"size 5"}) {
			t.Errorf("the server was asked %q, want once", asked)
		}
	})
}

func TestFinishedUpdatesAreKeptInBounds(t *testing.T) {
	simulate(t, 2, func(t *testing.T, s *sim) {
		front := s.served(s.replica("a"))
		for range KeepPast + 5 {
			if w := posted(t, front, "/pool/size", `{"desiredSize": 5}`); w.Code != http.StatusOK {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		s.passes(5 * time.Second)
		names := map[string]bool{}
		for _, up := range s.updates() {
			names[up.Name] = true
		}
		if len(names) != KeepPast || !names["workers-25"] || names["workers-5"] {
			t.Errorf("%v are kept, want the latest %d", names, KeepPast)
		}
	})
}
