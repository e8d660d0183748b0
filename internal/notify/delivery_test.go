package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/observe"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// fakeTransport is a receiver without a network, for tests in virtual time.
type fakeTransport struct {
	mu  sync.Mutex
	got []string    // the bodies, in order
	at  []time.Time // the time of each request
	// answer returns status and headers for the n-th request, or the error of a receiver that is away.
	answer func(n int, body string) (int, http.Header, error)
	// hangs, if set, reports that the n-th request gets no response.
	hangs func(n int, body string) bool
}

func (l *fakeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	l.mu.Lock()
	n := len(l.got)
	l.got, l.at = append(l.got, strings.TrimSpace(string(body))), append(l.at, time.Now())
	l.mu.Unlock()
	if l.hangs != nil && l.hangs(n, strings.TrimSpace(string(body))) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	code, header, err := l.answer(n, strings.TrimSpace(string(body)))
	if err != nil {
		return nil, err
	}
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

func (l *fakeTransport) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got)
}

// gaps returns the times between the requests.
func (l *fakeTransport) gaps() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var gaps []time.Duration
	for i := 1; i < len(l.at); i++ {
		gaps = append(gaps, l.at[i].Sub(l.at[i-1]))
	}
	return gaps
}

var errAway = errors.New("connection refused")

// withTransport replaces the network by l.
func withTransport(l *fakeTransport, o Options) Options {
	o.Wrap = func(http.RoundTripper) http.RoundTripper { return l }
	return o
}

// idReceiver returns a receiver with the event's ID as its body.
func idReceiver() Receiver {
	return Receiver{Name: "hook", Webhook: &Webhook{URL: "http://receiver.example", Body: Body{Template: "{{ .Event.EventId }}"}}}
}

// newMessage returns a message with that ID.
func newMessage(id string) Message {
	m := NewSampleMessage(Detected, time.Now())
	m.Event.EventId = id
	return m
}

// startNotifier runs a Notifier until stop or the end of the test.
func startNotifier(t *testing.T, n *Notifier) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.Run(ctx)
	}()
	return func() { cancel(); <-done }
}

func around(got, want time.Duration) bool { return got >= want*4/5 && got <= want*6/5 }

func TestDeadReceiverIsRetriedWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		dead.Store(true)
		l := &fakeTransport{answer: func(int, string) (int, http.Header, error) {
			if dead.Load() {
				return 0, nil, errAway
			}
			return 200, nil, nil
		}}
		n := newNotifier(t, withTransport(l, Options{}), idReceiver())
		stop := startNotifier(t, n)
		n.Enqueue(newMessage("1"))
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		gaps := l.gaps()
		for i, want := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
			if !around(gaps[i], time.Duration(want)*time.Second) {
				t.Errorf("pause %d: %s, want about %d s", i, gaps[i], want)
			}
		}
		dead.Store(false)
		time.Sleep(maxLongPause * 6 / 5)
		synctest.Wait()
		tries := len(l.all())
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if len(l.all()) != tries || !n.IsIdle() {
			t.Error("a delivered message was sent again")
		}
		stop()
	})
}

func TestNotifyNeverBlocksAndLimitsItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		dead.Store(true)
		l := &fakeTransport{answer: func(int, string) (int, http.Header, error) {
			if dead.Load() {
				time.Sleep(time.Minute)
				return 0, nil, errAway
			}
			return 200, nil, nil
		}}
		r := idReceiver()
		r.Webhook.Timeout = Duration(5 * time.Minute)
		var log logged
		registry := observe.NewRegistry()
		n := newNotifier(t, withTransport(l, Options{QueueSize: 3, Log: log.logger(), Metrics: registry}), r)
		stop := startNotifier(t, n)
		began := time.Now()
		for i := range 10 {
			n.Enqueue(newMessage(fmt.Sprint(i)))
			if i == 0 {
				synctest.Wait() // it is being sent, and is not dropped
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("took %s", took)
		}
		dead.Store(false)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, want := l.all(), []string{"0", "0", "8", "9"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v: the oldest are dropped", got, want)
		}
		metrics := exposition(registry)
		for _, want := range []string{
			`slipway_notifications_total{receiver="hook",result="dropped"} 7`,
			`slipway_notifications_total{receiver="hook",result="sent"} 3`,
			`slipway_notifications_total{receiver="hook",result="failed"} 1`,
			`slipway_notifications_waiting{receiver="hook"} 0`,
		} {
			if !strings.Contains(metrics, want) {
				t.Errorf("missing metric %s in\n%s", want, metrics)
			}
		}
		if strings.Count(log.String(), "notification dropped") != 7 {
			t.Errorf("drops are not logged:\n%s", log.String())
		}
		stop()
	})
}

func exposition(r *observe.Registry) string {
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func TestDeadReceiverDoesNotDelayTheOthers(t *testing.T) {
	b := newInbox(t, nil)
	silent := newInbox(t, func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	other := webhook(silent.URL)
	other.Name = "silent"
	n := newNotifier(t, Options{Linger: time.Millisecond}, other, webhook(b.URL))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.Run(ctx)
	}()
	n.Enqueue(NewSampleMessage(Detected, time.Now()))
	deadline := time.Now().Add(2 * time.Minute)
	for len(b.all()) == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if len(b.all()) != 1 {
		t.Error("the other receiver got no message")
	}
	stop()
	<-done
}

func TestOnlyTemporaryFailuresAreRetried(t *testing.T) {
	for code, want := range map[int]int{
		200: 1, 204: 1, 301: 1, 308: 1, 400: 1, 401: 1, 403: 1, 404: 1, 501: 1,
		407: 3, 408: 3, 425: 3, 429: 3, 500: 3, 502: 3, 503: 3, 504: 3,
	} {
		t.Run(fmt.Sprint(code), virtual.InVirtualTime(func(t *testing.T) {
			l := &fakeTransport{answer: func(int, string) (int, http.Header, error) { return code, nil, nil }}
			r := idReceiver()
			two := 2
			r.Webhook.Retries = &two
			err := newNotifier(t, withTransport(l, Options{}), r).SendToAllNow(t.Context(), newMessage("1"))
			if got := len(l.all()); got != want {
				t.Errorf("%d requests, want %d", got, want)
			}
			if (err == nil) != (code < 300) {
				t.Errorf("error %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("receiver hook: answered %d", code)) {
				t.Errorf("error %v", err)
			}
		}))
	}
}

func TestRetryAfterIsRespected(t *testing.T) {
	for _, c := range []struct {
		name   string
		code   int
		header func() string
		want   time.Duration
	}{
		{"seconds", 429, func() string { return "42" }, 42 * time.Second},
		{"a date", 503, func() string { return time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat) }, 90 * time.Second},
		{"much too long", 429, func() string { return "999999" }, maxRetryAfter},
		{"beyond all numbers", 429, func() string { return "99999999999999999999" }, time.Second},
		{"in the past", 503, func() string { return "Sat, 19 Sep 1998 18:29:47 GMT" }, time.Second},
		{"nonsense", 429, func() string { return "soon" }, time.Second},
		{"negative", 429, func() string { return "-5" }, time.Second},
	} {
		t.Run(c.name, virtual.InVirtualTime(func(t *testing.T) {
			l := &fakeTransport{answer: func(n int, _ string) (int, http.Header, error) {
				if n == 0 {
					return c.code, http.Header{"Retry-After": {c.header()}}, nil
				}
				return 200, nil, nil
			}}
			n := newNotifier(t, withTransport(l, Options{}), idReceiver())
			stop := startNotifier(t, n)
			n.Enqueue(newMessage("1"))
			n.Enqueue(newMessage("2"))
			time.Sleep(time.Hour)
			synctest.Wait()
			gaps := l.gaps()
			if got := l.all(); !slices.Equal(got, []string{"1", "1", "2"}) {
				t.Fatalf("got %v", got)
			}
			if gaps[0] < c.want*4/5 || gaps[0] > c.want*6/5 {
				t.Errorf("retried after %s, want %s", gaps[0], c.want)
			}
			stop()
		}))
	}
}

func TestTelegramRetryAfterIsRespected(t *testing.T) {
	got := parseRetryAfter("", []byte(`{"ok":false,"error_code":429,"parameters":{"retry_after":17}}`), time.Now())
	if got != 17*time.Second {
		t.Errorf("%s, want 17s", got)
	}
}

func TestRefusedMessageDoesNotDelayTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeTransport{answer: func(_ int, body string) (int, http.Header, error) {
			if body == "bad" {
				return 500, nil, nil
			}
			return 200, nil, nil
		}}
		n := newNotifier(t, withTransport(l, Options{}), idReceiver())
		stop := startNotifier(t, n)
		n.Enqueue(newMessage("bad"))
		n.Enqueue(newMessage("good"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := l.all(); !slices.Equal(got[:5], []string{"bad", "bad", "bad", "bad", "good"}) {
			t.Errorf("got %v", got)
		}
		stop()
	})
}

func TestW17QueuedMessagesAreRetriedOnceAtExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeTransport{answer: func(int, string) (int, http.Header, error) { return 200, nil, nil }}
		n := newNotifier(t, withTransport(l, Options{}), idReceiver())
		ctx, stop := context.WithCancel(t.Context())
		stop()
		n.Enqueue(newMessage("1"))
		n.Enqueue(newMessage("2"))
		if n.IsIdle() {
			t.Error("idle before a message was sent")
		}
		if err := n.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if got := l.all(); !slices.Equal(got, []string{"1", "2"}) || !n.IsIdle() {
			t.Errorf("got %v", got)
		}
	})
}

func TestLastMessageIsTriedAfterAnOldFailure(t *testing.T) {
	checkTriedAtTheEnd(t, "last")
}

func TestLastMessageIsTriedAfterNewFailures(t *testing.T) {
	checkTriedAtTheEnd(t, "new", "last")
}

// checkTriedAtTheEnd checks that messages after a failed one are tried right before the process ends. The receiver
// only accepts "last".
func checkTriedAtTheEnd(t *testing.T, messages ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &fakeTransport{answer: func(_ int, body string) (int, http.Header, error) {
			if body != "last" {
				return 503, nil, nil
			}
			return 200, nil, nil
		}}
		n := newNotifier(t, withTransport(l, Options{}), idReceiver())
		stop := startNotifier(t, n)
		n.Enqueue(newMessage("old"))
		time.Sleep(time.Millisecond) // it has failed, and waits for its next try
		for _, m := range messages {
			n.Enqueue(newMessage(m))
		}
		stop()
		if got := l.all(); !slices.Equal(got, append([]string{"old"}, messages...)) {
			t.Errorf("sent %v, want each message tried when the process ends", got)
		}
	})
}

func TestLastMessageIsTriedBehindAHangingOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeTransport{}
		l.hangs = func(n int, body string) bool { return n == 1 }
		l.answer = func(n int, _ string) (int, http.Header, error) {
			if n == 0 {
				return 0, nil, errAway
			}
			return 200, nil, nil
		}
		n := newNotifier(t, withTransport(l, Options{}), idReceiver())
		stop := startNotifier(t, n)
		n.Enqueue(newMessage("old"))
		time.Sleep(minPause * 6 / 5) // it has failed, and its second try hangs
		n.Enqueue(newMessage("last"))
		stop()
		if got := l.all(); !slices.Equal(got, []string{"old", "old", "last"}) {
			t.Errorf("sent %v, want the last message tried when the process ends", got)
		}
	})
}

func TestHangingReceiverDoesNotPreventTheExit(t *testing.T) {
	silent := newInbox(t, func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	var log logged
	r := webhook(silent.URL)
	r.Webhook.Timeout = Duration(10 * time.Minute)
	n := newNotifier(t, Options{Linger: 50 * time.Millisecond, Log: log.logger()}, r)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	n.Enqueue(NewSampleMessage(Detected, time.Now()))
	began := time.Now()
	_ = n.Run(ctx)
	if took := time.Since(began); took > 5*time.Minute {
		t.Errorf("took %s", took)
	}
	if !strings.Contains(log.String(), "not sent: the process ends") {
		t.Errorf("log:\n%s", log.String())
	}
}

func TestW12TimeoutLimitsTheWholeRequest(t *testing.T) {
	for name, answer := range map[string]func(int, http.ResponseWriter, *http.Request){
		"no response": func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"an endless response": func(_ int, w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(5 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newInbox(t, answer)
			r := webhook(b.URL)
			r.Webhook.Timeout = Duration(100 * time.Millisecond)
			if err := sendOnce(t, r); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestEndlessResponseIsReadInPart(t *testing.T) {
	b := newInbox(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		chunk := strings.Repeat("x", 1<<16)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	})
	if err := sendOnce(t, webhook(b.URL)); err != nil {
		t.Error(err)
	}
}

func TestRedirectThatKeepsTheMessageIsFollowed(t *testing.T) {
	elsewhere := newInbox(t, nil)
	for _, code := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		b := newInbox(t, func(_ int, w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL+"/there", code) })
		r := webhook(b.URL + "/s3cret")
		r.Webhook.Headers = map[string]string{"X-Api-Key": "s3cret", "X-Cluster": "one"}
		if err := sendOnce(t, r); err != nil {
			t.Fatalf("%d: %v", code, err)
		}
		first, got := b.all()[0], elsewhere.all()[len(elsewhere.all())-1]
		if got.method != http.MethodPost || got.path != "/there" || got.body != first.body || got.body == "" ||
			got.header.Get("X-Cluster") != "one" {
			t.Errorf("%d: delivered %+v of %+v", code, got, first)
		}
		if all := fmt.Sprint(got.header); strings.Contains(all, "s3cret") {
			t.Errorf("%d: a secret was sent to another server: %s", code, all)
		}
	}
}

func TestRedirectThatLosesTheMessageIsNotFollowed(t *testing.T) {
	elsewhere := newInbox(t, nil)
	for _, code := range []int{301, 302, 303} {
		b := newInbox(t, func(_ int, w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, code) })
		err := sendOnce(t, webhook(b.URL))
		if err == nil || !strings.Contains(err.Error(), strconv.Itoa(code)) || !strings.Contains(err.Error(), "not followed") {
			t.Errorf("error %v", err)
		}
	}
	if len(elsewhere.all()) != 0 {
		t.Error("the redirect was followed")
	}
	b := newInbox(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/", http.StatusTemporaryRedirect)
	})
	if err := sendOnce(t, webhook(b.URL)); err == nil || !strings.Contains(err.Error(), "307") || len(b.all()) > 2*maxRedirects*(defaultRetries+1) {
		t.Errorf("endless redirects: %v after %d requests", err, len(b.all()))
	}
}

func TestRedirectFromHTTPSToHTTPIsNotFollowed(t *testing.T) {
	elsewhere := newInbox(t, nil)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer secure.Close()
	r := webhook(secure.URL)
	r.Webhook.InsecureSkipVerify = true
	if err := sendOnce(t, r); err == nil || len(elsewhere.all()) != 0 {
		t.Errorf("error %v, %d delivered", err, len(elsewhere.all()))
	}
}

func TestReceiverGetsOnlyItsMoments(t *testing.T) {
	for _, c := range []struct {
		chosen, want []Moment
	}{
		{nil, []Moment{Detected, Drained, DeadlinePassed, Ended}},
		{[]Moment{Blocked, Ended}, []Moment{Blocked, Ended}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeTransport{answer: func(int, string) (int, http.Header, error) { return 200, nil, nil }}
			r := idReceiver()
			r.Moments, r.Webhook.Template = c.chosen, "{{ .Moment }}"
			n := newNotifier(t, withTransport(l, Options{}), r)
			stop := startNotifier(t, n)
			for _, m := range Moments() {
				n.Enqueue(NewSampleMessage(m, time.Now()))
			}
			synctest.Wait()
			var got []Moment
			for _, body := range l.all() {
				got = append(got, Moment(body))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("sent %v, want %v", got, c.want)
			}
			stop()
		})
	}
}

func TestEachReceiverUsesItsTemplate(t *testing.T) {
	x, y := newInbox(t, nil), newInbox(t, nil)
	first, second := webhook(x.URL), webhook(y.URL)
	second.Name, second.Webhook.Template = "second", "{{ .Event.EventType | lower }}"
	must.NoError(t, newNotifier(t, Options{}, first, second).SendToAllNow(t.Context(), NewSampleMessage(Ended, time.Now())))
	if x.all()[0].body != "over aks-spot-12345678-vmss000000\n" || y.all()[0].body != "preempt\n" {
		t.Errorf("%q, %q", x.all()[0].body, y.all()[0].body)
	}
}
