package aws_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	emulator "github.com/slipway-dev/slipway/dev/aws"
	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/aws"
	"github.com/slipway-dev/slipway/internal/notice/poll"
)

const instanceID = "i-0123456789abcdef0"

// pollInterval is the interval of the Spot notice in these tests.
const pollInterval = 20 * time.Millisecond

// watcher runs a source and keeps its last snapshot.
type watcher struct {
	t      *testing.T
	source *aws.Source
	log    *bytes.Buffer

	mu       sync.Mutex
	snapshot notice.Snapshot
	failures map[poll.Class]int
	sources  map[string]bool // that have failed
}

func (w *watcher) FetchSucceeded(string, time.Duration) {}

func (w *watcher) FetchFailed(source string, _ error, class poll.Class) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures[class]++
	w.sources[source] = true
}

func startInstance(t *testing.T) *emulator.Instance {
	t.Helper()
	i := emulator.StartInstance(instanceID)
	t.Cleanup(i.Close)
	return i
}

func newClient(t *testing.T, i *emulator.Instance, timeout time.Duration) *aws.Client {
	t.Helper()
	c, err := aws.NewClient(aws.ClientOptions{Endpoint: i.URL(), Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func watch(t *testing.T, i *emulator.Instance, change func(*aws.SourceOptions)) *watcher {
	t.Helper()
	w := &watcher{t: t, failures: map[poll.Class]int{}, sources: map[string]bool{}, log: &bytes.Buffer{}}
	o := aws.SourceOptions{
		Client: newClient(t, i, time.Second), Instance: instanceID, Interval: pollInterval, Observer: w,
		Log: slog.New(slog.NewTextHandler(&lockedWriter{to: w.log}, nil)), Leads: poll.Leads{Retirement: 24 * time.Hour, Maintenance: 15 * time.Minute},
	}
	if change != nil {
		change(&o)
	}
	var err error
	if w.source, err = aws.NewSource(o); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.source.Run(ctx, func(s notice.Snapshot) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.snapshot = s
		})
	}()
	t.Cleanup(func() { stop(); <-done })
	return w
}

// await waits until the last snapshot, with the failures so far, is as wanted.
func (w *watcher) await(what string, is func(notice.Snapshot, map[poll.Class]int) bool) notice.Snapshot {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(pollInterval / 4) {
		w.mu.Lock()
		s, ok := w.snapshot, is(w.snapshot, w.failures)
		w.mu.Unlock()
		if ok {
			return s
		}
		if time.Now().After(end) {
			w.t.Fatalf("%s: still %+v, failures %v\n%s", what, s, w.failures, w.log)
		}
	}
}

func (w *watcher) awaitTypes(want ...notice.Type) notice.Snapshot {
	w.t.Helper()
	return w.await(fmt.Sprint("notices of types ", want), func(s notice.Snapshot, _ map[poll.Class]int) bool {
		var got []notice.Type
		for _, n := range s.Notices {
			got = append(got, n.Type)
		}
		return !s.Incomplete && fmt.Sprint(got) == fmt.Sprint(want)
	})
}

func (w *watcher) awaitFailure(class poll.Class) {
	w.t.Helper()
	w.await("a failure "+string(class), func(_ notice.Snapshot, failures map[poll.Class]int) bool { return failures[class] > 1 })
}

// lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

func TestAllPathsAreMergedAndEnd(t *testing.T) {
	t.Parallel()
	i := startInstance(t)
	w := watch(t, i, nil)
	w.awaitTypes()
	now := time.Now()
	i.Set(emulator.ASGPath, "Terminated")
	i.Recommend(now)
	i.SetSpotAction("stop", now.Add(2*time.Minute))
	i.SetEvents(emulator.Event{NotBefore: emulator.EventTime(now.Add(10 * time.Minute)), Code: "system-reboot", EventID: "instance-event-1", State: "active"})
	s := w.awaitTypes(notice.Terminate, notice.Reboot, notice.Rebalance, notice.Preempt) // by ID: asg, instance-event, rebalance, spot
	for _, n := range s.Notices {
		if n.Source != aws.SourceName || len(n.Resources) != 1 || n.Resources[0] != instanceID || !n.NotApprovable || n.HasGeneratedID {
			t.Errorf("%+v", n)
		}
	}
	if w.source.LastRead().IsZero() {
		t.Error("never read")
	}
	i.Set(emulator.ASGPath, "InService")
	i.Set(emulator.SpotPath, "")
	i.SetEvents()
	w.awaitTypes(notice.Rebalance)
	if i.WasForwarded() {
		t.Error("a request had X-Forwarded-For")
	}
}

func TestTokenIsRenewedBeforeExpiryAndAfter401(t *testing.T) {
	t.Parallel()
	i := startInstance(t)
	i.SetTokenTTL(time.Second)
	w := watch(t, i, nil)
	w.awaitTypes()
	end := time.Now().Add(2500 * time.Millisecond)
	w.await("2.5 s of polls", func(notice.Snapshot, map[poll.Class]int) bool { return time.Now().After(end) })
	if n := i.Requests(http.MethodPut, emulator.TokenPath); n < 3 || n > 6 {
		t.Errorf("%d tokens in 2.5 s for lifetimes of 1 s, want 3 to 6", n)
	}
	i.SetTokenTTL(0)
	i.ForgetTokens()
	i.SetSpotAction("terminate", time.Now().Add(2*time.Minute))
	w.awaitTypes(notice.Preempt)
	if len(w.failures) != 0 {
		t.Errorf("failures %v, want none: a lost token is renewed within the poll", w.failures)
	}
}

func TestI7FaultyAnswersKeepTheNotice(t *testing.T) {
	t.Parallel()
	status := func(code int, header ...string) emulator.Fault {
		return func(w http.ResponseWriter, _ *http.Request) {
			for k := 0; k+1 < len(header); k += 2 {
				w.Header().Set(header[k], header[k+1])
			}
			w.WriteHeader(code)
		}
	}
	text := func(body string) emulator.Fault {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
	}
	for name, tt := range map[string]struct {
		fault emulator.Fault
		class poll.Class
	}{
		"500":          {status(500), poll.HTTPStatus},
		"503":          {status(503, "Retry-After", "1"), poll.HTTPStatus},
		"429":          {status(429), poll.HTTPStatus},
		"401 for ever": {status(401), poll.HTTPStatus},
		"redirect":     {status(302, "Location", "/latest/meta-data/instance-id"), poll.HTTPStatus},
		"204":          {status(204), poll.HTTPStatus},
		"web page":     {text("<html>sign in</html>"), poll.NotJSON},
		"half":         {text(`{"action":"termi`), poll.NotJSON},
		"list":         {text(`[]`), poll.WrongShape},
		"huge":         {text(strings.Repeat(`{"action":"stop"}`, 1<<16)), poll.TooLarge},
		"slow": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Second):
			}
		}, poll.Timeout},
		"cut short": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"action"`)
		}, poll.CutShort},
		"hang up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, poll.Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := startInstance(t)
			w := watch(t, i, func(o *aws.SourceOptions) { o.Client = newClient(t, i, 300*time.Millisecond) })
			i.SetSpotAction("terminate", time.Now().Add(2*time.Minute))
			id := w.awaitTypes(notice.Preempt).Notices[0].ID
			i.SetFault(emulator.SpotPath, tt.fault)
			w.awaitFailure(tt.class)
			i.Recommend(time.Now()) // other paths are still read
			w.awaitTypes(notice.Rebalance, notice.Preempt)
			i.Set(emulator.SpotPath, "")
			i.SetFault(emulator.SpotPath, nil)
			if s := w.awaitTypes(notice.Rebalance); !s.HasEnded(id) {
				t.Error("the notice has not ended")
			}
		})
	}
}

func TestI7UnreadPathEndsNoNotice(t *testing.T) {
	t.Parallel()
	i := startInstance(t)
	i.SetFault(emulator.SpotPath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	w := watch(t, i, nil)
	w.awaitFailure(poll.HTTPStatus)
	s := w.await("a snapshot", func(s notice.Snapshot, _ map[poll.Class]int) bool { return !s.At.IsZero() })
	if s.HasEnded("spot-0") || !w.source.LastRead().IsZero() {
		t.Errorf("a notice of an unread path counts as ended: %+v", s)
	}
	w.mu.Lock()
	failed := slices.Collect(maps.Keys(w.sources))
	w.mu.Unlock()
	if !slices.Equal(failed, []string{"aws-spot"}) {
		t.Errorf("failed sources %v, want aws-spot alone", failed)
	}
}

func TestFailedTokenNamesItsCause(t *testing.T) {
	t.Parallel()
	hang := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(5 * time.Second):
		}
	}
	for name, tt := range map[string]struct {
		token, others emulator.Fault
		says          string
		class         poll.Class
	}{
		"hop limit":               {hang, nil, "HttpPutResponseHopLimit", poll.Timeout},
		"nothing answers":         {hang, hang, "no complete response within", poll.Timeout},
		"service disabled":        {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, nil, "HttpEndpoint", poll.HTTPStatus},
		"no token":                {func(http.ResponseWriter, *http.Request) {}, nil, "want a token", poll.WrongShape},
		"token with a line break": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a\r\nb: c") }, nil, "want a token", poll.WrongShape},
		"web page":                {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("a", 2000)) }, nil, "want a token", poll.WrongShape},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := startInstance(t)
			i.SetFault(emulator.TokenPath, tt.token)
			i.SetFault("/latest/meta-data/", tt.others)
			_, _, err := newClient(t, i, 300*time.Millisecond).Get(t.Context(), emulator.SpotPath)
			failed := (*poll.Error)(nil)
			if !errors.As(err, &failed) || failed.Class != tt.class || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want class %s and %q", err, tt.class, tt.says)
			}
			if tt.says != "HttpPutResponseHopLimit" && strings.Contains(err.Error(), "HttpPutResponseHopLimit") {
				t.Errorf("error %v blames the hop limit", err)
			}
		})
	}
}

func TestClockDifferenceIsReadFromDate(t *testing.T) {
	t.Parallel()
	i := startInstance(t)
	i.SetClockAhead(-time.Hour)
	w := watch(t, i, nil)
	i.SetSpotAction("terminate", time.Now().Add(-58*time.Minute)) // in two minutes on the clock of the service
	n := w.awaitTypes(notice.Preempt).Notices[0]
	if got := n.ClockAhead.Round(time.Minute); got != time.Hour {
		t.Errorf("ahead by %s, want 1h", n.ClockAhead)
	}
	// In 20 minutes on the clock of the service, so not due for another 5 minutes.
	i.SetEvents(emulator.Event{NotBefore: emulator.EventTime(time.Now().Add(-40 * time.Minute)), Code: "instance-reboot", EventID: "instance-event-1"})
	w.await("the event is planned", func(s notice.Snapshot, _ map[poll.Class]int) bool { return len(s.Planned) == 1 && len(s.Notices) == 1 })
}

func TestFailingPathIsPolledLessOften(t *testing.T) {
	t.Parallel()
	i := startInstance(t)
	i.SetFault(emulator.RebalancePath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	w := watch(t, i, nil)
	end := time.Now().Add(2 * time.Second)
	w.await("2 s of polls", func(notice.Snapshot, map[poll.Class]int) bool { return time.Now().After(end) })
	// At 0, 0.1, 0.3, 0.7 and 1.5 s, instead of twenty times.
	if n := i.Requests(http.MethodGet, emulator.RebalancePath); n < 3 || n > 6 {
		t.Errorf("%d polls of the failing path in 2 s, want 3 to 6", n)
	}
	if n := i.Requests(http.MethodGet, emulator.SpotPath); n < 30 {
		t.Errorf("%d polls of the Spot notice in 2 s, want about 100", n)
	}
}
