package drain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/testing/check"
)

func TestReportHasPDBAndTimesOfEachWait(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		began := time.Now()
		s.addPods(3, "web-%d", withLabel("app", "web"), withGrace(30*time.Second), withStopTime(5*time.Second))
		s.addPDB("web", 2, 3, map[string]string{"app": "web"})
		r := runDrainTo(t, s, Drained, Options{TimeLimits: deadlineIn(2 * time.Minute)})
		waited := 0
		for _, p := range r.Pods {
			check.Not(t, p.FirstRequestedAt.Before(began) || p.RemovalRequestedAt.Before(p.FirstRequestedAt), "%+v", p)
			check.Not(t, p.TerminatingSince.IsZero() || p.EndedAt.Before(p.TerminatingSince), "%+v", p)
			if p.RemovalRequestedAt.Sub(began) < time.Second {
				continue
			}
			waited++
			check.Not(t, len(p.Delays) != 1 || p.Delays[0].PDB != "shop/web" || p.Delays[0].StartedAt.Before(began) ||
				!p.Delays[0].StartedAt.Before(p.RemovalRequestedAt), "%+v", p)
		}
		check.Is(t, 2, waited)
	})
}

func TestLoggedReportIsWholeInShortLines(t *testing.T) {
	r := Report{Node: node, Outcome: Drained, StartedAt: time.Unix(1, 0).UTC()}
	for i := range 900 {
		r.Volumes.Detached = append(r.Volumes.Detached, fmt.Sprintf("detached-%d", i))
		r.Volumes.Attached = append(r.Volumes.Attached, fmt.Sprintf("attached-%d", i))
	}
	r.Volumes.Problem = strings.Repeat("p", 5000)
	for i := range 300 {
		r.Pods = append(r.Pods, PodReport{
			Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%s%03d", strings.Repeat("p", 250), i), Action: podrules.Evict,
			Decision: Decision{Detail: strings.Repeat("ü", 5000)},
			Delays:   []Delay{{Reason: ObstacleWebhook, Detail: strings.Repeat("<", 5000)}, {Reason: ObstaclePDB, PDB: "a/b"}},
		})
	}
	var log bytes.Buffer
	r.Log(slog.New(slog.NewJSONHandler(&log, nil)))
	var names []string
	lines := 0
	for line := range strings.Lines(log.String()) {
		check.Not(t, len(line) > 16<<10, "a line of %d bytes", len(line))
		var l struct {
			Msg    string
			Report Report
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Msg != LogMessage || !l.Report.StartedAt.Equal(r.StartedAt) {
			t.Fatalf("%v: %.300s", err, line)
		}
		lines++
		check.Is(t, lines == 1, len(l.Report.Volumes.Attached) > 300 && len(l.Report.Volumes.Detached) > 300, "volumes in line", lines)
		for _, p := range l.Report.Pods {
			names = append(names, p.Name)
			check.Is(t, 2, len(p.Delays))
		}
	}
	for i, p := range r.Pods {
		check.Is(t, p.Name, names[i])
	}
	log.Reset()
	Report{Node: node}.Log(slog.New(slog.NewTextHandler(&log, nil)))
	check.Contains(t, log.String(), `report="{\"node\":`)
}
