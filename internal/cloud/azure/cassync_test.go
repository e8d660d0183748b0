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

// fakeAKS is an agent pool in AKS behind the real SDK.
type fakeAKS struct {
	mu                 sync.Mutex
	minCount, maxCount int32
	count              int32
	tags               map[string]string
	etag, operation    int
	gone               bool
	operationDuration  time.Duration // duration of an operation
	busyUntil          time.Time
	failNext           bool // fails the next operation
	writes             []string
	requestTimes       []time.Time
	// fault, if set, replaces the response of AKS unless it returns nil.
	fault func(*http.Request) *http.Response
}

// withPool runs a test in virtual time with an agent pool of up to 5 nodes.
func withPool(t *testing.T, test func(t *testing.T, a *fakeAKS)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, &fakeAKS{maxCount: 5, operationDuration: time.Minute, tags: map[string]string{"team": "ci"}})
	})
}

const armURL = "https://arm.test"

// newSync returns the CASSync of another manager for the pool.
func (a *fakeAKS) newSync(t *testing.T, every time.Duration, log io.Writer) *CASSync {
	t.Helper()
	options := &arm.ClientOptions{ClientOptions: policy.ClientOptions{
		Cloud: azcloud.Configuration{Services: map[azcloud.ServiceName]azcloud.ServiceConfiguration{
			azcloud.ResourceManager: {Endpoint: armURL, Audience: armURL},
		}},
		Transport: a, Retry: policy.RetryOptions{MaxRetries: -1, ShouldRetry: shouldRetry},
	}, DisableRPRegistration: true}
	client, err := arm.NewClient(moduleName, moduleVersion, fakeCredential{}, options)
	must.NoError(t, err)
	pools, err := armcontainerservice.NewAgentPoolsClient(subscriptionID, fakeCredential{}, options)
	must.NoError(t, err)
	p := &Provider{
		log:     slog.New(slog.NewTextHandler(log, nil)),
		clients: &clients{arm: client, pools: pools, armHost: strings.TrimPrefix(armURL, "https://")},
	}
	s, err := p.NewCASSync(CASSyncConfig{ResourceGroup: "rg", Cluster: "demo", AgentPool: "empty", Every: cloud.Duration(every)})
	must.NoError(t, err)
	return s
}

// Do implements policy.Transporter.
func (a *fakeAKS) Do(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requestTimes = append(a.requestTimes, time.Now())
	if a.fault != nil {
		if answer := a.fault(r); answer != nil {
			return answer, nil
		}
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/operations/"):
		return a.operationStatus(r), nil
	case a.gone:
		return newResponse(r, http.StatusNotFound, `{"code": "NotFound", "message": "no such pool"}`), nil
	case r.Method == http.MethodPut:
		return a.putPool(r), nil
	}
	return newResponse(r, http.StatusOK, a.poolJSON()), nil
}

func (a *fakeAKS) operationStatus(r *http.Request) *http.Response {
	switch {
	case time.Now().Before(a.busyUntil):
		return newResponse(r, http.StatusOK, `{"status": "InProgress"}`)
	case a.failNext:
		a.failNext = false
		return newResponse(r, http.StatusOK, `{"status": "Failed", "error": {"code": "Broken", "message": "it did not work"}}`)
	}
	return newResponse(r, http.StatusOK, `{"status": "Succeeded"}`)
}

func (a *fakeAKS) putPool(r *http.Request) *http.Response {
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
		return newResponse(r, http.StatusBadRequest, `{"code": "Unreadable"}`)
	case time.Now().Before(a.busyUntil):
		return newResponse(r, http.StatusConflict, `{"code": "OperationNotAllowed", "message": "another operation is in progress"}`)
	case r.Header.Get("If-Match") != fmt.Sprint(a.etag):
		return newResponse(r, http.StatusPreconditionFailed, `{"code": "PreconditionFailed"}`)
	case p.MaxCount < a.minCount:
		return newResponse(r, http.StatusBadRequest, `{"code": "InvalidParameter", "message": "maxCount is below minCount"}`)
	default:
		a.maxCount, a.tags = p.MaxCount, p.Tags
	}
	a.etag++
	a.operation++
	a.busyUntil = time.Now().Add(a.operationDuration)
	a.writes = append(a.writes, fmt.Sprint(a.maxCount))
	answer := newResponse(r, http.StatusOK, a.poolJSON())
	answer.Header.Set("Azure-AsyncOperation", fmt.Sprintf("%s/operations/%d", armURL, a.operation))
	return answer
}

func (a *fakeAKS) poolJSON() string {
	raw, _ := json.Marshal(map[string]any{"name": "empty", "properties": map[string]any{
		"count": a.count, "minCount": a.minCount, "maxCount": a.maxCount, "enableAutoScaling": true, "eTag": fmt.Sprint(a.etag), "tags": a.tags,
	}})
	return string(raw)
}

func newResponse(r *http.Request, status int, body string) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}
}

// changePool changes the pool as a user would.
func (a *fakeAKS) changePool(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	a.etag++
}

// throttleWrite throttles one write for some seconds. The first write is number 1.
func (a *fakeAKS) throttleWrite(number, seconds int) {
	writes := 0
	a.fault = func(r *http.Request) *http.Response {
		if r.Method == http.MethodPut {
			writes++
		}
		if r.Method != http.MethodPut || writes != number {
			return nil
		}
		answer := newResponse(r, http.StatusTooManyRequests, `{"code": "TooManyRequests"}`)
		answer.Header.Set("Retry-After", fmt.Sprint(seconds))
		return answer
	}
}

// checkRestored asserts that the pool has the given maximum and its original tags.
func (a *fakeAKS) checkRestored(t *testing.T, most int32) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, record := a.tags[maximumChangeTag]; a.maxCount != most || record || a.tags["team"] != "ci" {
		t.Errorf("the pool has maximum %d and tags %v, want %d and the original tags", a.maxCount, a.tags, most)
	}
}

func (a *fakeAKS) checkWrites(t *testing.T, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	check.Not(t, !slices.Equal(a.writes, want), "requested maxima %q, want %q", a.writes, want)
}

// recordingObserver records the calls of an observer.
type recordingObserver struct {
	mu       sync.Mutex
	restarts []string // "" is a success
	changed  []bool
}

func (o *recordingObserver) RestartFinished(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.restarts = append(o.restarts, said)
}

func (o *recordingObserver) MaximumChanged(waits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.changed); n == 0 || o.changed[n-1] != waits {
		o.changed = append(o.changed, waits)
	}
}

// runningSync is a CASSync that runs.
type runningSync struct {
	*CASSync
	observer recordingObserver
	log      bytes.Buffer
	stop     context.CancelFunc
	done     chan struct{}
}

// start runs a CASSync until the test ends. Read its observer only after end.
func (a *fakeAKS) start(t *testing.T, every time.Duration) *runningSync {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &runningSync{stop: stop, done: make(chan struct{})}
	r.CASSync = a.newSync(t, every, &r.log)
	r.SetObserver(&r.observer)
	go func() {
		r.Run(ctx)
		close(r.done)
	}()
	t.Cleanup(r.stopAndWait)
	synctest.Wait()
	return r
}

func (r *runningSync) stopAndWait() {
	r.stop()
	<-r.done
}

// checkRestarts asserts the reported results of restarts. want holds substrings of the errors.
func (r *runningSync) checkRestarts(t *testing.T, want ...string) {
	t.Helper()
	ok := len(want) == len(r.observer.restarts)
	for i := 0; ok && i < len(want); i++ {
		ok = strings.Contains(r.observer.restarts[i], want[i]) && (want[i] == "") == (r.observer.restarts[i] == "")
	}
	if !ok {
		t.Errorf("reported restarts %q, want %q", r.observer.restarts, want)
	}
}

func (r *runningSync) checkMaximumChanges(t *testing.T, want ...bool) {
	t.Helper()
	check.Not(t, !slices.Equal(r.observer.changed, want), "reported changed maximum %v, want %v", r.observer.changed, want)
}

func TestRunReportsRestartAndChangedMaximum(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(time.Hour)
		r.stopAndWait()
		a.checkRestored(t, 5)
		a.checkWrites(t, "6", "5")
		r.checkRestarts(t, "")
		r.checkMaximumChanges(t, false, true, false)
	})
}

func TestGatheredDeletionsShareOneRestart(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(defaultGather / 2)
		r.RequestRestart()
		time.Sleep(time.Hour)
		a.checkWrites(t, "6", "5")
		r.RequestRestart()
		time.Sleep(defaultGather + time.Minute/2)
		r.RequestRestart() // the restart in progress may be too early for this one
		time.Sleep(time.Hour)
		a.checkWrites(t, "6", "5", "6", "5", "6", "5")
	})
}

func TestScheduledRestartWaitsForPrevious(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		r := a.start(t, 10*time.Minute)
		time.Sleep(25 * time.Minute)
		r.stopAndWait()
		a.checkWrites(t, "6", "5", "6", "5")
		r.checkRestarts(t, "", "")
	})
}

func TestI8MaximumIsRestoredAfterCrash(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		a.maxCount, a.tags[maximumChangeTag] = 6, "5 to 6"
		a.busyUntil = time.Now().Add(90 * time.Second) // the operation that the crash interrupted
		r := a.start(t, 0)
		time.Sleep(time.Hour)
		r.stopAndWait()
		a.checkRestored(t, 5)
		a.checkWrites(t, "5")
		r.checkRestarts(t, "in progress", "in progress")
		r.checkMaximumChanges(t, true, false)
	})
}

func TestThrottledRestoreIsRetried(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		a.throttleWrite(2, 90)
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(time.Hour)
		r.stopAndWait()
		a.checkRestored(t, 5)
		a.checkWrites(t, "6", "5")
		r.checkRestarts(t, "")
	})
}

func TestRestoreFollowsSoonAfterLongThrottle(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		a.throttleWrite(2, 600)
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(defaultGather + a.operationDuration + 10*time.Minute + 10*time.Second)
		a.checkWrites(t, "6", "5")
		time.Sleep(time.Hour)
		r.stopAndWait()
		a.checkRestored(t, 5)
		r.checkRestarts(t, "wait 10m", "")
	})
}

func TestRetryAfterIsRespectedDuringDeletions(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		const wish = 20 * time.Minute
		a.throttleWrite(1, int(wish/time.Second))
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(defaultGather + time.Second)
		wished := time.Now()
		for range 10 {
			r.RequestRestart()
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Hour)
		r.stopAndWait()
		a.checkRestored(t, 5)
		a.checkWrites(t, "6", "5") // one restart for all deletions
		r.checkRestarts(t, "wait 20m", "")
		for _, at := range a.requestTimes {
			if at.After(wished) && at.Before(wished.Add(wish-2*time.Second)) {
				t.Errorf("request after %s, during the retry delay of %s", at.Sub(wished), wish)
			}
		}
	})
}

func TestFailedChangeIsRestoredAtOnce(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		a.failNext = true
		s := a.newSync(t, 0, io.Discard)
		check.ErrorContains(t, s.RestartAutoscaler(t.Context()), "it did not work")
		a.checkRestored(t, 5)
	})
}

func TestEndlessOperationTimesOutAndIsReported(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		a.operationDuration = 40 * time.Minute
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(12 * time.Minute)
		r.observer.mu.Lock()
		check.Not(t, len(r.observer.restarts) == 0, "after 12m no error about the maximum is reported")
		r.observer.mu.Unlock()
		a.changePool(func() { a.operationDuration = time.Minute })
		time.Sleep(3 * time.Hour)
		r.stopAndWait()
		a.checkRestored(t, 5)
	})
}

func TestEndlessRestoreAfterCrashTimesOut(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		a.maxCount, a.tags[maximumChangeTag], a.operationDuration = 6, "5 to 6", 40*time.Minute
		r := a.start(t, 0)
		time.Sleep(7 * time.Minute)
		r.stopAndWait()
		r.checkRestarts(t, "deadline exceeded")
	})
}

func TestStopRestoresTheChangedMaximumFirst(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		a.operationDuration = 8 * time.Second
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(defaultGather + 2*time.Second) // the operation of the change is in progress
		a.checkWrites(t, "6")
		r.stopAndWait()
		a.checkRestored(t, 5)
		r.checkRestarts(t, "")
	})
}

func TestI8NextProcessRestoresAfterEarlyStop(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(defaultGather + 10*time.Second)
		stopped := time.Now()
		r.stopAndWait()
		took := time.Since(stopped)
		check.Not(t, took > stopTimeout, "the stop took %s, want %s at most", took, stopTimeout)
		check.Contains(t, r.log.String(), "maximumChanged=true")
		next := a.start(t, 0)
		time.Sleep(time.Hour)
		next.stopAndWait()
		a.checkRestored(t, 5)
		a.checkWrites(t, "6", "5")
		next.checkMaximumChanges(t, true, false)
	})
}

func TestStopBeforeAnyChangeIsNotReported(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		r := a.start(t, 0)
		ctx, stop := context.WithCancel(t.Context())
		a.changePool(func() {
			a.fault = func(*http.Request) *http.Response {
				stop()
				return nil
			}
		})
		r.retryUntilDone(ctx, r.RestartAutoscaler)
		r.stopAndWait()
		a.checkWrites(t)
		r.checkRestarts(t)
	})
}

func TestPoolDeletedDuringRestartIsReported(t *testing.T) {
	withPool(t, func(t *testing.T, a *fakeAKS) {
		r := a.start(t, 0)
		r.RequestRestart()
		time.Sleep(defaultGather + 10*time.Second)
		a.changePool(func() { a.gone = true })
		time.Sleep(10 * time.Minute)
		r.observer.mu.Lock()
		r.checkMaximumChanges(t, false, true, false)
		r.observer.mu.Unlock()
		a.changePool(func() { a.gone, a.maxCount, a.tags = false, 3, map[string]string{"team": "ci"} })
		time.Sleep(time.Hour)
		r.stopAndWait()
		a.checkRestored(t, 3)
		r.checkMaximumChanges(t, false, true, false, true, false)
		if n := len(r.observer.restarts); n < 5 || !strings.Contains(r.observer.restarts[0], "does not exist") || r.observer.restarts[n-1] != "" {
			t.Errorf("reported %q", r.observer.restarts)
		}
	})
}

func TestLimitsChangedByUserAreKept(t *testing.T) {
	for name, set := range map[string]func(*fakeAKS){
		"another maximum":              func(a *fakeAKS) { a.maxCount = 9 },
		"the original maximum":         func(a *fakeAKS) { a.maxCount = 5 },
		"a minimum above the original": func(a *fakeAKS) { a.minCount = 6 },
	} {
		t.Run(name, func(t *testing.T) {
			withPool(t, func(t *testing.T, a *fakeAKS) {
				r := a.start(t, 0)
				r.RequestRestart()
				time.Sleep(defaultGather + 10*time.Second)
				var want int32
				a.changePool(func() { set(a); want = a.maxCount })
				time.Sleep(time.Hour)
				r.stopAndWait()
				a.checkRestored(t, want)
				r.checkRestarts(t, "")
			})
		})
	}
}

func TestI8TwoManagersRestoreTheMaximum(t *testing.T) {
	for offset := range 16 {
		t.Run(fmt.Sprint(offset*10, "s apart"), func(t *testing.T) {
			withPool(t, func(t *testing.T, a *fakeAKS) {
				first := a.start(t, 0)
				first.RequestRestart()
				time.Sleep(time.Duration(offset) * 10 * time.Second)
				second := a.start(t, 0)
				second.RequestRestart()
				time.Sleep(time.Hour)
				first.stopAndWait()
				second.stopAndWait()
				a.checkRestored(t, 5)
				for _, most := range a.writes {
					if most != "5" && most != "6" {
						t.Errorf("requested maxima %q", a.writes)
						break
					}
				}
				for _, r := range []*runningSync{first, second} {
					if n := len(r.observer.restarts); n == 0 || r.observer.restarts[n-1] != "" {
						t.Errorf("reported restarts %q, want success at the end", r.observer.restarts)
					}
				}
			})
		})
	}
}
