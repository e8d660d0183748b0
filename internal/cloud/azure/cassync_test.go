package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	azcloud "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// aks is an agent pool behind the real SDK, in whatever time the test has.
type aks struct {
	mu              sync.Mutex
	least, most     int32
	count           int32
	tags            map[string]string
	etag, operation int
	gone            bool
	takes           time.Duration // an operation
	busyUntil       time.Time
	fails           bool // the next operation
	writes          []string
	asked           []time.Time
	// fault, if set, answers in place of AKS when it is not nil.
	fault func(*http.Request) *http.Response
}

// onPool runs a test in virtual time on an agent pool of up to 5 nodes.
func onPool(t *testing.T, test func(t *testing.T, a *aks)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, &aks{most: 5, takes: time.Minute, tags: map[string]string{"team": "ci"}})
	})
}

const armAt = "https://arm.test"

// sync is one more manager's synchronisation by the pool.
func (a *aks) sync(t *testing.T, every time.Duration, log io.Writer) *CASSync {
	t.Helper()
	options := &arm.ClientOptions{ClientOptions: policy.ClientOptions{
		Cloud: azcloud.Configuration{Services: map[azcloud.ServiceName]azcloud.ServiceConfiguration{
			azcloud.ResourceManager: {Endpoint: armAt, Audience: armAt},
		}},
		Transport: a, Retry: policy.RetryOptions{MaxRetries: -1, ShouldRetry: worthRetrying},
	}, DisableRPRegistration: true}
	client, err := arm.NewClient(moduleName, moduleVersion, token{}, options)
	must.NoError(t, err)
	pools, err := armcontainerservice.NewAgentPoolsClient(subscription, token{}, options)
	must.NoError(t, err)
	p := &Provider{
		log:     slog.New(slog.NewTextHandler(log, nil)),
		clients: &clients{arm: client, pools: pools, armHost: strings.TrimPrefix(armAt, "https://")},
	}
	s, err := p.NewCASSync(CASSyncConfig{ResourceGroup: "rg", Cluster: "demo", AgentPool: "empty", Every: cloud.Duration(every)})
	must.NoError(t, err)
	return s
}

// Do implements policy.Transporter.
func (a *aks) Do(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, time.Now())
	if a.fault != nil {
		if answer := a.fault(r); answer != nil {
			return answer, nil
		}
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/operations/"):
		return a.progress(r), nil
	case a.gone:
		return says(r, http.StatusNotFound, `{"code": "NotFound", "message": "no such pool"}`), nil
	case r.Method == http.MethodPut:
		return a.put(r), nil
	}
	return says(r, http.StatusOK, a.json()), nil
}

func (a *aks) progress(r *http.Request) *http.Response {
	switch {
	case time.Now().Before(a.busyUntil):
		return says(r, http.StatusOK, `{"status": "InProgress"}`)
	case a.fails:
		a.fails = false
		return says(r, http.StatusOK, `{"status": "Failed", "error": {"code": "Broken", "message": "it did not work"}}`)
	}
	return says(r, http.StatusOK, `{"status": "Succeeded"}`)
}

func (a *aks) put(r *http.Request) *http.Response {
	var request struct {
		Properties struct {
			MaxCount int32             `json:"maxCount"`
			Tags     map[string]string `json:"tags"`
		} `json:"properties"`
	}
	raw, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(raw, &request)
	}
	switch p := request.Properties; {
	case err != nil:
		return says(r, http.StatusBadRequest, `{"code": "Unreadable"}`)
	case time.Now().Before(a.busyUntil):
		return says(r, http.StatusConflict, `{"code": "OperationNotAllowed", "message": "another operation is in progress"}`)
	case r.Header.Get("If-Match") != fmt.Sprint(a.etag):
		return says(r, http.StatusPreconditionFailed, `{"code": "PreconditionFailed"}`)
	case p.MaxCount < a.least:
		return says(r, http.StatusBadRequest, `{"code": "InvalidParameter", "message": "maxCount is below minCount"}`)
	default:
		a.most, a.tags = p.MaxCount, p.Tags
	}
	a.etag++
	a.operation++
	a.busyUntil = time.Now().Add(a.takes)
	a.writes = append(a.writes, fmt.Sprint(a.most))
	answer := says(r, http.StatusOK, a.json())
	answer.Header.Set("Azure-AsyncOperation", fmt.Sprintf("%s/operations/%d", armAt, a.operation))
	return answer
}

func (a *aks) json() string {
	raw, _ := json.Marshal(map[string]any{"name": "empty", "properties": map[string]any{
		"count": a.count, "minCount": a.least, "maxCount": a.most, "enableAutoScaling": true, "eTag": fmt.Sprint(a.etag), "tags": a.tags,
	}})
	return string(raw)
}

func says(r *http.Request, status int, body string) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}
}

// somebody changes the pool.
func (a *aks) somebody(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	a.etag++
}

// throttleWrite throttles one write for some seconds. The first write is number 1.
func (a *aks) throttleWrite(number, seconds int) {
	writes := 0
	a.fault = func(r *http.Request) *http.Response {
		if r.Method == http.MethodPut {
			writes++
		}
		if r.Method != http.MethodPut || writes != number {
			return nil
		}
		answer := says(r, http.StatusTooManyRequests, `{"code": "TooManyRequests"}`)
		answer.Header.Set("Retry-After", fmt.Sprint(seconds))
		return answer
	}
}

// atRest asserts that the pool is as somebody left it.
func (a *aks) atRest(t *testing.T, most int32) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, record := a.tags[nudgeTag]; a.most != most || record || a.tags["team"] != "ci" {
		t.Errorf("the pool has maximum %d and tags %v, want %d and those of before", a.most, a.tags, most)
	}
}

func (a *aks) wrote(t *testing.T, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.writes, want) {
		t.Errorf("the maxima asked for are %q, want %q", a.writes, want)
	}
}

// record notes what an observer is told.
type record struct {
	mu      sync.Mutex
	nudges  []string // "" is done
	changed []bool
}

func (o *record) Nudged(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nudges = append(o.nudges, said)
}

func (o *record) Changed(waits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.changed); n == 0 || o.changed[n-1] != waits {
		o.changed = append(o.changed, waits)
	}
}

// running is a Run that is under way.
type running struct {
	*CASSync
	told record
	log  bytes.Buffer
	stop context.CancelFunc
	over chan struct{}
}

// run has a synchronisation run until the test ends; what it has told is to be looked at after end.
func (a *aks) run(t *testing.T, every time.Duration) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &running{stop: stop, over: make(chan struct{})}
	r.CASSync = a.sync(t, every, &r.log)
	r.Observe(&r.told)
	go func() {
		r.Run(ctx)
		close(r.over)
	}()
	t.Cleanup(r.end)
	synctest.Wait()
	return r
}

func (r *running) end() {
	r.stop()
	<-r.over
}

// outcomes asserts what was told of nudges, each time a part of it.
func (r *running) outcomes(t *testing.T, want ...string) {
	t.Helper()
	ok := len(want) == len(r.told.nudges)
	for i := 0; ok && i < len(want); i++ {
		ok = strings.Contains(r.told.nudges[i], want[i]) && (want[i] == "") == (r.told.nudges[i] == "")
	}
	if !ok {
		t.Errorf("told of nudges: %q, want %q", r.told.nudges, want)
	}
}

func (r *running) changes(t *testing.T, want ...bool) {
	t.Helper()
	if !slices.Equal(r.told.changed, want) {
		t.Errorf("told whether a changed maximum waits: %v, want %v", r.told.changed, want)
	}
}

func TestRunReportsNudgesAndTheChangedMaximum(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(time.Hour)
		r.end()
		a.atRest(t, 5)
		a.wrote(t, "6", "5")
		r.outcomes(t, "")
		r.changes(t, false, true, false)
	})
}

func TestDeletionsWhileGatheringShareOneNudge(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(defaultGather / 2)
		r.Deleted()
		time.Sleep(time.Hour)
		a.wrote(t, "6", "5")
		r.Deleted()
		time.Sleep(defaultGather + time.Minute/2)
		r.Deleted() // this one the nudge under way may have come too early for
		time.Sleep(time.Hour)
		a.wrote(t, "6", "5", "6", "5", "6", "5")
	})
}

func TestScheduledNudgeWaitsForTheOneBefore(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		r := a.run(t, 10*time.Minute)
		time.Sleep(25 * time.Minute)
		r.end()
		a.wrote(t, "6", "5", "6", "5")
		r.outcomes(t, "", "")
	})
}

func TestI8RestartRestoresWhatACrashLeft(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		a.most, a.tags[nudgeTag] = 6, "5 to 6"
		a.busyUntil = time.Now().Add(90 * time.Second) // the operation that the crash was in
		r := a.run(t, 0)
		time.Sleep(time.Hour)
		r.end()
		a.atRest(t, 5)
		a.wrote(t, "5")
		r.outcomes(t, "in progress", "in progress")
		r.changes(t, true, false)
	})
}

func TestThrottledRestoreIsRetriedByTheSameNudge(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		a.throttleWrite(2, 90)
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(time.Hour)
		r.end()
		a.atRest(t, 5)
		a.wrote(t, "6", "5")
		r.outcomes(t, "")
	})
}

func TestLongThrottleDelaysRestoreNoFurther(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		a.throttleWrite(2, 600)
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(defaultGather + a.takes + 10*time.Minute + 10*time.Second)
		a.wrote(t, "6", "5")
		time.Sleep(time.Hour)
		r.end()
		a.atRest(t, 5)
		r.outcomes(t, "wait 10m", "")
	})
}

func TestRetryAfterIsRespectedDuringDeletions(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		const wish = 20 * time.Minute
		a.throttleWrite(1, int(wish/time.Second))
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(defaultGather + time.Second)
		wished := time.Now()
		for range 10 {
			r.Deleted()
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Hour)
		r.end()
		a.atRest(t, 5)
		a.wrote(t, "6", "5") // for all of them
		r.outcomes(t, "wait 20m", "")
		for _, at := range a.asked {
			if at.After(wished) && at.Before(wished.Add(wish-2*time.Second)) {
				t.Errorf("asked after %s, in the %s that Azure wanted to be left alone", at.Sub(wished), wish)
			}
		}
	})
}

func TestFailedChangeIsRestoredAtOnce(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		a.fails = true
		s := a.sync(t, 0, io.Discard)
		check.ErrorContains(t, s.Nudge(t.Context()), "it did not work")
		a.atRest(t, 5)
	})
}

func TestEndlessOperationIsGivenUpAndReported(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		a.takes = 40 * time.Minute
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(12 * time.Minute)
		r.told.mu.Lock()
		if len(r.told.nudges) == 0 {
			t.Error("after 12m nobody is told that the maximum is not put back")
		}
		r.told.mu.Unlock()
		a.somebody(func() { a.takes = time.Minute })
		time.Sleep(3 * time.Hour)
		r.end()
		a.atRest(t, 5)
	})
}

func TestEndlessRestoreAfterACrashIsGivenUp(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		a.most, a.tags[nudgeTag], a.takes = 6, "5 to 6", 40*time.Minute
		r := a.run(t, 0)
		time.Sleep(7 * time.Minute)
		r.end()
		r.outcomes(t, "deadline exceeded")
	})
}

func TestStopRestoresTheChangedMaximumFirst(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		a.takes = 8 * time.Second
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(defaultGather + 2*time.Second) // the operation of the change is under way
		a.wrote(t, "6")
		r.end()
		a.atRest(t, 5)
		r.outcomes(t, "")
	})
}

func TestI8HurriedStopLeavesTheRestoreToTheNext(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(defaultGather + 10*time.Second)
		stopped := time.Now()
		r.end()
		if took := time.Since(stopped); took > stopTime {
			t.Errorf("the stop took %s, want %s at most", took, stopTime)
		}
		check.Contains(t, r.log.String(), "maximumChanged=true")
		next := a.run(t, 0)
		time.Sleep(time.Hour)
		next.end()
		a.atRest(t, 5)
		a.wrote(t, "6", "5")
		next.changes(t, true, false)
	})
}

func TestStopBeforeAnyChangeIsNotReported(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		r := a.run(t, 0)
		ctx, stop := context.WithCancel(t.Context())
		a.somebody(func() {
			a.fault = func(*http.Request) *http.Response {
				stop()
				return nil
			}
		})
		r.persist(ctx, r.Nudge)
		r.end()
		a.wrote(t)
		r.outcomes(t)
	})
}

func TestPoolDeletedDuringANudgeIsReported(t *testing.T) {
	onPool(t, func(t *testing.T, a *aks) {
		r := a.run(t, 0)
		r.Deleted()
		time.Sleep(defaultGather + 10*time.Second)
		a.somebody(func() { a.gone = true })
		time.Sleep(10 * time.Minute)
		r.told.mu.Lock()
		r.changes(t, false, true, false)
		r.told.mu.Unlock()
		a.somebody(func() { a.gone, a.most, a.tags = false, 3, map[string]string{"team": "ci"} })
		time.Sleep(time.Hour)
		r.end()
		a.atRest(t, 3)
		r.changes(t, false, true, false, true, false)
		if n := len(r.told.nudges); n < 5 || !strings.Contains(r.told.nudges[0], "does not exist") || r.told.nudges[n-1] != "" {
			t.Errorf("told of %q", r.told.nudges)
		}
	})
}

func TestForeignBoundsSetMeanwhileAreKept(t *testing.T) {
	for name, set := range map[string]func(*aks){
		"another maximum":                  func(a *aks) { a.most = 9 },
		"the maximum of before":            func(a *aks) { a.most = 5 },
		"a minimum at the maximum as seen": func(a *aks) { a.least = 6 },
	} {
		t.Run(name, func(t *testing.T) {
			onPool(t, func(t *testing.T, a *aks) {
				r := a.run(t, 0)
				r.Deleted()
				time.Sleep(defaultGather + 10*time.Second)
				var want int32
				a.somebody(func() { set(a); want = a.most })
				time.Sleep(time.Hour)
				r.end()
				a.atRest(t, want)
				r.outcomes(t, "")
			})
		})
	}
}

func TestI8TwoManagersLeaveThePoolUnchanged(t *testing.T) {
	for offset := range 16 {
		t.Run(fmt.Sprint(offset*10, "s apart"), func(t *testing.T) {
			onPool(t, func(t *testing.T, a *aks) {
				first := a.run(t, 0)
				first.Deleted()
				time.Sleep(time.Duration(offset) * 10 * time.Second)
				second := a.run(t, 0)
				second.Deleted()
				time.Sleep(time.Hour)
				first.end()
				second.end()
				a.atRest(t, 5)
				for _, most := range a.writes {
					if most != "5" && most != "6" {
						t.Errorf("the maxima asked for are %q", a.writes)
						break
					}
				}
				for _, r := range []*running{first, second} {
					if n := len(r.told.nudges); n == 0 || r.told.nudges[n-1] != "" {
						t.Errorf("told of nudges: %q, want the last one done", r.told.nudges)
					}
				}
			})
		})
	}
}
