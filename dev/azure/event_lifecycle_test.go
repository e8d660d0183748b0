package azure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// powerRecorder is a Machines that records its calls with the time since its creation.
type powerRecorder struct {
	began time.Time
	delay time.Duration
	fail  map[string]error // by resource

	mu  sync.Mutex
	log []string
}

func newPowerRecorder() *powerRecorder { return &powerRecorder{began: time.Now()} }

func (s *powerRecorder) PowerOff(ctx context.Context, resource string) error {
	return s.switchPower(ctx, "off", resource)
}

func (s *powerRecorder) PowerOn(ctx context.Context, resource string) error {
	return s.switchPower(ctx, "on", resource)
}

func (s *powerRecorder) switchPower(ctx context.Context, state, resource string) error {
	if err := s.fail[resource]; err != nil {
		return err
	}
	if err := sleepUnlessClosed(ctx, ctx, s.delay); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%v %s %s", time.Since(s.began), resource, state))
	slices.Sort(s.log)
	return nil
}

func (s *powerRecorder) recorded() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// currentDocument returns the current document. It calls the handler without a network, because virtual time stops while a
// goroutine waits for the network.
func currentDocument(t testing.TB, e *Emulator) document {
	t.Helper()
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, newDocumentRequest())
	var doc document
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || w.Code != http.StatusOK {
		t.Fatalf("GET answered %d %s: %v", w.Code, w.Body, err)
	}
	return doc
}

func newDocumentRequest() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/scalesets/"+testSet+metadataPath+query, nil)
	r.Header.Set("Metadata", "true")
	return r
}

// listedStatuses returns the statuses of the listed events.
func listedStatuses(t testing.TB, e *Emulator) []EventStatus {
	t.Helper()
	list := []EventStatus{}
	for _, event := range currentDocument(t, e).Events {
		list = append(list, event.EventStatus)
	}
	return list
}

// passTime lets virtual time pass until everything due has happened.
func passTime(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestEventLifecycleByType(t *testing.T) {
	tests := []struct {
		typ    EventType
		notice time.Duration
		power  []string // power changes since the announcement
		over   time.Duration
	}{
		{Freeze, 15 * time.Minute, nil, 5 * time.Second},
		{Reboot, 15 * time.Minute, []string{"15m0s " + vm0 + " off", "15m30s " + vm0 + " on"}, 30 * time.Second},
		{Redeploy, 10 * time.Minute, []string{"10m0s " + vm0 + " off", "10m30s " + vm0 + " on"}, 30 * time.Second},
		{Preempt, 30 * time.Second, []string{"30s " + vm0 + " off"}, 0},
		{Terminate, 5 * time.Minute, []string{"5m0s " + vm0 + " off"}, 0},
	}
	for _, tt := range tests {
		t.Run(string(tt.typ), virtual.InVirtualTime(func(t *testing.T) {
			machines := newPowerRecorder()
			e := newEmulator(t, Options{Machines: machines, StartedAfterImpact: time.Minute})
			began := time.Now()
			record := mustAnnounce(t, e, Announcement{Type: tt.typ, Resources: []string{vm0}})
			if !record.VisibleAt.Equal(began) || !record.NotBefore.Equal(began.Add(tt.notice)) {
				t.Errorf("visible at %v, not before %v", record.VisibleAt, record.NotBefore)
			}
			passTime(tt.notice - time.Nanosecond)
			if diff := cmp.Diff([]EventStatus{Scheduled}, listedStatuses(t, e)); diff != "" {
				t.Fatalf("right before NotBefore (-want +got):\n%s", diff)
			}
			passTime(time.Nanosecond)
			doc := currentDocument(t, e)
			if len(doc.Events) != 1 || doc.Events[0].EventStatus != Started || doc.Events[0].NotBefore != "" {
				t.Fatalf("at NotBefore: %+v", doc)
			}
			passTime(tt.over + time.Minute - time.Nanosecond)
			check.Equal(t, []EventStatus{Started}, listedStatuses(t, e))
			passTime(time.Nanosecond)
			if doc := currentDocument(t, e); len(doc.Events) != 0 || doc.DocumentIncarnation != 4 {
				t.Errorf("at the end: %+v, want none and incarnation 4", doc)
			}
			check.Equal(t, tt.power, machines.recorded())
			record, _ = e.State().Event(record.EventID)
			if record.StartedBy != ByNotBefore || record.Ending != Finished ||
				!record.VanishedAt.Equal(began.Add(tt.notice+tt.over+time.Minute)) {
				t.Errorf("the history says %+v", record)
			}
		}))
	}
}

func TestNoticeCanBeShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEmulator(t, Options{Notices: map[EventType]time.Duration{Reboot: 3 * time.Second}})
		byType := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
		byEvent := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}, Notice: 2 * time.Second})
		check.Is(t, 3*time.Second, byType.NotBefore.Sub(byType.VisibleAt))
		check.Is(t, 2*time.Second, byEvent.NotBefore.Sub(byEvent.VisibleAt))
	})
}

func TestNotBeforeIsRoundedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEmulator(t, Options{})
		time.Sleep(300 * time.Millisecond) // virtual time begins at a full second
		record := mustAnnounce(t, e, Announcement{Type: Preempt, Resources: []string{vm0}})
		if got := record.NotBefore.Sub(record.VisibleAt); got != 30700*time.Millisecond {
			t.Errorf("the notice is %v, want it rounded up to a full second", got)
		}
		shown, err := http.ParseTime(currentDocument(t, e).Events[0].NotBefore)
		if err != nil || !shown.Equal(record.NotBefore) {
			t.Errorf("the document shows %v (%v), but the event will start at %v", shown, err, record.NotBefore)
		}
	})
}

func TestHardwareFailureIsStartedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := newPowerRecorder()
		e := newEmulator(t, Options{Machines: machines})
		a, err := NewScenario("hardware-failure", vm0)
		must.NoError(t, err)
		record := mustAnnounce(t, e, a)
		shown := currentDocument(t, e).Events[0]
		if shown.EventType != Reboot || shown.EventStatus != Started || shown.NotBefore != "" {
			t.Errorf("the document shows %+v", shown)
		}
		passTime(time.Minute)
		check.Equal(t, []string{"0s " + vm0 + " off", "30s " + vm0 + " on"}, machines.recorded())
		record, _ = e.State().Event(record.EventID)
		if record.StartedBy != ByFailure || record.IsListed() {
			t.Errorf("the history says %+v", record)
		}
	})
}

func TestApprovedEventPowersOffAllMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := newPowerRecorder()
		machines.delay = time.Second
		e := newEmulator(t, Options{Machines: machines})
		record := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0, vm1}, Outage: 20 * time.Second})
		passTime(time.Minute)
		must.NoError(t, e.approveEvents(e.EnsureScaleSet(testSet), []string{record.EventID}, vm0))
		passTime(time.Hour)
		// Concurrently, not one after the other.
		want := []string{
			"1m1s " + vm0 + " off", "1m1s " + vm1 + " off", "1m22s " + vm0 + " on", "1m22s " + vm1 + " on",
		}
		check.Equal(t, want, machines.recorded())
		record, _ = e.State().Event(record.EventID)
		if got := record.DiedAt(strings.ToUpper(vm1)).Sub(record.VisibleAt); got != 61*time.Second {
			t.Errorf("%s died %v after the announcement, want 1m1s", vm1, got)
		}
	})
}

func TestApprovalDelay(t *testing.T) {
	for name, tt := range map[string]struct {
		approved, want time.Duration // after the announcement
		cause          StartCause
	}{
		"long before NotBefore":  {time.Minute, 3 * time.Minute, ByApproval},
		"right before NotBefore": {14 * time.Minute, 15 * time.Minute, ByNotBefore},
	} {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			e := newEmulator(t, Options{ApprovalDelay: 2 * time.Minute})
			record := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
			passTime(tt.approved)
			for range 3 { // only the first counts
				must.NoError(t, e.approveEvents(e.EnsureScaleSet(testSet), []string{record.EventID}, vm0))
				if diff := cmp.Diff([]EventStatus{Scheduled}, listedStatuses(t, e)); diff != "" {
					t.Fatalf("after the approval (-want +got):\n%s", diff)
				}
				passTime(time.Second)
			}
			passTime(time.Hour)
			record, _ = e.State().Event(record.EventID)
			if got := record.StartedAt.Sub(record.VisibleAt); got != tt.want || record.StartedBy != tt.cause {
				t.Errorf("started after %v by %s, want %v by %s", got, record.StartedBy, tt.want, tt.cause)
			}
		}))
	}
}

func TestReschedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEmulator(t, Options{})
		record := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
		must.NoError(t, e.RescheduleEvent(record.EventID, record.NotBefore))
		if got := currentDocument(t, e).DocumentIncarnation; got != 2 {
			t.Errorf("rescheduling to the same time made it incarnation %d", got)
		}
		sooner := record.VisibleAt.Add(time.Minute)
		must.NoError(t, e.RescheduleEvent(record.EventID, sooner))
		doc := currentDocument(t, e)
		if doc.DocumentIncarnation != 3 || doc.Events[0].NotBefore != sooner.UTC().Format(http.TimeFormat) {
			t.Errorf("the document shows %+v", doc)
		}
		passTime(time.Minute)
		check.Equal(t, []EventStatus{Started}, listedStatuses(t, e))
	})
}

func TestStartAndFinishByCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := newPowerRecorder()
		e := newEmulator(t, Options{Machines: machines, Outage: time.Hour, StartedAfterImpact: time.Hour})
		record := mustAnnounce(t, e, Announcement{Type: Redeploy, Resources: []string{vm0}})
		passTime(time.Second)
		must.NoError(t, e.StartEvent(record.EventID))
		check.Equal(t, []EventStatus{Started}, listedStatuses(t, e))
		passTime(time.Second)
		must.NoError(t, e.FinishEvent(t.Context(), record.EventID))
		if got := listedStatuses(t, e); len(got) != 0 {
			t.Errorf("after Finish: %v", got)
		}
		check.Equal(t, []string{"1s " + vm0 + " off", "2s " + vm0 + " on"}, machines.recorded())
	})
}

func TestFailedPowerOffIsNotDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := newPowerRecorder()
		machines.fail = map[string]error{vm0: errors.New("no such machine")}
		e := newEmulator(t, Options{Machines: machines})
		record := mustAnnounce(t, e, Announcement{Type: Preempt, Resources: []string{vm0, vm1}})
		passTime(time.Minute)
		record, _ = e.State().Event(record.EventID)
		if !record.DiedAt(vm0).IsZero() || record.DiedAt(vm1).IsZero() {
			t.Errorf("died: %v and %v, want only the second", record.DiedAt(vm0), record.DiedAt(vm1))
		}
		if i := slices.IndexFunc(record.Power, func(p PowerChange) bool { return p.Resource == vm0 }); i < 0 ||
			record.Power[i].Error != "no such machine" {
			t.Errorf("the history says %+v", record.Power)
		}
	})
}

func TestHangingPowerOffDoesNotKeepEventListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := newPowerRecorder()
		machines.delay = time.Hour
		e := newEmulator(t, Options{Machines: machines})
		record := mustAnnounce(t, e, Announcement{Type: Preempt, Resources: []string{vm0}})
		passTime(30*time.Second + powerTimeout)
		record, _ = e.State().Event(record.EventID)
		if record.IsListed() || !record.DiedAt(vm0).IsZero() || len(record.Power) != 1 || record.Power[0].Error == "" {
			t.Errorf("the history says %+v", record)
		}
	})
}

func TestCloseDoesNotWaitForHangingPowerOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := newPowerRecorder()
		machines.delay = time.Hour
		e := newEmulator(t, Options{Machines: machines})
		mustAnnounce(t, e, Announcement{Type: Preempt, Resources: []string{vm0}})
		passTime(31 * time.Second)
		began := time.Now()
		e.Close()
		check.Is(t, 0, time.Since(began))
	})
}

func TestClosedDuringFirstCallSendsNoResponse(t *testing.T) {
	e := newEmulator(t, Options{FirstCallDelay: time.Hour})
	base := serveEmulator(t, e)
	e.Close()
	resp, body, err := sendGet(t.Context(), t, base+metadataPath+query)
	if err == nil {
		t.Errorf("answered with %d %q", resp.StatusCode, body)
	}
}

func TestFirstCallIsDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEmulator(t, Options{FirstCallDelay: 2 * time.Minute})
		took := func() time.Duration {
			began := time.Now()
			currentDocument(t, e)
			return time.Since(began)
		}
		check.Is(t, 2*time.Minute, took())
		check.Is(t, 0, took())
		time.Sleep(24*time.Hour + time.Second)
		if got := took(); got != 2*time.Minute {
			t.Errorf("the first call after a day took %v", got)
		}
	})
}

func TestConcurrentCallsWaitForFirstCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEmulator(t, Options{FirstCallDelay: 2 * time.Minute})
		go e.Handler().ServeHTTP(httptest.NewRecorder(), newDocumentRequest())
		time.Sleep(time.Minute)
		began := time.Now()
		currentDocument(t, e)
		if got := time.Since(began); got != time.Minute {
			t.Errorf("a call in the middle of the first took %v, want 1m", got)
		}
	})
}

func TestWaitSeesEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEmulator(t, Options{Machines: newPowerRecorder()})
		began := time.Now()
		record := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
		state, err := e.AwaitState(t.Context(), func(s State) bool {
			r, _ := s.Event(record.EventID)
			return !r.DiedAt(vm0).IsZero()
		})
		if err != nil || time.Since(began) != 15*time.Minute || !state.At.Equal(time.Now()) {
			t.Errorf("the machine's death was seen after %v (%v)", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := e.AwaitState(ctx, func(State) bool { return false }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the unsatisfied wait ended with %v", err)
		}
		go e.Close()
		if _, err := e.AwaitState(t.Context(), func(State) bool { return false }); !errors.Is(err, ErrClosed) {
			t.Errorf("the wait on a closed emulator ended with %v", err)
		}
	})
}

func TestInvalidAnnouncementIsRefused(t *testing.T) {
	e := newEmulator(t, Options{})
	e.EnsureScaleSet("other")
	known := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}}).EventID
	for name, tt := range map[string]struct {
		change  func(*Announcement) // makes a valid announcement invalid
		want    error
		message string
	}{
		"no type":              {func(a *Announcement) { a.Type = "" }, ErrInvalid, `type ""`},
		"unknown type":         {func(a *Announcement) { a.Type = "Explode" }, ErrInvalid, `type "Explode"`},
		"no resources":         {func(a *Announcement) { a.Resources = nil }, ErrInvalid, "resources"},
		"blank resource":       {func(a *Announcement) { a.Resources[1] = " " }, ErrInvalid, "resources[1]"},
		"resource ID":          {func(a *Announcement) { a.Resources[1] = "/a/b" }, ErrInvalid, "resources[1]"},
		"resource twice":       {func(a *Announcement) { a.Resources[1] = strings.ToUpper(vm0) }, ErrInvalid, "resources[1]"},
		"unknown status":       {func(a *Announcement) { a.Status = "Completed" }, ErrInvalid, `status "Completed"`},
		"unknown source":       {func(a *Announcement) { a.Source = "Me" }, ErrInvalid, `source "Me"`},
		"negative notice":      {func(a *Announcement) { a.Notice = -1 }, ErrInvalid, "notice -1ns"},
		"notice and notBefore": {func(a *Announcement) { a.Notice, a.NotBefore = 1, at(1) }, ErrInvalid, "notBefore"},
		"started with notice":  {func(a *Announcement) { a.Status, a.Notice = Started, 1 }, ErrInvalid, "notice"},
		"duration below -1":    {func(a *Announcement) { a.DurationSeconds = new(-2) }, ErrInvalid, "durationSeconds -2"},
		"negative outage":      {func(a *Announcement) { a.Outage = -1 }, ErrInvalid, "outage -1ns"},
		"ID that is no GUID":   {func(a *Announcement) { a.EventID = "7" }, ErrInvalid, `eventId "7"`},
		"duplicate ID":         {func(a *Announcement) { a.EventID = strings.ToLower(known) }, ErrDuplicateEvent, "eventId"},
		"unknown scale set":    {func(a *Announcement) { a.ScaleSet = "nope" }, ErrUnknownScaleSet, testSet},
		"ambiguous scale set":  {func(a *Announcement) { a.Resources[0] = "vm" }, ErrUnknownScaleSet, "other"},
	} {
		t.Run(name, func(t *testing.T) {
			a := Announcement{Type: Reboot, Resources: []string{vm0, vm1}}
			tt.change(&a)
			_, err := e.Announce(a)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.message)
			}
		})
	}
	check.Is(t, 1, len(e.State().Events))
}

func TestClosedEmulatorRefusesCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := newPowerRecorder()
		e := newEmulator(t, Options{Machines: machines})
		record := mustAnnounce(t, e, Announcement{Type: Reboot, Resources: []string{vm0}})
		passTime(15*time.Minute + time.Second)
		e.Close()
		passTime(time.Hour)
		check.Equal(t, []string{"15m0s " + vm0 + " off"}, machines.recorded())
		if _, err := e.Announce(Announcement{Type: Reboot, Resources: []string{vm0}}); !errors.Is(err, ErrClosed) {
			t.Errorf("Announce: %v", err)
		}
		if err := e.FinishEvent(t.Context(), record.EventID); !errors.Is(err, ErrClosed) {
			t.Errorf("Finish: %v", err)
		}
	})
}

// TestDocumentKeepsContract runs random commands and checks the document after each.
func TestDocumentKeepsContract(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type step struct {
			command string
			event   int
			typ     EventType
			wait    time.Duration
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				command: rapid.SampledFrom([]string{
					"announce", "fail", "approve", "start", "cancel", "finish", "reschedule", "wait",
				}).Draw(rt, "command"),
				event: rapid.IntRange(0, 5).Draw(rt, "event"),
				typ:   rapid.SampledFrom(EventTypes()).Draw(rt, "type"),
				wait:  time.Duration(rapid.IntRange(1, 1_200_000).Draw(rt, "wait")) * time.Millisecond,
			}
		}), 1, 40).Draw(rt, "steps")
		delay := time.Duration(rapid.IntRange(0, 60).Draw(rt, "approval delay")) * time.Second

		var broken []string
		synctest.Test(t, func(t *testing.T) {
			machines := newPowerRecorder()
			e := newEmulator(t, Options{Machines: machines, ApprovalDelay: delay, StartedAfterImpact: time.Minute})
			watch := documentChecker{last: currentDocument(t, e)}
			var ids []string
			for _, s := range steps {
				id := ""
				if len(ids) > 0 {
					id = ids[s.event%len(ids)]
				}
				a := Announcement{Type: s.typ, Resources: []string{vm0, vm1}}
				switch s.command {
				case "fail":
					a.Status = Started
					fallthrough
				case "announce":
					ids = append(ids, mustAnnounce(t, e, a).EventID)
				case "approve":
					_ = e.approveEvents(e.EnsureScaleSet(testSet), []string{id}, vm0) // fails if the event does not exist
				case "start":
					_ = e.StartEvent(id)
				case "cancel":
					_ = e.CancelEvent(id)
				case "finish":
					_ = e.FinishEvent(t.Context(), id)
				case "reschedule":
					was, _ := e.State().Event(id)
					_ = e.RescheduleEvent(id, time.Now().Add(s.wait))
					if is, _ := e.State().Event(id); !is.NotBefore.Equal(was.NotBefore) {
						watch.rescheduled++
					}
				case "wait":
					time.Sleep(s.wait)
				}
				synctest.Wait()
				broken = append(broken, watch.checkDocument(currentDocument(t, e), e.State())...)
			}
			passTime(48 * time.Hour)
			broken = append(broken, watch.checkDocument(currentDocument(t, e), e.State())...)
			if n := len(watch.last.Events); n > 0 {
				broken = append(broken, fmt.Sprintf("%d events never vanish", n))
			}
		})
		for _, b := range broken {
			rt.Error(b)
		}
	})
}

// documentChecker compares a document with the previous one.
type documentChecker struct {
	last        document
	vanished    []string
	rescheduled int // number of moved NotBefores
}

// checkDocument returns the broken promises.
func (p *documentChecker) checkDocument(doc document, state State) (broken []string) {
	fail := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	if same := doc.DocumentIncarnation == p.last.DocumentIncarnation; same && !cmp.Equal(p.last.Events, doc.Events) {
		fail("the list has changed within incarnation %d", doc.DocumentIncarnation)
	}
	if want := 1 + p.countChanges(state); doc.DocumentIncarnation != want {
		fail("incarnation %d after %d changes of the list", doc.DocumentIncarnation, want-1)
	}
	for _, was := range p.last.Events {
		i := slices.IndexFunc(doc.Events, func(listed documentEvent) bool { return listed.EventID == was.EventID })
		if i < 0 {
			p.vanished = append(p.vanished, was.EventID)
		} else if was.EventStatus == Started && doc.Events[i].EventStatus != Started {
			fail("event %s went back from Started to %s", was.EventID, doc.Events[i].EventStatus)
		}
	}
	for _, listed := range doc.Events {
		if (listed.NotBefore == "") != (listed.EventStatus == Started) {
			fail("event %s is %s with NotBefore %q", listed.EventID, listed.EventStatus, listed.NotBefore)
		}
		if slices.Contains(p.vanished, listed.EventID) {
			fail("event %s reappeared", listed.EventID)
		}
	}
	for _, r := range state.Events {
		if r.StartedBy == ByNotBefore && r.StartedAt.Before(r.NotBefore) {
			fail("event %s started at %v, before %v", r.EventID, r.StartedAt, r.NotBefore)
		}
		if r.StartedAt.IsZero() && len(r.Power) > 0 {
			fail("event %s has not started, but switched %+v", r.EventID, r.Power)
		}
		if r.Ending == Finished {
			broken = append(broken, checkPower(r)...)
		}
	}
	p.last = doc
	return broken
}

// countChanges counts the changes of the list.
func (p *documentChecker) countChanges(state State) int {
	n := p.rescheduled
	for _, r := range state.Events {
		n++ // announced
		if !r.StartedAt.IsZero() && r.StartedBy != ByFailure {
			n++
		}
		if !r.IsListed() {
			n++
		}
	}
	return n
}

// checkPower checks that a finished event switched the machines as its type demands.
func checkPower(r EventRecord) (broken []string) {
	want := map[EventType]int{Freeze: 0, Reboot: 4, Redeploy: 4, Preempt: 2, Terminate: 2}[r.Type]
	if len(r.Power) != want {
		return []string{fmt.Sprintf("%s %s switched machines %d times, want %d", r.Type, r.EventID, len(r.Power), want)}
	}
	for i, p := range r.Power {
		if p.On != (i >= 2) {
			return []string{fmt.Sprintf("%s %s switched %+v", r.Type, r.EventID, r.Power)}
		}
	}
	return nil
}
