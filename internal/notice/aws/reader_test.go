package aws

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/notice/poll"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

var testBase = pathReader{instance: "i-0123456789abcdef0", log: slog.New(slog.DiscardHandler)}

// describe formats the notices of a snapshot for comparison.
func describe(s notice.Snapshot) string {
	var all []string
	for _, n := range s.Notices {
		text := fmt.Sprintf("%s %s", n.Type, n.Status)
		if !n.NotBefore.IsZero() {
			text += " " + n.NotBefore.Format(time.RFC3339)
		}
		if n.NoticePeriod > 0 {
			text += " period " + n.NoticePeriod.String()
		}
		all = append(all, text)
	}
	for _, p := range s.Warnings {
		all = append(all, "warning: "+p.Err.Error())
	}
	for _, p := range s.Unreadable {
		all = append(all, "unreadable: "+p.Err.Error())
	}
	return strings.Join(all, "; ")
}

func TestI10SpotNoticeWithWrongFieldsStillCounts(t *testing.T) {
	for body, want := range map[string]string{
		`{"action":"terminate","time":"2017-09-18T08:22:00Z"}`:         "Preempt Scheduled 2017-09-18T08:22:00Z",
		`{"action":"stop","time":"2017-09-18T08:22:00.5+02:00"}`:       "Preempt Scheduled 2017-09-18T06:22:00Z",
		` {"time":"2017-09-18T08:22:00Z","action":"STOP","more":[1]} `: "Preempt Scheduled 2017-09-18T08:22:00Z",
		`{"action":"hibernate","time":"2017-09-18T08:22:00Z"}`:         "Preempt Started 2017-09-18T08:22:00Z",
		`{"action":"hibernate"}`:                                       "Preempt Started period 2m0s",
		`{"action":"none"}`:                                            "",
		`{"action":"terminate"}`:                                       "Preempt Scheduled period 2m0s; warning: time is missing; assuming 2m0s from now",
		`{"action":"stop","time":17}`:                                  "Preempt Scheduled period 2m0s; warning: time: 17: want a string",
		`{"action":"stop","time":"soon"}`:                              `Preempt Scheduled period 2m0s; warning: time: "soon": want a time such as "2017-09-18T08:22:00Z"`,
		`{"action":["stop"],"time":"2017-09-18T08:22:00Z"}`:            `Preempt Scheduled 2017-09-18T08:22:00Z; warning: action: ["stop"]: want a string`,
		`{"action":"explode","time":"2017-09-18T08:22:00Z"}`:           `Preempt Scheduled 2017-09-18T08:22:00Z; warning: action: "explode": want terminate, stop or hibernate; assuming terminate`,
		`{}`:                              `Preempt Scheduled period 2m0s; warning: action: "": want terminate, stop or hibernate; assuming terminate; warning: time is missing; assuming 2m0s from now`,
		`<html><body>login</body></html>`: "not_json",
		`{"action":"term`:                 "not_json",
		``:                                "not_json",
		`null`:                            "wrong_shape",
		`[{"action":"terminate"}]`:        "wrong_shape",
	} {
		r := spotReader{pathReader: testBase}
		s, err := r.parse([]byte(body))
		got := describe(s)
		if err != nil {
			got = string(err.(*poll.Error).Class) //nolint:errorlint,forcetypeassert // the reader's contract
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", body, got, want)
		}
	}
}

func TestI10EventWithWrongFieldsStillCounts(t *testing.T) {
	const whole = `{"NotBefore":"21 Jan 2019 09:00:43 GMT","Code":"system-reboot","Description":"scheduled reboot",` +
		`"EventId":"instance-event-0d59937288b749b32","NotAfter":"21 Jan 2019 09:17:23 GMT","State":"active"}`
	with := func(pairs ...string) string { return "[" + strings.NewReplacer(pairs...).Replace(whole) + "]" }
	for body, want := range map[string]string{
		`[]`: "", ``: "not_json", `null`: "",
		"[" + whole + "]": "Reboot Scheduled 2019-01-21T09:00:43Z",
		with("system-reboot", "instance-retirement", "21 Jan 2019 09:17:23 GMT", ""):              "Terminate Scheduled 2019-01-21T09:00:43Z",
		with("system-reboot", "Instance-Stop"):                                                    "Terminate Scheduled 2019-01-21T09:00:43Z",
		with("system-reboot", "instance-reboot"):                                                  "Reboot Scheduled 2019-01-21T09:00:43Z",
		with("system-reboot", "system-maintenance"):                                               "Reboot Scheduled 2019-01-21T09:00:43Z",
		with("system-reboot", "system-maintenance", "scheduled reboot", "Network maintenance"):    "Freeze Scheduled 2019-01-21T09:00:43Z",
		with("system-reboot", "system-maintenance", `"scheduled reboot"`, `17`):                   "Reboot Scheduled 2019-01-21T09:00:43Z; warning: scheduled[0].Description: 17: want a string",
		with(`"active"`, `"canceled"`):                                                            "",
		with(`"active"`, `"Completed"`):                                                           "",
		with("scheduled reboot", "[Canceled] scheduled reboot"):                                   "",
		with(`"active"`, `17`):                                                                    "Reboot Scheduled 2019-01-21T09:00:43Z; warning: scheduled[0].State: 17: want a string",
		with(`"21 Jan 2019 09:00:43 GMT"`, `""`):                                                  "Reboot Scheduled period 15m0s; warning: scheduled[0].NotBefore is missing",
		with(`"system-reboot"`, `"instance-retirement"`, `"21 Jan 2019 09:00:43 GMT"`, `"later"`): `Terminate Scheduled period 1h0m0s; warning: scheduled[0].NotBefore: "later": want a time such as "2017-09-18T08:22:00Z"`,
		with("system-reboot", "instance-relocation"):                                              `Reboot Scheduled 2019-01-21T09:00:43Z; warning: scheduled[0].Code: "instance-relocation": want instance-stop, instance-retirement, instance-reboot, system-reboot or system-maintenance; assuming a reboot`,
		with(`"instance-event-0d59937288b749b32"`, `null`):                                        `Reboot Scheduled 2019-01-21T09:00:43Z; warning: scheduled[0].EventId: "": want an ID of at most 128 bytes`,
		"[" + whole + "," + whole + "]":                                                           `Reboot Scheduled 2019-01-21T09:00:43Z; warning: scheduled[1].EventId: "instance-event-0d59937288b749b32": is there twice; the first counts`,
		"[17," + whole + "]":                                                                      "Reboot Scheduled 2019-01-21T09:00:43Z; unreadable: scheduled[0]: 17: want an object",
		`[null]`:                                                                                  "unreadable: scheduled[0]: null: want an object",
		`{"events":[]}`:                                                                           "wrong_shape",
		`<html>`:                                                                                  "not_json",
		"[" + strings.Repeat(whole+",", maxEvents) + whole + "]":                                  "too_large",
	} {
		r := eventReader{pathReader: testBase}
		err := r.parse([]byte(body))
		got := describe(r.events)
		if err != nil {
			got = string(err.(*poll.Error).Class) //nolint:errorlint,forcetypeassert // the reader's contract
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", body, got, want)
		}
	}
}

func TestOnlyMaintenanceOfTheNetworkKeepsTheInstance(t *testing.T) {
	for code, want := range map[string]notice.Type{
		"AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED":       notice.Freeze,
		"AWS_EC2_DEDICATED_HOST_NETWORK_MAINTENANCE_SCHEDULED": notice.Freeze,
		"AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED":         notice.Reboot,
		"AWS_EC2_MAINTENANCE_SCHEDULED":                        notice.Reboot,
		"AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED":          notice.Reboot,
		"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED":     notice.Terminate,
		"AWS_EC2_INSTANCE_STOP_SCHEDULED":                      notice.Terminate,
		"AWS_EC2_INSTANCE_TERMINATION_SCHEDULED":               notice.Terminate,
	} {
		got, isKnown := TypeOfEvent(code, "")
		check.Is(t, want, got, code)
		check.Is(t, true, isKnown, code)
	}
	for description, want := range map[string]notice.Type{
		"": notice.Reboot, "Scheduled power maintenance": notice.Reboot, "network or power maintenance": notice.Reboot,
		"Scheduled network maintenance": notice.Freeze,
	} {
		got, _ := TypeOfEvent("system-maintenance", description)
		check.Is(t, want, got, description)
	}
}

func TestGeneratedIDsSurviveRestartsAndDifferByTime(t *testing.T) {
	read := func(body string) string {
		r := spotReader{pathReader: testBase}
		s, err := r.parse([]byte(body))
		if err != nil || len(s.Notices) != 1 {
			t.Fatal(err, s.Notices)
		}
		return s.Notices[0].ID
	}
	first, again := read(`{"action":"stop","time":"2017-09-18T08:22:00Z"}`), read(`{ "time": "2017-09-18T08:22:00Z", "action": "stop" }`)
	other := read(`{"action":"stop","time":"2017-09-19T08:22:00Z"}`)
	if first != again || first == other || !strings.HasPrefix(first, "spot-") {
		t.Errorf("IDs %s, %s and %s: want the first two equal, and the third different", first, again, other)
	}
}

func TestRenewedRecommendationIsOneNoticePerHour(t *testing.T) {
	read := func(r *rebalanceReader, at string) string {
		s, err := r.parse([]byte(`{"noticeTime":"` + at + `"}`))
		if err != nil || len(s.Notices) != 1 || s.Notices[0].Type != notice.Rebalance {
			t.Fatal(err, s.Notices)
		}
		return s.Notices[0].ID
	}
	r := &rebalanceReader{pathReader: testBase}
	first := read(r, "2020-11-05T08:00:00Z")
	if got := read(r, "2020-11-05T08:59:00Z"); got != first {
		t.Errorf("after 59 min: ID %s, want still %s", got, first)
	}
	restarted := &rebalanceReader{pathReader: testBase}
	restarted.resume(notice.Rebalance, []notice.Notice{r.known})
	if got := read(restarted, "2020-11-05T08:59:30Z"); got != first {
		t.Errorf("after a restart: ID %s, want still %s", got, first)
	}
	second := read(restarted, "2020-11-05T09:00:00Z")
	if second == first {
		t.Errorf("after an hour: ID %s, want another", second)
	}
	if got := read(restarted, "2020-11-05T09:01:00Z"); got != second {
		t.Errorf("a minute later: ID %s, want %s", got, second)
	}
}

func TestI10OnlyTerminatedStateIsANotice(t *testing.T) {
	for state, want := range map[string]string{
		"InService": "", "Standby": "", "Detached": "", "Warmed:Stopped": "", "": "wrong_shape", "FutureState": "",
		"Terminated": "Terminate Scheduled period 1h0m0s", " terminated\n": "Terminate Scheduled period 1h0m0s", "Warmed:Terminated": "Terminate Scheduled period 1h0m0s",
		"<html>Terminated</html>": "wrong_shape", strings.Repeat("Terminated", 10): "wrong_shape",
	} {
		r := asgReader{pathReader: testBase}
		s, err := r.parse([]byte(state), hookState{})
		got := describe(s)
		if err != nil {
			got = string(err.(*poll.Error).Class) //nolint:errorlint,forcetypeassert // the reader's contract
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", state, got, want)
		}
	}
}

func TestSpotNoticeWithMovingTimeStaysTheSame(t *testing.T) {
	r := spotReader{pathReader: testBase}
	var first notice.Notice
	for i, tt := range []struct{ at, want string }{
		{"2017-09-18T08:22:00Z", "2017-09-18T08:22:00Z"},
		{"2017-09-18T08:22:01Z", "2017-09-18T08:22:00Z"}, // a little later
		{"2017-09-18T08:23:59Z", "2017-09-18T08:22:00Z"},
		{"2017-09-18T08:21:00Z", "2017-09-18T08:21:00Z"}, // earlier
		{"2017-09-18T08:23:00Z", "2017-09-18T08:23:00Z"}, // two minutes later
	} {
		s, err := r.parse([]byte(`{"action":"stop","time":"` + tt.at + `"}`))
		if err != nil || len(s.Notices) != 1 {
			t.Fatal(err, s.Notices)
		}
		n := s.Notices[0]
		if i == 0 {
			first = n
		}
		if got := n.NotBefore.Format(time.RFC3339); got != tt.want || n.ID != first.ID {
			t.Errorf("%s: %s at %s, want %s at %s", tt.at, n.ID, got, first.ID, tt.want)
		}
	}
	restarted := spotReader{pathReader: testBase}
	restarted.resume(notice.Preempt, []notice.Notice{first})
	if s, err := restarted.parse([]byte(`{"action":"stop"}`)); err != nil || s.Notices[0].ID != first.ID {
		t.Errorf("after a restart: %v, %v", s.Notices, err)
	}
	if _, err := r.parse(nil); err != nil || r.known.ID != "" {
		t.Errorf("%v, still known: %s", err, r.known.ID)
	}
}

// TestIdleInstanceNeedsTheDocumentedRequests checks the table in docs/aws.md.
func TestIdleInstanceNeedsTheDocumentedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		requests := map[string]int{}
		client, err := NewClient(ClientOptions{Wrap: func(http.RoundTripper) http.RoundTripper {
			return transportFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				requests[r.URL.Path]++
				mu.Unlock()
				switch r.URL.Path {
				case tokenPath:
					_, _ = io.WriteString(w, "token")
				case asgPath:
					_, _ = io.WriteString(w, "InService")
				default:
					http.NotFound(w, r)
				}
			})
		}})
		must.NoError(t, err)
		source, err := NewSource(SourceOptions{Client: client, Instance: "i-0123456789abcdef0"})
		must.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute-time.Millisecond)
		defer cancel()
		source.Run(ctx, func(notice.Snapshot) {})
		check.Equal(t, map[string]int{tokenPath: 1, spotPath: 600, asgPath: 300, rebalancePath: 40, eventsPath: 20}, requests)
	})
}
